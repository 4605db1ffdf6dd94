"""What a sheet's formulas may call: our model's own functions, and torch's for the rest."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from minitransformer.explain.worked import attention_operations as attention
from minitransformer.explain.worked import classifiers, matrices
from minitransformer.explain.worked.matrices import matrix, whole


class Operation(NamedTuple):
    """A function with how it is written and what it is."""

    function: Callable[..., Any]
    usage: str
    meaning: str


LAYER = "(queries, looked_at, W_Q, W_K, W_V, W_O, masked=False)"
TABLE: list[tuple[Callable[..., Any], str, str]] = [
    (matrices.times, "times(A, B)", "the matrix product, such as X W or weights times V"),
    (matrices.plus, "plus(A, B, ...)", "the sum of matrices of one size"),
    (matrices.difference, "difference(A, B)", "A minus B"),
    (matrices.product, "product(A, B)", "number by number; product(2, A) doubles A"),
    (attention.similarity, "dot_scores(Q, K)", "Q Kᵀ, a row per query"),
    (attention.multiplicative, "multiplicative_scores(Q, W, K)", "Q W Kᵀ"),
    (attention.scaled, "scaled(S, d)", "S divided by the root of d: scaled(S, 64) divides by 8"),
    (attention.masked, "masked(S)", "square scores with -inf above the diagonal"),
    (lambda scores: matrix(scores).softmax(dim=-1), "softmax(S)", "of every row"),
    (attention.attention, "attend(Q, K, V, scaled=True, masked=False)", "softmax(Q Kᵀ / √d) V"),
    (attention.attention_weights, "attend_weights(Q, K, scaled=True, masked=False)",
     "softmax(Q Kᵀ / √d)"),
    (attention.our_layer, f"our_layer{LAYER}", "our MultiHeadAttention, one head, no bias"),
    (attention.torch_layer, f"torch_layer{LAYER}", "torch.nn.MultiheadAttention, the same"),
    (attention.sinusoid, "sinusoid(position, width)", "a row of the positional encoding"),
    (attention.boxed_sinusoid, "boxed_sinusoid(position, width)",
     "the same with the exponent (2i+1)/d for cosines"),
    (attention.sinusoid_in_degrees, "sinusoid_in_degrees(position, width)",
     "the same on a calculator set to degrees"),
    (matrices.row, "row(A, n)", "row n of A, counted from 1"),
    (matrices.column, "column(A, n)", "column n of A, as a row"),
    (matrices.entry, "entry(A, m, n)", "one number: row m, column n"),
    (matrices.first_rows, "first_rows(A, n)", "the first n rows"),
    (matrices.pick, "pick(A, ids)", "rows of A by their numbers from 0, such as embeddings"),
    (matrices.stack, "stack(A, B, ...)", "one below the other"),
    (matrices.join, "join(A, B, ...)", "side by side"),
    (lambda values: matrix(values).T, "transpose(A)", "rows become columns"),
    (lambda width: torch.eye(whole(width, "width"), dtype=torch.float64), "identity(n)",
     "the n×n matrix with ones on the diagonal"),
    (lambda values: matrix(values).exp(), "exp(A)", "e to each number"),
    (lambda values: matrix(values).sqrt(), "root(A)", "the square root of each number"),
    (lambda values: matrix(values).sin(), "sine(A)", "of each number, in radians"),
    (lambda values: matrix(values).cos(), "cosine(A)", "of each number, in radians"),
    (lambda values: matrix(values).sigmoid(), "sigmoid(A)", "of each number"),
    (lambda values: matrix(matrix(values).sum()), "total(A)", "the sum of all numbers"),
    (lambda values: matrix(values) * 100, "percent(A)", "a hundred times"),
    (lambda values: matrix(matrix(values).abs().max()), "largest(A)", "the largest, without sign"),
    (lambda values: matrix(matrix(values).argmax()), "choice(A)", "where the largest is, from 0"),
    (matrices.max_pool, "max_pool(A, n)", "the largest of each n×n window"),
    (matrices.same, "same(A, B)", "1 if equal, else 0; for check"),
    (matrices.at_most, "at_most(A, n)", "1 if no number is larger than n, else 0; for check"),
    (classifiers.output_shape, 'output_shape("mlp", "fc1")', "what a classifier's layer puts out"),
    (classifiers.parameter_counts, 'parameter_counts("mlp")', "all, trained, not trained"),
    (classifiers.widths, 'widths("rnn")', "hidden, embedding and classes of a recurrent one"),
    (lambda model: classifiers.mult_adds(model) / 1e6, 'mult_adds_in_millions("mlp")',
     "as torch-summary counts them"),
    (lambda model, batch: classifiers.megabytes(model, whole(batch, "batch")),
     'megabytes("conv_gmp", batch)', "input, forward and backward, parameters, all"),
]  # fmt: skip
OPERATIONS = {usage.partition("(")[0]: Operation(*each) for each in TABLE for usage in each[1:2]}
MOVES = {"transpose", "row", "column", "entry", "stack", "join"}


def operations_text() -> str:
    """All operations, a line each."""
    lines = []
    for each in OPERATIONS.values():
        is_long = len(each.usage) > 32
        lines.append(each.usage if is_long else f"{each.usage:33} {each.meaning}")
        lines += [f"{'':33} {each.meaning}"] * is_long
    return "\n".join(lines)
