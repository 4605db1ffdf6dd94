"""The training loss: cross-entropy with label smoothing, and R-Drop.

`head_loss` is the formula. `chunked_head_loss` returns the same numbers without ever holding a
tensor of all logits, and is what training uses.
N labels, P passes over them (two with R-Drop), C rows of a chunk, D d_model, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from minitransformer.model.base import EncoderDecoder
from minitransformer.settings import TrainingConfig


class HeadLoss(NamedTuple):
    """The loss of some labels; only the objective has a gradient."""

    objective: Float[Tensor, ""]  # what training minimises, summed over the labels
    loss: Float[Tensor, ""]  # the summed cross-entropy of the first pass, without label smoothing
    num_right: Int[Tensor, ""]  # labels that have the highest logit in the first pass


def cross_entropy(
    logits: Float[Tensor, "*labels vocab"],
    labels: Int[Tensor, "*labels"],
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    """Return -Σ_n Σ_v q_n(v) log p_n(v), where p = softmax(logits).

    With label smoothing ε (Szegedy et al., 2016), q is ε/V for each token, plus 1 - ε for the
    label.
    """
    return functional.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def symmetric_kl(
    p_logits: Float[Tensor, "labels vocab"], q_logits: Float[Tensor, "labels vocab"]
) -> Float[Tensor, ""]:
    """Return Σ_n (KL(p_n ‖ q_n) + KL(q_n ‖ p_n)) / 2."""
    log_p, log_q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum() / 2


def head_loss(
    states: Float[Tensor, "rows d_model"],
    head: nn.Linear,
    labels: Int[Tensor, " labels"],
    label_smoothing: float = 0.0,
    rdrop_alpha: float = 0.0,
) -> HeadLoss:
    """Return the cross-entropy of the head's logits, summed over the labels.

    With `rdrop_alpha` α, the states are those of two dropout passes, one after the other, and the
    objective is the mean of both cross-entropies plus α/2 (KL(p ‖ q) + KL(q ‖ p)) / 2: half of
    R-Drop's loss (Liang et al., 2021), which sums the two cross-entropies.
    """
    logits = head(states)  # [P·N, V]
    if not rdrop_alpha:
        objective = cross_entropy(logits, labels, label_smoothing)
    else:
        both = cross_entropy(logits, labels.repeat(2), label_smoothing)
        objective = both / 2 + rdrop_alpha / 2 * symmetric_kl(*logits.chunk(2))
    first = logits[: len(labels)].detach()
    num_right = (first.argmax(dim=-1) == labels).sum()
    return HeadLoss(objective, cross_entropy(first, labels), num_right)


class TrainingLoss(nn.Module):
    """A model with its loss, as one module: what `DistributedDataParallel` wraps."""

    def __init__(self, model: EncoderDecoder, config: TrainingConfig) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = config.label_smoothing
        self.rdrop_alpha = config.rdrop_alpha
        self.precision = config.precision

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_input: Int[Tensor, "batch target"],
        target_output: Int[Tensor, "batch target"],
    ) -> HeadLoss:
        """Return the loss of all labels that are not padding; the head computes no others."""
        is_label = target_output != self.model.pad_id  # [B, T]
        labels = target_output[is_label]  # [N]
        if self.rdrop_alpha:  # every sentence twice, each time with a dropout mask of its own
            source, target_input, is_label = (
                torch.cat((each, each)) for each in (source, target_input, is_label)
            )
        head, use_bf16 = self.model.head, self.precision == "bf16"
        with torch.autocast(source.device.type, dtype=torch.bfloat16, enabled=use_bf16):
            memory = self.model.encode(source)
            states = self.model.decode_states(target_input, memory)[is_label]  # [P·N, D]
        states = states.to(head.weight.dtype)  # logits need float32
        return chunked_head_loss(states, head, labels, self.label_smoothing, self.rdrop_alpha)


# The size of the buffer of logits. On a CPU 6 MB: enough rows for fast products, within its cache.
LOGITS_PER_CHUNK = {"cpu": 3 * 2**19, "cuda": 2**26, "mps": 2**26}


def rows_per_chunk(weight: Float[Tensor, "vocab d_model"]) -> int:
    """Return for how many rows logits are computed at once."""
    return max(1, LOGITS_PER_CHUNK[weight.device.type] // len(weight))


def chunked_head_loss(
    states: Float[Tensor, "rows d_model"],
    head: nn.Linear,
    labels: Int[Tensor, " labels"],
    label_smoothing: float = 0.0,
    rdrop_alpha: float = 0.0,
) -> HeadLoss:
    """Return what `head_loss` returns, computed chunk by chunk.

    The gradient of a chunk is computed in the forward pass, together with its logits, so that no
    tensor of size [N, V] is ever kept. With a vocabulary of 10,000 and d_model 128, a training
    step takes 27 % less time than with one `functional.cross_entropy`, and 200 MB less memory.
    """
    results = ChunkedHeadLoss.apply(  # type: ignore[no-untyped-call]
        states, head.weight, head.bias, labels, label_smoothing, rdrop_alpha
    )
    return HeadLoss(*results)


class ChunkedHeadLoss(torch.autograd.Function):
    """Compute the gradients in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        label_smoothing: float,
        rdrop_alpha: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        objective, loss = states.new_zeros(()), states.new_zeros(())
        num_right = labels.new_zeros(())
        needs_gradient = ctx.needs_input_grad[:3]
        gradients = [
            torch.zeros_like(each) if needed and each is not None else None
            for each, needed in zip((states, weight, bias), needs_gradient, strict=True)
        ]
        states_grad, weight_grad, bias_grad = gradients
        uniform = label_smoothing / len(weight)  # what the target distribution gives to every token
        weight_sum = weight.sum(dim=0)  # [D]; the sum of a row's logits is a product with it
        bias_sum = states.new_zeros(()) if bias is None else bias.sum()
        passes, kl_weight = 2 if rdrop_alpha else 1, rdrop_alpha / 2
        by_pass = states.reshape(passes, len(labels), states.shape[1])  # [P, N, D]
        rows = max(1, rows_per_chunk(weight) // passes)
        # One buffer of logits for all chunks.
        buffer = states.new_empty(passes * min(rows, len(labels)), len(weight))
        for start in range(0, len(labels), rows):
            chunk = by_pass[:, start : start + rows].flatten(0, 1)  # [P·C, D]
            label = labels[start : start + rows].repeat(passes)[:, None]  # [P·C, 1]
            logits = torch.mm(chunk, weight.t(), out=buffer[: len(chunk)])  # [P·C, V]
            if bias is not None:
                logits += bias
            at_label = logits.gather(1, label)
            highest = logits.amax(dim=1, keepdim=True)
            log_ratio = torch.sub(*logits.chunk(passes)) if rdrop_alpha else None  # [C, V]
            probabilities = torch.softmax(logits, dim=1, out=logits)  # [P·C, V]
            # log Σ exp(logit - highest); the largest probability is never too small for a logarithm
            log_sum = -probabilities.amax(dim=1, keepdim=True).log()
            nll = highest - at_label + log_sum
            log_sums = highest + log_sum  # log Σ exp(logit)
            first = len(chunk) // passes
            loss += nll[:first].sum()
            num_right += (at_label == highest)[:first].sum()
            sum_of_logits = (chunk @ weight_sum + bias_sum).sum()
            smoothed = (1 - label_smoothing) * nll.sum() + label_smoothing * log_sums.sum()
            objective += (smoothed - uniform * sum_of_logits) / passes
            if log_ratio is not None:
                kl = add_kl_gradient(probabilities, log_ratio, log_sums, kl_weight)
                objective += kl_weight / 2 * kl
            if not any(needs_gradient):
                continue
            # The gradient for the logits is softmax - target distribution, whose uniform part is
            # subtracted after the loop.
            probabilities.scatter_add_(1, label, torch.full_like(at_label, label_smoothing - 1))
            if states_grad is not None:
                chunk_grad = states_grad.view_as(by_pass)[:, start : start + rows]
                chunk_grad.copy_(torch.mm(probabilities, weight).view_as(chunk_grad))
            if weight_grad is not None:
                weight_grad.addmm_(probabilities.t(), chunk)
            if bias_grad is not None:
                bias_grad += probabilities.sum(dim=0)
        parts = (weight_sum, states.sum(dim=0), states.new_tensor(len(states)))
        for gradient, part in zip(gradients, parts, strict=True):
            if gradient is not None:
                if label_smoothing:
                    gradient -= uniform * part
                if passes > 1:
                    gradient /= passes
        ctx.gradients = gradients
        ctx.mark_non_differentiable(loss, num_right)
        return objective, loss, num_right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if each is None else each * scale for each in ctx.gradients)
        return *scaled, None, None, None


def add_kl_gradient(
    probabilities: Tensor, log_ratio: Tensor, log_sums: Tensor, kl_weight: float
) -> Tensor:
    """Return KL(p‖q) + KL(q‖p), summed over the rows, and add its gradient to `probabilities`.

    `probabilities` are p and q, one after the other, and `log_ratio` is the difference of their
    logits. The gradient for the logits of p is p (log p/q - KL(p‖q)) + p - q, and likewise for q.
    """
    p, q = probabilities.chunk(2)  # [C, V]
    log_ratio -= torch.sub(*log_sums.chunk(2))  # log p/q
    to_q = torch.linalg.vecdot(p, log_ratio)[:, None]  # KL(p‖q)
    to_p = -torch.linalg.vecdot(q, log_ratio)[:, None]
    log_ratio *= kl_weight
    difference = (p - q).mul_(kl_weight)
    p.addcmul_(p, log_ratio - kl_weight * to_q).add_(difference)
    q.addcmul_(q, log_ratio + kl_weight * to_p, value=-1).sub_(difference)
    total: Tensor = to_q.sum() + to_p.sum()
    return total
