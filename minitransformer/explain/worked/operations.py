"""What a sheet's formulas may call: our model's own functions, and torch's for the rest.

Everything is float64, and everything is a matrix: a vector is one of one row.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.explain.worked import classifiers
from minitransformer.model.attention import (
    attend,
    causal_mask,
    dot_scores,
    hide,
    multiplicative_scores,
)
from minitransformer.model.layers import MultiHeadAttention
from minitransformer.model.positional import position_angles, sinusoid_table

Value = Tensor | float | int  # a matrix, or a number written into a formula


def matrix(value: Any) -> Tensor:
    """A number, a list or a vector as a float64 matrix."""
    tensor = torch.as_tensor(value, dtype=torch.float64)
    return tensor.reshape(1, -1) if tensor.dim() < 2 else tensor


def expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise ValueError(complaint)


def size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


def times(left: Value, right: Value) -> Tensor:
    """The matrix product: a row vector times W, weights times values."""
    left, right = matrix(left), matrix(right)
    fits = left.shape[1] == right.shape[0]
    expect(fits, f"{size(left)} times {size(right)} cannot be multiplied")
    return left @ right


def plus(*terms: Value) -> Tensor:
    matrices = [matrix(term) for term in terms]
    for term in matrices[1:]:
        fits = term.shape == matrices[0].shape
        expect(fits, f"{size(matrices[0])} plus {size(term)} cannot be added")
    return torch.stack(matrices).sum(dim=0)


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
    """Scores divided by the square root of a head's width."""
    return matrix(scores) / matrix(width).sqrt()


def masked(scores: Value) -> Tensor:
    """Scores with -inf above the diagonal."""
    scores = matrix(scores)
    return hide(scores, causal_mask(*scores.shape))


def attended(query: Value, key: Value, value: Value, scaled: bool, masked: bool) -> Any:
    query, key, value = matrix(query), matrix(key), matrix(value)
    similarity(query, key)
    fits = key.shape[0] == value.shape[0]
    expect(fits, f"keys {size(key)} and values {size(value)} differ in number")
    mask = causal_mask(len(query), len(key)) if masked else None
    return attend(query, key, value, mask, scale_scores=scaled)


def attention(
    query: Value, key: Value, value: Value, scaled: bool = True, masked: bool = False
) -> Tensor:
    """softmax(Q Kᵀ / √d) V by one call of attend."""
    return matrix(attended(query, key, value, scaled, masked).context)


def attention_weights(
    query: Value, key: Value, scaled: bool = True, masked: bool = False
) -> Tensor:
    """softmax(Q Kᵀ / √d) by one call of attend."""
    return matrix(attended(query, key, key, scaled, masked).weights)


def our_layer(queries: Tensor, looked_at: Tensor, *weights: Tensor, masked: bool = False) -> Tensor:
    """Our MultiHeadAttention with one head and a sheet's W_Q, W_K, W_V and W_O."""
    width = matrix(queries).shape[1]
    layer = MultiHeadAttention(
        d_model=width, num_heads=1, bias=False, attention_output=True, scale_scores=True,
        dropout=0.0,
    ).double()  # fmt: skip
    assert layer.output is not None
    linears = (layer.query, layer.key, layer.value, layer.output)
    for linear, weight in zip(linears, weights, strict=True):
        linear.weight.copy_(weight.T)
    length, seen = len(queries), len(looked_at)
    mask = causal_mask(length, seen) if masked else torch.ones(length, seen, dtype=torch.bool)
    output: Tensor = layer(queries[None], layer.project(looked_at[None]), mask[None, None])
    return output[0]


def torch_layer(
    queries: Tensor, looked_at: Tensor, *weights: Tensor, masked: bool = False
) -> Tensor:
    """torch.nn.MultiheadAttention with one head and a sheet's W_Q, W_K, W_V and W_O."""
    w_query, w_key, w_value, w_output = weights
    layer = nn.MultiheadAttention(
        queries.shape[1], 1, bias=False, batch_first=True, dtype=torch.float64
    )
    layer.in_proj_weight.copy_(torch.cat((w_query.T, w_key.T, w_value.T)))
    layer.out_proj.weight.copy_(w_output.T)
    hidden = ~causal_mask(len(queries), len(looked_at)) if masked else None
    output: Tensor = layer(queries[None], looked_at[None], looked_at[None], attn_mask=hidden)[0]
    return output[0]


