"""Where numbers stop being numbers: which sentence pairs, and which part of the model first.

B batch, T target.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minitransformer.data.batching import Batch
from minitransformer.data.tokens import PAD_ID
from minitransformer.model.loss import TrainingLoss
from minitransformer.model.recurrent import Recurrence
from minitransformer.model.trace import record


class Stage(NamedTuple):
    """One tensor on the way through the model."""

    name: str  # such as decoder.layers.0.cross_attention.scores
    largest: float  # the highest absolute value; nan where one is not a number


class Trouble(NamedTuple):
    """The first thing that is not finite when a batch is computed once more."""

    part: str
    rows: list[int]  # of the batch: the sentences that it happens with
    stages: list[Stage]  # up to there


def find_trouble(
    training_loss: TrainingLoss, batch: Batch, *, seed: int, scale: float
) -> Trouble | None:
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
            return Trouble(f"the weights {name}", every_row, [])
    with torch.no_grad():
        with record(model) as tensors:
            loss = loss_of(every_row)
        stages = []
        values = {name: each for name, each in tensors.items() if each.is_floating_point()}
        for name, tensor in values.items():
            if not tensor.isfinite().all():
                first = first_while_reading(values, model, name)
                stages.append(Stage(first, float(values[first].abs().max())))
                return Trouble(first, bad_rows(values[first], len(batch.source)), stages)
            stages.append(Stage(name, float(tensor.abs().max())))
        if not loss.isfinite():
            rows = smallest_part(every_row, lambda part: not loss_of(part).isfinite())
            return Trouble("the logits of head", rows, stages)
    if bad_gradient(every_row):
        rows = smallest_part(every_row, lambda part: bool(bad_gradient(part)))
        return Trouble(f"the gradient of {bad_gradient(rows)}", rows, stages)
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
        order = is_bad.flip(0) if layer.is_leftward else is_bad
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
