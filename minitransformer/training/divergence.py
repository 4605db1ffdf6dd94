"""Training that goes wrong: NaN or Inf, located and kept; a decoder that ignores the source.

runs/tiny/diverged/step-000012/{model.safetensors, batch.json}
B batch, T target.
"""

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from minitransformer.checkpoint import TrainerState, model_tensors, tensor_bytes
from minitransformer.config import Mistake, build_section
from minitransformer.data.batching import Batch, fold_in, make_batch
from minitransformer.data.corpus import Split
from minitransformer.data.dataset import EncodedPair, EncodedSplit
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import CheckpointError, DivergedError, escape_controls
from minitransformer.evaluation import Evaluation, batches_by_length, teacher_forced
from minitransformer.metrics import Sum
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.loss import TrainingLoss
from minitransformer.model.recurrent import Recurrence
from minitransformer.model.trace import record
from minitransformer.search import eval_mode
from minitransformer.settings import Range
from minitransformer.storage import (
    MAX_JSON_BYTES,
    json_with_checksum,
    read_json_with_checksum,
    read_own_file,
    replace_folder,
)

if TYPE_CHECKING:
    from minitransformer.training.trainer import Trainer


class Stage(NamedTuple):
    """One tensor on the way through the model."""

    name: str  # such as decoder.layers.0.cross_attention.scores
    largest: float  # the highest absolute value; nan where one is not a number


class NonFinite(NamedTuple):
    """The first thing that is not finite when a batch is computed once more."""

    part: str
    rows: list[int]  # of the batch: the sentences that it happens with
    stages: list[Stage]  # up to there


def locate_nonfinite(
    training_loss: TrainingLoss, batch: Batch, *, seed: int, scale: float
) -> NonFinite | None:
    """Compute a batch as training did, from the same random numbers, and look at every stage.

    `scale` is what its summed loss was multiplied with.
    """

    def loss_of(rows: list[int]) -> Tensor:
        """With other rows' labels taken away, the same dropout still meets the same sentences."""
        torch.manual_seed(seed)
        is_chosen = torch.zeros(len(batch.source), 1, dtype=torch.bool, device=batch.source.device)
        is_chosen[rows] = True
        labels = batch.target_output.masked_fill(~is_chosen, PAD_ID)  # [B, T]
        result = training_loss(*batch._replace(target_output=labels))
        loss: Tensor = result.objective * scale
        return loss

    model, every_row = training_loss.model, list(range(len(batch.source)))
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}

    def bad_gradient(rows: list[int]) -> str:
        """The parameter nearest to the loss whose gradient is not finite, or nothing."""
        loss = loss_of(rows)
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        found = [
            name
            for name, each in zip(trained, gradients, strict=True)
            if each is not None and not each.isfinite().all()
        ]
        return found[-1] if found else ""

    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return NonFinite(f"the weights {name}", every_row, [])
    with torch.no_grad():
        with record(model) as tensors:
            loss = loss_of(every_row)
        stages = []
        values = {name: each for name, each in tensors.items() if each.is_floating_point()}
        for name, tensor in values.items():
            if not tensor.isfinite().all():
                first = first_while_reading(values, model, name)
                stages.append(Stage(first, float(values[first].abs().max())))
                return NonFinite(first, bad_rows(values[first], len(batch.source)), stages)
            stages.append(Stage(name, float(tensor.abs().max())))
        if not loss.isfinite():
            rows = smallest_part(every_row, lambda part: not loss_of(part).isfinite())
            return NonFinite("the logits of head", rows, stages)
    if bad_gradient(every_row):
        rows = smallest_part(every_row, lambda part: bool(bad_gradient(part)))
        return NonFinite(f"the gradient of {bad_gradient(rows)}", rows, stages)
    return None


def first_while_reading(values: dict[str, Tensor], model: nn.Module, name: str) -> str:
    """What went wrong first where words are read one by one, and each value is made of others.

    A value of a recurrence is recorded for all words at once, so that the gates of later words,
    which only pass on what is no number, would come before the candidate that began it.
    """
    path = name.rpartition(".")[0]
    layer = model.get_submodule(path)
    if not isinstance(layer, Recurrence):
        return name
    own = {each: value for each, value in values.items() if each.rpartition(".")[0] == path}

    def first_word(each: str) -> int:
        is_bad = ~own[each].isfinite().all(dim=2).all(dim=0)  # [T]
        order = is_bad.flip(0) if layer.is_backward else is_bad
        return int(order.nonzero().flatten()[0]) if is_bad.any() else len(is_bad)

    return min(own, key=first_word)


def bad_rows(tensor: Tensor, num_rows: int) -> list[int]:
    """The rows of a batch in which a tensor is not finite; all, where it is not about rows."""
    if len(tensor) % num_rows:  # a table of positions
        return list(range(num_rows))
    is_bad = ~tensor.isfinite().flatten(1).all(dim=1)  # [B], or twice that for two dropout passes
    return sorted({place % num_rows for place in is_bad.nonzero().flatten().tolist()})


def smallest_part(rows: list[int], is_bad: Callable[[list[int]], bool]) -> list[int]:
    """Halve bad rows for as long as one half is bad by itself."""
    while len(rows) > 1:
        middle = len(rows) // 2
        halves = (rows[:middle], rows[middle:])
        worse = next((half for half in halves if is_bad(half)), None)
        if worse is None:
            break
        rows = worse
    return rows


FOLDER, BATCH, WEIGHTS = "diverged", "batch.json", "model.safetensors"
MOST_PAIRS, MOST_LETTERS = 3, 120  # that are shown


@dataclass(kw_only=True, frozen=True)
class NonFiniteReport:
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


