"""The mathematics of attention as pure functions: masks, heads, scores, softmax, context.

Masks are boolean, True = may look, and end in [query, key].
B batch, S source, T target, H heads, D d_model, K d_head; query and key lengths are either.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from minitransformer.model.dropout import drop

# Over fewer keys than fit into a processor's register, torch's softmax is slow; it shows with many.
SHORT, MANY = 16, 1024


class Attended(NamedTuple):
    """Every stage of one attention; `scores` are neither scaled nor masked."""

    scores: Float[Tensor, "*heads query key"]
    scaled: Float[Tensor, "*heads query key"]
    weights: Float[Tensor, "*heads query key"]
    context: Float[Tensor, "*heads query d_value"]


def padding_mask(ids: Int[Tensor, "batch length"], pad_id: int) -> Bool[Tensor, "batch 1 1 length"]:
    """May look at every token that is not padding."""
    return (ids != pad_id)[:, None, None, :]


def causal_mask(
    num_queries: int, num_keys: int, device: torch.device | None = None
) -> Bool[Tensor, "query key"]:
    """May look at itself and everything earlier; the queries are the last of the keys."""
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return mask.tril(num_keys - num_queries)


def split_heads(
    states: Float[Tensor, "batch length d_model"], num_heads: int
) -> Float[Tensor, "batch {num_heads} length d_head"]:
    """Cut the width into heads."""
    heads = states.reshape(*states.shape[:-1], num_heads, -1).transpose(1, 2)  # [B, H, T, K]
    return heads.contiguous()  # once, and not for each product that it is part of


def merge_heads(
    states: Float[Tensor, "batch heads length d_head"],
) -> Float[Tensor, "batch length d_model"]:
    """Put the heads side by side again."""
    return states.transpose(1, 2).flatten(-2)  # [B, T, D]


def dot_scores(
    query: Float[Tensor, "*heads query d_head"], key: Float[Tensor, "*heads key d_head"]
) -> Float[Tensor, "*heads query key"]:
    """Q Kᵀ: how well each query fits each key."""
    return query @ key.transpose(-2, -1)


def multiplicative_scores(
    query: Float[Tensor, "*heads query d_query"],
    weight: Float[Tensor, "d_query d_key"],
    key: Float[Tensor, "*heads key d_key"],
) -> Float[Tensor, "*heads query key"]:
    """Q W Kᵀ: the dot product after the key has been turned by a learned matrix."""
    return query @ weight @ key.transpose(-2, -1)


def hide(
    scores: Float[Tensor, "*heads query key"], mask: Bool[Tensor, "*mask_heads query_or_1 key"]
) -> Float[Tensor, "*heads query key"]:
    """Scores with -inf wherever a query may not look."""
    # -inf and not a large negative number: a network learns its way around any finite wall.
    return torch.where(mask, scores, float("-inf"))


def softmax(scores: Float[Tensor, "*heads query key"]) -> Float[Tensor, "*heads query key"]:
    """e^score / Σ e^score, for each query over its keys."""
    is_plain = scores.device.type == "cpu" and scores.dtype != torch.bfloat16
    if scores.shape[-1] >= SHORT or scores.numel() < MANY or not is_plain:
        return scores.softmax(dim=-1)
    exponentials = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def attend(
    query: Float[Tensor, "*heads query d_head"],
    key: Float[Tensor, "*heads key d_head"],
    value: Float[Tensor, "*heads key d_value"],
    mask: Bool[Tensor, "*mask_heads query_or_1 key"] | None = None,
    *,
    weight: Float[Tensor, "d_query d_key"] | None = None,
    scale_scores: bool = True,
    dropout: float = 0.0,
) -> Attended:
    """softmax(Q Kᵀ / √d_head) V, or of Q W Kᵀ, with every stage kept; `weights` before dropout."""
    scores = dot_scores(query, key) if weight is None else multiplicative_scores(query, weight, key)
    scaled = scores / query.shape[-1] ** 0.5 if scale_scores else scores
    allowed = scaled if mask is None else hide(scaled, mask)
    weights = softmax(allowed)
    context = drop(weights, dropout, training=True) @ value
    return Attended(scores, scaled, weights, context)
