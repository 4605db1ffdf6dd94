"""The dense head and its cross-entropy in one, some rows at a time: never a tensor of all logits.

The formula is `summed_loss(head(states), labels)`, and the numbers are the same. Here the gradient
of a chunk is made while its logits are at hand, so that nothing of size [N, V] is ever kept.
N places, P passes over them, C chunk, D d_model, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

# On a processor 6 MB: enough rows for fast products, few enough to stay in its cache.
LOGITS_AT_A_TIME = {"cpu": 3 * 2**19, "cuda": 2**26, "mps": 2**26}


def rows_at_a_time(weight: Float[Tensor, "vocab d_model"]) -> int:
    """How many rows have their logits computed together."""
    return max(1, LOGITS_AT_A_TIME[weight.device.type] // len(weight))


class HeadLoss(NamedTuple):
    """How far a model was from its labels; the objective alone has a gradient."""

    objective: Float[Tensor, ""]  # summed, with label smoothing and consistency
    loss: Float[Tensor, ""]  # summed, without; of the first pass
    num_right: Int[Tensor, ""]  # labels that have the highest logit in the first pass


def head_loss(
    states: Float[Tensor, "rows d_model"],
    head: torch.nn.Linear,
    labels: Int[Tensor, " places"],
    label_smoothing: float = 0.0,
    consistency: float = 0.0,
) -> HeadLoss:
    """The cross-entropy of the head's logits, summed over the labels.

    With `consistency`, the states are those of two passes, one after the other: their mean, and
    that much of how far apart p and q are that they make of each place, (KL(p‖q) + KL(q‖p)) / 2.
    """
    results = Chunked.apply(  # type: ignore[no-untyped-call]
        states, head.weight, head.bias, labels, label_smoothing, consistency
    )
    return HeadLoss(*results)


class Chunked(torch.autograd.Function):
    """Makes the gradient on the way forward; the way back only scales it."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        label_smoothing: float,
        consistency: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(states.device.type, enabled=False):  # logits need all of their digits
            total, ctx.gradients = chunk_by_chunk(
                states.to(weight.dtype), weight, bias, labels, label_smoothing, consistency,
                is_wanted=ctx.needs_input_grad[:3],
            )  # fmt: skip
        ctx.mark_non_differentiable(total.loss, total.num_right)
        return total.objective, total.loss, total.num_right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if each is None else each * scale for each in ctx.gradients)
        return *scaled, None, None, None


def chunk_by_chunk(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    label_smoothing: float,
    consistency: float,
    is_wanted: tuple[bool, bool, bool],
) -> tuple[HeadLoss, list[Tensor | None]]:
    """The sums, and the objective's gradients for states, weight and bias where they are wanted."""
    objective, loss, num_right = states.new_zeros(()), states.new_zeros(()), labels.new_zeros(())
    inputs = (states, weight, bias)
    gradients = [
        torch.zeros_like(each) if wanted and each is not None else None
        for each, wanted in zip(inputs, is_wanted, strict=True)
    ]
    of_states, of_weight, of_bias = gradients
    uniform = label_smoothing / len(weight)  # what the target distribution gives to every token
    weight_sum = weight.sum(dim=0)  # [D]; the sum of a row's logits is a product with it
    bias_sum = states.new_zeros(()) if bias is None else bias.sum()
    passes = 2 if consistency else 1
    by_pass = states.reshape(passes, len(labels), states.shape[1])  # [P, N, D]
    rows = max(1, rows_at_a_time(weight) // passes)
    buffer = states.new_empty(passes * min(rows, len(labels)), len(weight))  # one for all chunks
    for start in range(0, len(labels), rows):
        chunk = by_pass[:, start : start + rows].flatten(0, 1)  # [P·C, D]
        label = labels[start : start + rows].repeat(passes)[:, None]  # [P·C, 1]
        logits = torch.mm(chunk, weight.t(), out=buffer[: len(chunk)])  # [P·C, V]
        if bias is not None:
            logits += bias
        at_label = logits.gather(1, label)
        highest = logits.amax(dim=1, keepdim=True)
        ratio = torch.sub(*logits.chunk(passes)) if consistency else None  # [C, V]
        weights = torch.softmax(logits, dim=1, out=logits)  # [P·C, V]
        # log Σ exp, above the highest logit; the largest weight is never too small for a logarithm
        rest = -weights.amax(dim=1, keepdim=True).log()
        plain = highest - at_label + rest
        first = len(chunk) // passes
        loss += plain[:first].sum()
        num_right += (at_label == highest)[:first].sum()
        sum_of_logits = (chunk @ weight_sum + bias_sum).sum()
        spread = (1 - label_smoothing) * plain.sum() + label_smoothing * (highest + rest).sum()
        objective += (spread - uniform * sum_of_logits) / passes
        if ratio is not None:
            objective += (
                consistency / 2 * draw_together(weights, ratio, highest + rest, consistency)
            )
        if not any(is_wanted):
            continue
        # The gradient for the logits is softmax - target distribution; its uniform part comes last.
        weights.scatter_add_(1, label, torch.full_like(at_label, label_smoothing - 1))
        if of_states is not None:
            of_chunk = of_states.view_as(by_pass)[:, start : start + rows]
            of_chunk.copy_(torch.mm(weights, weight).view_as(of_chunk))
        if of_weight is not None:
            of_weight.addmm_(weights.t(), chunk)
        if of_bias is not None:
            of_bias += weights.sum(dim=0)
    parts = (weight_sum, states.sum(dim=0), states.new_tensor(len(states)))
    for gradient, part in zip(gradients, parts, strict=True):
        if gradient is not None:
            if label_smoothing:
                gradient -= uniform * part
            if passes > 1:
                gradient /= passes
    return HeadLoss(objective, loss, num_right), gradients


def draw_together(weights: Tensor, ratio: Tensor, log_sums: Tensor, consistency: float) -> Tensor:
    """KL(p‖q) + KL(q‖p), summed over the rows of two passes p and q; adds its gradient to them.

    `ratio` is the difference of their logits. The gradient is that for p's logits, of which a
    cross-entropy has p: p (log p/q - KL(p‖q)) + p - q; and that for q's likewise.
    """
    p, q = weights.chunk(2)  # [C, V]
    ratio -= torch.sub(*log_sums.chunk(2))  # log p/q
    to_q = torch.linalg.vecdot(p, ratio)[:, None]  # KL(p‖q)
    to_p = -torch.linalg.vecdot(q, ratio)[:, None]
    ratio *= consistency
    difference = (p - q).mul_(consistency)
    p.addcmul_(p, ratio - consistency * to_q).add_(difference)
    q.addcmul_(q, ratio + consistency * to_p, value=-1).sub_(difference)
    total: Tensor = to_q.sum() + to_p.sum()
    return total