def nonfinite_gradient_error(
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
        places = stream.next_indices()[ranks.rank :: ranks.world_size].tolist()
        batch_seed = fold_in(seed, step, ranks.rank << 32 | number)
        scale = ranks.world_size / loss.count
        trouble = locate_nonfinite(training_loss, batch, seed=batch_seed, scale=scale)
        if trouble and places and not found:
            pairs = [trainer.encoded["train"][place] for place in places]
            incident = NonFiniteReport(
                step=step, seed=batch_seed, scale=scale, start_id=trainer.tokenizer.start_id,
                part=trouble.part, rows=tuple(trouble.rows),
                examples=examples(trainer.corpus.train, [places[row] for row in trouble.rows]),
                sources=tuple(tuple(pair.source) for pair in pairs),
                targets=tuple(tuple(pair.target) for pair in pairs),
            )  # fmt: skip
            found = json.dumps(dataclasses.asdict(incident)).encode()
    told = [each for each in ranks.gather(found) if each]
    what = f"the gradient of step {step} is {norm} (loss {loss.mean:.4g}, learning rate {rate:.4g})"
    incident = parsed(json.loads(told[0]), "told") if told else NonFiniteReport(step=step)
    return keep(trainer, incident, what)


def nonfinite_loss_error(trainer: "Trainer", name: str, evaluation: Evaluation) -> DivergedError:
    """Find and keep what made a split's loss no number."""
    encoded = trainer.encoded[name][: len(trainer.texts[name])]
    start_id, step = trainer.tokenizer.start_id, trainer.state.step
    incident = NonFiniteReport(step=step)
    training_loss = TrainingLoss(trainer.model, trainer.config.training)
    for places in batches_by_length(encoded, trainer.config.evaluation.batch_size):
        pairs = [encoded[place] for place in places]
        batch = make_batch(pairs, start_id).to(trainer.device)
        with eval_mode(trainer.model):
            is_finite = torch.tensor(teacher_forced(trainer.model, batch)[0]).isfinite()
            trouble = (
                None if is_finite else locate_nonfinite(training_loss, batch, seed=0, scale=1.0)
            )
        if trouble:
            incident = NonFiniteReport(
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
        shown = escape_controls(" → ".join(pair))
        shown = shown if len(shown) <= MOST_LETTERS else f"{shown[: MOST_LETTERS - 1]}…"
        found.append(f"{split.report.unit} {number} of {split.source.name}: {shown}")
    return tuple(found)


def keep(trainer: "Trainer", incident: NonFiniteReport, what: str) -> DivergedError:
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


def read_nonfinite_report(folder: Path) -> NonFiniteReport:
    """Read back what `keep` wrote."""
    path = folder / BATCH
    data = read_json_with_checksum(read_own_file(path, MAX_JSON_BYTES), str(path))
    return parsed(data, str(path))


def parsed(data: Any, where: str) -> NonFiniteReport:
    """An incident from plain data, of which nothing is believed."""
    mistakes: list[Mistake] = []
    incident: NonFiniteReport = build_section(NonFiniteReport, data, "incident", mistakes)
    if mistakes:
        raise CheckpointError(f"{where}: {mistakes[0].message}")
    if not incident.sources or len(incident.sources) != len(incident.targets):
        raise CheckpointError(f"{where}: has no sentence pairs")
    return incident


PAIRS = 64
LITTLE = 0.05  # of the loss of a token
SHARE = 0.1  # of what it once was
EARLIEST = 100  # steps; before, a run is still finding out


class SourceDependence:
    """Warns, once in a sitting, when the source has no say in what comes out."""

    def __init__(
        self, model: EncoderDecoder, splits: dict[str, EncodedSplit], start_id: int
    ) -> None:
        self.model = model
        self.pairs = splits.get("valid", splits["train"])
        self.start_id = start_id
        self.has_warned = False

    def warning(self, state: TrainerState, steps: int) -> str:
        """What to say after an evaluation; the state notes how much the source was once worth."""
        gain = source_gain(self.model, self.pairs, self.start_id)
        if gain is None or not math.isfinite(gain):
            return ""
        before = state.most_source_gain
        state.most_source_gain = max(before, gain)
        has_lost = gain < LITTLE and before > LITTLE / SHARE
        has_never = gain < LITTLE and state.step >= max(EARLIEST, steps / 2)
        if self.has_warned or not (has_lost or has_never):
            return ""
        self.has_warned = True
        told = "no higher" if gain <= 0 else f"only {gain:.3f} higher"
        told = f"with another sentence's source, the loss is {told}"
        if has_lost:
            return (
                f"after step {state.step} translations no longer depend on the source: {told} "
                f"(it was {before:.3f}); a lower training.learning_rate may prevent that"
            )
        return (
            f"after step {state.step} the source does not help to translate: {told}; "
            "does each line stand beside its own translation?"
        )


def source_gain(model: EncoderDecoder, encoded: EncodedSplit, start_id: int) -> float | None:
    """How much higher a token's loss is with another sentence's source; None: too few pairs."""
    by_source: dict[tuple[int, ...], EncodedPair] = {}
    for pair in encoded[:PAIRS]:
        by_source.setdefault(tuple(pair.source), pair)
    if len(by_source) < 2:
        return None
    pairs = sorted(by_source.values(), key=lambda pair: len(pair.source))
    batch = make_batch(pairs, start_id).to(model.head.weight.device)
    right, _ = teacher_forced(model, batch)
    wrong, _ = teacher_forced(model, batch._replace(source=batch.source.roll(1, dims=0)))
    return (wrong - right) / batch.num_target_tokens
