"""A batch whose numbers stopped being numbers, kept for a second look.

runs/tiny/diverged/step-000012/{model.safetensors, batch.json}
"""

import dataclasses
import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch

from minitransformer.data.batching import Batch, make_batch
from minitransformer.data.corpus import Split
from minitransformer.data.encoding import EncodedPair
from minitransformer.errors import CheckpointError, DivergedError
from minitransformer.judging import Evaluation, batches_by_length, teacher_forced
from minitransformer.line_translation import without_controls
from minitransformer.metrics import Sum
from minitransformer.model.loss import TrainingLoss
from minitransformer.schema import Mistake, Range, build_section
from minitransformer.search import evaluating
from minitransformer.seeding import mix
from minitransformer.storage import (
    MOST_JSON,
    json_with_checksum,
    read_json_with_checksum,
    read_own_file,
    replace_folder,
    tensor_bytes,
)
from minitransformer.training.divergence import find_trouble
from minitransformer.weights import model_tensors

if TYPE_CHECKING:
    from minitransformer.training.trainer import Trainer

FOLDER, BATCH, WEIGHTS = "diverged", "batch.json", "model.safetensors"
MOST_PAIRS, MOST_LETTERS = 3, 120  # that are shown


@dataclass(kw_only=True, frozen=True)
class Incident:
    """What it takes to compute a batch once more, and what went wrong with it."""

    step: Annotated[int, Range(0, 2**53)] = 0
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0  # that torch had before this batch
    scale: Annotated[float, Range(0, 1e30)] = 1.0  # of its summed loss
    start_id: Annotated[int, Range(0, 10**9)] = 0
    is_training: bool = True
    part: str = ""  # of the model, where it began
    rows: tuple[int, ...] = ()  # that it happened with
    examples: tuple[str, ...] = ()  # the first of them: "line 7: I go home → Voy a casa"
    sources: tuple[tuple[int, ...], ...] = ()
    targets: tuple[tuple[int, ...], ...] = ()

    def batch(self) -> Batch:
        pairs = zip(self.sources, self.targets, strict=True)
        return make_batch([EncodedPair(list(a), list(b)) for a, b in pairs], self.start_id)

    @property
    def words(self) -> str:
        """Where it began, and with which sentences."""
        if not self.part:
            return "no batch alone has it, only their sum"
        which = "; ".join(self.examples)
        if len(self.rows) > len(self.examples):
            count = "all" if len(self.rows) == len(self.sources) else f"{len(self.rows)} of"
            which = f"{count} {len(self.sources)} pairs of its batch, such as {self.examples[0]}"
        return f"it begins in {self.part}, with {which}"


def stopped_step(
    trainer: "Trainer", batches: list[Batch], step: int, rate: float, loss: Sum, norm: float
) -> DivergedError:
    """Find and keep what made a step's gradient no number; all processes look at their batches."""
    ranks, seed = trainer.ranks, trainer.config.training.seed
    trainer.model.zero_grad()
    training_loss = TrainingLoss(trainer.model, trainer.config.training)
    stream, before = trainer.stream, trainer.state
    stream.move_to(epoch=before.epoch, index=before.batch_index)
    found = b""
    for number, batch in enumerate(batches):
        places = stream.next_places()[ranks.rank :: ranks.world_size].tolist()
        batch_seed = mix(seed, step, ranks.rank << 32 | number)
        scale = ranks.world_size / loss.count
        trouble = find_trouble(training_loss, batch, seed=batch_seed, scale=scale)
        if trouble and places and not found:
            pairs = [trainer.encoded["train"][place] for place in places]
            incident = Incident(
                step=step, seed=batch_seed, scale=scale, start_id=trainer.tokenizer.start_id,
                part=trouble.part, rows=tuple(trouble.rows),
                examples=examples(trainer.corpus.train, [places[row] for row in trouble.rows]),
                sources=tuple(tuple(pair.source) for pair in pairs),
                targets=tuple(tuple(pair.target) for pair in pairs),
            )  # fmt: skip
            found = json.dumps(dataclasses.asdict(incident)).encode()
    told = [each for each in ranks.gather(found) if each]
    what = f"the gradient of step {step} is {norm} (loss {loss.mean:.4g}, learning rate {rate:.4g})"
    incident = parsed(json.loads(told[0]), "told") if told else Incident(step=step)
    return keep(trainer, incident, what)


