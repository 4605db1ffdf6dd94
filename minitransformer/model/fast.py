"""Forms of dropout and softmax that are faster on CPUs, and that trained bits depend on."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

LEVELS = 2**16  # p is rounded to a multiple of 1/65,536, and the rest scaled accordingly


def dropout(x: Float[Tensor, "*shape"], p: float, training: bool) -> Float[Tensor, "*shape"]:
    """Set a share p of the values to zero and divide the others by 1 - p (Srivastava et al., 2014).

    With 16 random bits a value, a training step takes 4 to 11 % less time than with
    `functional.dropout`. That draws other masks from a seed, so it would change all trained bits.
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

    torch's is slow for many rows shorter than a processor's register. This saves only 2 % of a
    training step, but it rounds differently: without it, seeds would train other bits.
    """
    is_plain = scores.device.type == "cpu" and scores.dtype != torch.bfloat16
    if scores.shape[-1] >= 16 or scores.numel() < 1024 or not is_plain:
        return scores.softmax(dim=-1)
    exponentials = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)
