"""Training that diverges: where NaN or Inf began, saved with the batch that produced them.

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

from minitransformer.checkpoint import model_tensors, tensor_bytes
from minitransformer.config import Mistake, build_section
from minitransformer.data.batching import Batch, fold_in, make_batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import CheckpointError, DivergedError, escape_controls
from minitransformer.evaluation import Evaluation, batches_by_length, teacher_forced
from minitransformer.metrics import Sum
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

DIVERGED_FOLDER, BATCH_FILE, WEIGHTS_FILE = "diverged", "batch.json", "model.safetensors"
MAX_EXAMPLES, MAX_CHARACTERS = 3, 120  # of the pairs in an error message


@dataclass(kw_only=True, frozen=True)
class NonFiniteReport:
    """A batch that gave NaN or Inf, what it takes to compute it again, and where they began."""

    step: Annotated[int, Range(0, 2**53)] = 0
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0  # that torch had before this batch
    scale: Annotated[float, Range(0, 1e30)] = 1.0  # of its summed loss
    start_id: Annotated[int, Range(0, 10**9)] = 0
    is_training: bool = True
    part: str = ""  # of the model, where it began
    rows: tuple[int, ...] = ()  # of the batch, in which it happened
    examples: tuple[str, ...] = ()  # the first of them: "line 7: I go home → Voy a casa"
    sources: tuple[tuple[int, ...], ...] = ()
    targets: tuple[tuple[int, ...], ...] = ()

    def batch(self) -> Batch:
        pairs = zip(self.sources, self.targets, strict=True)
        return make_batch([EncodedPair(list(a), list(b)) for a, b in pairs], self.start_id)

    def description(self) -> str:
        """Return where it began, and with which sentences."""
        if not self.part:
            return "each batch by itself is finite, only their sum is not"
        pairs = "; ".join(self.examples)
        if len(self.rows) > len(self.examples):
            count = "all" if len(self.rows) == len(self.sources) else f"{len(self.rows)} of"
            pairs = f"{count} {len(self.sources)} pairs of its batch, such as {self.examples[0]}"
        return f"it begins in {self.part}, with {pairs}"


class TensorMaximum(NamedTuple):
    """The largest absolute value of one tensor of a forward pass."""

    name: str  # such as decoder.layers.0.cross_attention.scores
    value: float  # NaN where the tensor has one


class NonFinite(NamedTuple):
    """The first tensor that is not finite when a batch is computed again."""

    part: str
    rows: list[int]  # of the batch, in which it happens
    maxima: list[TensorMaximum]  # of all tensors up to there


def nonfinite_gradient_error(
    trainer: "Trainer", batches: list[Batch], step: int, rate: float, loss: Sum, norm: float
) -> DivergedError:
    """Locate and save what made a step's gradient NaN or Inf; each rank searches its batches."""
    ranks, training = trainer.ranks, trainer.config.training
    trainer.model.zero_grad()
    training_loss = TrainingLoss(trainer.model, training)
    trainer.stream.move_to(epoch=trainer.state.epoch, index=trainer.state.batch_index)
    found = b""
    for number, batch in enumerate(batches):
        indices = trainer.stream.next_indices()[ranks.rank :: ranks.world_size].tolist()
        seed = fold_in(training.seed, step, ranks.rank << 32 | number)
        scale = ranks.world_size / loss.count
        nonfinite = locate_nonfinite(training_loss, batch, seed=seed, scale=scale)
        if nonfinite and indices:
            report = NonFiniteReport(step=step, seed=seed, scale=scale)
            report = complete_report(report, trainer, nonfinite, "train", indices)
            found = json.dumps(dataclasses.asdict(report)).encode()
            break
    reports = [each for each in ranks.gather(found) if each]
    report = NonFiniteReport(step=step)
    if reports:
        report = parse_report(json.loads(reports[0]), "report of a rank")
    what = f"the gradient of step {step} is {norm} (loss {loss.mean:.4g}, learning rate {rate:.4g})"
    return nonfinite_error(trainer, report, what)


def nonfinite_loss_error(trainer: "Trainer", name: str, evaluation: Evaluation) -> DivergedError:
    """Locate and save what made a split's loss NaN or Inf."""
    encoded = trainer.encoded[name][: len(trainer.texts[name])]
    report = NonFiniteReport(step=trainer.state.step, is_training=False)
    training_loss = TrainingLoss(trainer.model, trainer.config.training)
    for indices in batches_by_length(encoded, trainer.config.evaluation.batch_size):
        batch = make_batch([encoded[index] for index in indices], trainer.tokenizer.start_id)
        batch = batch.to(trainer.device)
        with eval_mode(trainer.model):
            if math.isfinite(teacher_forced(trainer.model, batch)[0]):
                continue
            nonfinite = locate_nonfinite(training_loss, batch, seed=0, scale=1.0)
        if nonfinite:
            report = complete_report(report, trainer, nonfinite, name, indices)
            break
    what = f"the {name} loss after step {trainer.state.step} is {evaluation.loss.mean}"
    return nonfinite_error(trainer, report, what)


def complete_report(
    report: NonFiniteReport, trainer: "Trainer", nonfinite: NonFinite, name: str, indices: list[int]
) -> NonFiniteReport:
    """Add the batch, which has these pairs of a split, and the text of the pairs that failed."""
    pairs, split = [trainer.encoded[name][index] for index in indices], trainer.corpus.splits[name]
    examples = []
    for index in sorted(indices[row] for row in nonfinite.rows)[:MAX_EXAMPLES]:
        number, pair = next(islice(split.numbered(), index, None))
        text = escape_controls(" → ".join(pair))
        text = text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
        examples.append(f"{split.report.unit} {number} of {split.source.name}: {text}")
    return dataclasses.replace(
        report,
        start_id=trainer.tokenizer.start_id,
        part=nonfinite.part,
        rows=tuple(nonfinite.rows),
        examples=tuple(examples),
        sources=tuple(tuple(pair.source) for pair in pairs),
        targets=tuple(tuple(pair.target) for pair in pairs),
    )


