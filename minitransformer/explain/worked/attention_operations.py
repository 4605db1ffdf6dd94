"""Attention and positions for formulas: the functions and layers that models are made of."""

from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.explain.worked.matrices import Value, expect, matrix, size, whole
from minitransformer.model.attention import (
    AttentionOutput,
    apply_mask,
    attend,
    causal_mask,
    dot_scores,
    multiplicative_scores,
)
from minitransformer.model.positional import position_angles, sinusoid_table
from minitransformer.model.transformer import MultiHeadAttention
from minitransformer.settings import ModelConfig


def similarity(query: Value, key: Value) -> Tensor:
    query, key = matrix(query), matrix(key)
    fits = query.shape[1] == key.shape[1]
    expect(fits, f"queries {size(query)} and keys {size(key)} differ in width")
    return dot_scores(query, key)


def multiplicative(query: Value, weight: Value, key: Value) -> Tensor:
    query, weight, key = matrix(query), matrix(weight), matrix(key)
    fits = weight.shape == (query.shape[1], key.shape[1])
    expect(fits, f"{size(query)}, W {size(weight)} and keys {size(key)} cannot be multiplied")
    return multiplicative_scores(query, weight, key)


def scaled(scores: Value, width: Value) -> Tensor:
    number = matrix(width)
    is_width = number.numel() == 1 and float(number) > 0
    expect(is_width, "the width, whose root divides, must be a positive number")
    return matrix(scores) / number.sqrt()


def masked(scores: Value) -> Tensor:
    scores = matrix(scores)
    is_square = scores.shape[0] == scores.shape[1]
    expect(is_square, f"scores of all tokens are square; these are {size(scores)}")
    return apply_mask(scores, causal_mask(*scores.shape))


def attended(
    query: Value, key: Value, value: Value, *, scaled: bool, masked: bool
) -> AttentionOutput:
    query, key, value = matrix(query), matrix(key), matrix(value)
    similarity(query, key)
    fits = key.shape[0] == value.shape[0]
    expect(fits, f"keys {size(key)} and values {size(value)} differ in number")
    mask = causal_mask(len(query), len(key)) if masked else None
    return attend(query, key, value, mask, scale_scores=scaled)


def attention(
    query: Value, key: Value, value: Value, scaled: bool = True, masked: bool = False
) -> Tensor:
    return attended(query, key, value, scaled=scaled, masked=masked).context


def attention_weights(
    query: Value, key: Value, scaled: bool = True, masked: bool = False
) -> Tensor:
    return attended(query, key, key, scaled=scaled, masked=masked).weights


def our_layer(
    queries: Value,
    looked_at: Value,
    w_query: Value,
    w_key: Value,
    w_value: Value,
    w_output: Value,
    masked: bool = False,
) -> Tensor:
    """Our MultiHeadAttention with one head and a sheet's matrices."""
    queries, looked_at = matrix(queries), matrix(looked_at)
    config = ModelConfig(d_model=queries.shape[1], attention_output=True)
    layer = MultiHeadAttention(config).double()
    assert layer.output is not None
    for linear, weight in (
        (layer.query, w_query), (layer.key, w_key), (layer.value, w_value),
        (layer.output, w_output),
    ):  # fmt: skip
        linear.weight.copy_(matrix(weight).T)
    mask = mask_of(queries, looked_at, masked)
    output: Tensor = layer(queries[None], looked_at[None], mask[None, None])
    return output[0]


def torch_layer(
    queries: Value,
    looked_at: Value,
    w_query: Value,
    w_key: Value,
    w_value: Value,
    w_output: Value,
    masked: bool = False,
) -> Tensor:
    """torch.nn.MultiheadAttention with one head and a sheet's matrices."""
    queries, looked_at = matrix(queries), matrix(looked_at)
    layer = nn.MultiheadAttention(
        queries.shape[1], 1, bias=False, batch_first=True, dtype=torch.float64
    )
    projections = [matrix(weight).T for weight in (w_query, w_key, w_value)]
    layer.in_proj_weight.copy_(torch.cat(projections))
    layer.out_proj.weight.copy_(matrix(w_output).T)
    hidden = ~mask_of(queries, looked_at, masked)
    output: Any = layer(queries[None], looked_at[None], looked_at[None], attn_mask=hidden)
    return matrix(output[0][0])


def mask_of(queries: Tensor, looked_at: Tensor, masked: bool) -> Tensor:
    lengths = len(queries), len(looked_at)
    return causal_mask(*lengths) if masked else torch.ones(*lengths, dtype=torch.bool)


def even(width: Value) -> int:
    number = whole(width, "width", low=2)
    expect(number % 2 == 0, f"width: expected an even number, got {number}")
    return number


def angles(position: Value, width: int) -> Tensor:
    place = whole(position, "position", low=0)
    return position_angles(torch.tensor([place]), width, torch.float64)


def sinusoid(position: Value, width: Value) -> Tensor:
    """One row of the sinusoid table, as the paper has it."""
    return sinusoid_table(whole(position, "position", low=0) + 1, even(width), torch.float64)[-1:]


def boxed_sinusoid(position: Value, width: Value) -> Tensor:
    """The row that the exponent (2i+1)/d of a printed cosine formula gives."""
    # Twice the width halves the exponents' distance: 0/d, 1/d, 2/d, ... for the dimensions in turn.
    both = angles(position, 2 * even(width))
    return torch.stack((both[:, 0::2].sin(), both[:, 1::2].cos()), dim=-1).flatten(-2)


def sinusoid_in_degrees(position: Value, width: Value) -> Tensor:
    """The row of the sinusoid table on a calculator that was set to degrees."""
    turned = angles(position, even(width)).deg2rad()
    return torch.stack((turned.sin(), turned.cos()), dim=-1).flatten(-2)