def stopped_evaluation(trainer: "Trainer", name: str, evaluation: Evaluation) -> DivergedError:
    """Find and keep what made a split's loss no number."""
    encoded = trainer.encoded[name][: len(trainer.texts[name])]
    start_id, step = trainer.tokenizer.start_id, trainer.state.step
    incident = Incident(step=step)
    training_loss = TrainingLoss(trainer.model, trainer.config.training)
    for places in batches_by_length(encoded, trainer.config.evaluation.batch_size):
        pairs = [encoded[place] for place in places]
        batch = make_batch(pairs, start_id).to(trainer.device)
        with evaluating(trainer.model):
            is_finite = torch.tensor(teacher_forced(trainer.model, batch)[0]).isfinite()
            trouble = None if is_finite else find_trouble(training_loss, batch, seed=0, scale=1.0)
        if trouble:
            incident = Incident(
                step=step, is_training=False, start_id=start_id,
                part=trouble.part, rows=tuple(trouble.rows),
                examples=examples(trainer.corpus.splits[name], [places[n] for n in trouble.rows]),
                sources=tuple(tuple(pair.source) for pair in pairs),
                targets=tuple(tuple(pair.target) for pair in pairs),
            )  # fmt: skip
            break
    return keep(trainer, incident, f"the {name} loss after step {step} is {evaluation.loss.mean}")


def examples(split: Split, places: list[int]) -> tuple[str, ...]:
    """The first few of some pairs, as they stand in the corpus."""
    found = []
    for place in sorted(places)[:MOST_PAIRS]:
        number, pair = next(islice(split.numbered(), place, None))
        shown = without_controls(" → ".join(pair))
        shown = shown if len(shown) <= MOST_LETTERS else f"{shown[: MOST_LETTERS - 1]}…"
        found.append(f"{split.report.unit} {number} of {split.source.name}: {shown}")
    return tuple(found)


def keep(trainer: "Trainer", incident: Incident, what: str) -> DivergedError:
    """Write an incident into the run's folder, and put everything into words."""
    folder = trainer.run_folder.path / FOLDER / f"step-{incident.step:06d}"
    look = ""
    if incident.sources:
        look = f"; to look closer: python -m minitransformer.doctor --replay {folder}"
        content = dataclasses.asdict(incident)
        weights = tensor_bytes(model_tensors(trainer.model))
        try:
            if trainer.ranks.is_first:
                replace_folder(folder, {WEIGHTS: weights, BATCH: json_with_checksum(content)})
        except OSError as error:  # what happened is to be told in any case
            look = f" (its batch is not kept: {error.strerror})"
    saved, again = "There is no checkpoint yet", ""
    if trainer.run_folder.has_started:
        saved, again = "Checkpoints are as they were", " with --fresh"
    return DivergedError(
        f"{what}; {incident.words}. {saved}. Lower training.learning_rate, set or lower "
        f"training.clip_norm, and start again{again}{look}"
    )


def read_incident(folder: Path) -> Incident:
    """Read back what `keep` wrote."""
    path = folder / BATCH
    data = read_json_with_checksum(read_own_file(path, MOST_JSON), str(path))
    return parsed(data, str(path))


def parsed(data: Any, where: str) -> Incident:
    """An incident from plain data, of which nothing is believed."""
    mistakes: list[Mistake] = []
    incident: Incident = build_section(Incident, data, "incident", mistakes)
    if mistakes:
        raise CheckpointError(f"{where}: {mistakes[0].message}")
    if not incident.sources or len(incident.sources) != len(incident.targets):
        raise CheckpointError(f"{where}: has no sentence pairs")
    return incident