def nonfinite_error(trainer: "Trainer", report: NonFiniteReport, what: str) -> DivergedError:
    """Save a report and the weights in the run folder; return the error that describes them."""
    folder = trainer.run_folder.path / DIVERGED_FOLDER / f"step-{report.step:06d}"
    inspect = ""
    if report.sources:
        inspect = f"; to inspect it: minitransformer doctor --replay {folder}"
        weights = tensor_bytes(model_tensors(trainer.model))
        batch = json_with_checksum(dataclasses.asdict(report))
        try:
            if trainer.ranks.is_first:
                replace_folder(folder, {WEIGHTS_FILE: weights, BATCH_FILE: batch})
        except OSError as error:  # the divergence is to be reported in any case
            inspect = f" (its batch could not be saved: {error.strerror})"
    saved, again = "There is no checkpoint yet", ""
    if trainer.run_folder.has_started:
        saved, again = "Checkpoints are unchanged", " with --fresh"
    return DivergedError(
        f"{what}; {report.description()}. {saved}. Lower training.learning_rate, set or lower "
        f"training.clip_norm, and start again{again}{inspect}"
    )


def read_nonfinite_report(folder: Path) -> NonFiniteReport:
    """Read the report that `nonfinite_error` saved."""
    path = folder / BATCH_FILE
    data = read_json_with_checksum(read_own_file(path, MAX_JSON_BYTES), str(path))
    return parse_report(data, str(path))


def parse_report(data: Any, where: str) -> NonFiniteReport:
    """Build a report from untrusted data, or refuse it."""
    mistakes: list[Mistake] = []
    report: NonFiniteReport = build_section(NonFiniteReport, data, "report", mistakes)
    if mistakes:
        raise CheckpointError(f"{where}: {mistakes[0].message}")
    if not report.sources or len(report.sources) != len(report.targets):
        raise CheckpointError(f"{where}: has no sentence pairs")
    return report


def locate_nonfinite(
    training_loss: TrainingLoss, batch: Batch, *, seed: int, scale: float
) -> NonFinite | None:
    """Compute a batch as training did, with the same random numbers, and check every tensor.

    In order: weights, tensors of the forward pass, loss, gradients. `scale` is the factor of the
    summed loss.
    """
    model, every_row = training_loss.model, list(range(len(batch.source)))
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return NonFinite(f"the weights {name}", every_row, [])

    def loss_of(rows: list[int]) -> Tensor:
        """Mask the labels of all other rows: dropout stays the same for these sentences."""
        torch.manual_seed(seed)
        is_chosen = torch.zeros(len(batch.source), 1, dtype=torch.bool, device=batch.source.device)
        is_chosen[rows] = True
        labels = batch.target_output.masked_fill(~is_chosen, PAD_ID)  # [B, T]
        result = training_loss(*batch._replace(target_output=labels))
        loss: Tensor = result.objective * scale
        return loss

    maxima = []
    with torch.no_grad():
        with record(model) as tensors:
            loss = loss_of(every_row)
        values = {name: each for name, each in tensors.items() if each.is_floating_point()}
        for name, tensor in values.items():
            if not tensor.isfinite().all():
                first = first_in_recurrence(values, model, name)
                maxima.append(TensorMaximum(first, float(values[first].abs().max())))
                return NonFinite(first, bad_rows(values[first], len(batch.source)), maxima)
            maxima.append(TensorMaximum(name, float(tensor.abs().max())))
        if not loss.isfinite():
            rows = bisect_rows(every_row, lambda part: not loss_of(part).isfinite())
            return NonFinite("the logits of head", rows, maxima)

    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}

    def bad_gradient(rows: list[int]) -> str:
        """Return the parameter nearest to the loss whose gradient is not finite, or nothing."""
        gradients = torch.autograd.grad(loss_of(rows), list(trained.values()), allow_unused=True)
        for name, gradient in reversed(list(zip(trained, gradients, strict=True))):
            if gradient is not None and not gradient.isfinite().all():
                return name
        return ""

    if bad_gradient(every_row):
        rows = bisect_rows(every_row, lambda part: bool(bad_gradient(part)))
        return NonFinite(f"the gradient of {bad_gradient(rows)}", rows, maxima)
    return None


def first_in_recurrence(values: dict[str, Tensor], model: nn.Module, name: str) -> str:
    """Return the tensor of a recurrent layer that is not finite at the earliest word.

    Each tensor of a recurrence is recorded for all words at once, so that the gates of later words,
    which only pass NaN on, would come before the candidate in which it began.
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
    """Return the rows of a batch in which a tensor is not finite; all, if it has no batch axis."""
    if len(tensor) % num_rows:  # a table of positions
        return list(range(num_rows))
    is_bad = ~tensor.isfinite().flatten(1).all(dim=1)  # [B], or twice that for two dropout passes
    return sorted({index % num_rows for index in is_bad.nonzero().flatten().tolist()})


def bisect_rows(rows: list[int], is_bad: Callable[[list[int]], bool]) -> list[int]:
    """Halve bad rows for as long as one half is bad by itself."""
    while len(rows) > 1:
        middle = len(rows) // 2
        bad_half = next((half for half in (rows[:middle], rows[middle:]) if is_bad(half)), None)
        if bad_half is None:
            break
        rows = bad_half
    return rows