def sinusoid(position: int, width: int) -> Tensor:
    """One row of the sinusoid table, as the paper has it."""
    return sinusoid_table(int(position) + 1, int(width), torch.float64)[-1:]


def boxed_sinusoid(position: int, width: int) -> Tensor:
    """The row that the exponent (2i+1)/d of a printed cosine formula gives."""
    # Twice the width halves the exponents' distance: 0/d, 1/d, 2/d, ... for the dimensions in turn.
    angles = position_angles(torch.tensor([int(position)]), 2 * int(width), torch.float64)
    return torch.stack((angles[:, 0::2].sin(), angles[:, 1::2].cos()), dim=-1).flatten(-2)


def sinusoid_in_degrees(position: int, width: int) -> Tensor:
    """The row of the sinusoid table on a calculator that was set to degrees."""
    angles = position_angles(torch.tensor([int(position)]), int(width), torch.float64).deg2rad()
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def row(values: Value, number: int) -> Tensor:
    values = matrix(values)
    expect(1 <= number <= len(values), f"there is no row {number} in {size(values)}")
    return values[number - 1 : number]


def column(values: Value, number: int) -> Tensor:
    return row(matrix(values).T, number)


def entry(values: Value, at_row: int, at_column: int) -> Tensor:
    return column(row(values, at_row), at_column)


def same(first: Value, second: Value) -> Tensor:
    """1 if two matrices are equal, else 0: for what a sheet says in words."""
    first, second = matrix(first), matrix(second)
    equal = first.shape == second.shape and torch.allclose(first, second, rtol=1e-9, atol=1e-12)
    return matrix(float(equal))


MOVES = {"transpose", "row", "column", "entry", "stack", "join"}
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "times": times,
    "plus": plus,
    "dot_scores": similarity,
    "multiplicative_scores": multiplicative,
    "scaled": scaled,
    "masked": masked,
    "softmax": lambda scores: matrix(scores).softmax(dim=-1),
    "attend": attention,
    "attend_weights": attention_weights,
    "our_layer": our_layer,
    "torch_layer": torch_layer,
    "sinusoid": sinusoid,
    "boxed_sinusoid": boxed_sinusoid,
    "sinusoid_in_degrees": sinusoid_in_degrees,
    "sine": lambda angle: matrix(angle).sin(),
    "cosine": lambda angle: matrix(angle).cos(),
    "sigmoid": lambda values: matrix(values).sigmoid(),
    "exp": lambda values: matrix(values).exp(),
    "root": lambda values: matrix(values).sqrt(),
    "total": lambda values: matrix(matrix(values).sum()),
    "choice": lambda values: matrix(matrix(values).argmax()),
    "percent": lambda values: matrix(values) * 100,
    "product": lambda left, right: matrix(left) * matrix(right),
    "transpose": lambda values: matrix(values).T,
    "row": row,
    "column": column,
    "entry": entry,
    "first_rows": lambda values, number: matrix(values)[: int(number)],
    "stack": lambda *rows: torch.cat([matrix(each) for each in rows]),
    "join": lambda *parts: torch.cat([matrix(each) for each in parts], dim=1),
    "identity": lambda width: torch.eye(int(width), dtype=torch.float64),
    "largest": lambda values: matrix(matrix(values).abs().max()),
    "difference": lambda first, second: matrix(first) - matrix(second),
    "same": same,
    "at_most": lambda values, bound: matrix(float((matrix(values).abs() <= matrix(bound)).all())),
    "max_pool": lambda values, window: nn.functional.max_pool2d(matrix(values)[None], window)[0],
    "output_shape": lambda model, layer: matrix(classifiers.output_shape(model, layer)),
    "parameter_counts": lambda model: matrix(classifiers.parameter_counts(model)),
    "widths": lambda model: matrix(classifiers.widths(model)),
    "mult_adds_in_millions": lambda model: matrix(classifiers.mult_adds(model) / 1e6),
    "megabytes": lambda model, batch: matrix(classifiers.megabytes(model, int(matrix(batch)))),
}
