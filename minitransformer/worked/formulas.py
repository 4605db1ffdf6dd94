"""A sheet's formulas, such as dot_scores(Q, K): named operations on named matrices.

The operations are our model's own functions, and torch's for the rest.
"""

import ast
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from minitransformer.errors import SheetError, did_you_mean
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
from minitransformer.worked import classifiers

MAX_CHARACTERS = 500  # a line of a sheet, not a program
MAX_LISTED_NAMES = 12  # in an error message
MAX_SIZE = 10_000  # rows or columns of what a formula makes
Flag = Tensor | bool  # True and False of a formula are matrices of 1 and 0


@dataclass(frozen=True)
class Formula:
    """A parsed formula: its text, its syntax tree, and the matrices that it names."""

    text: str
    tree: ast.expr
    names: tuple[str, ...]

    @property
    def only_rearranges(self) -> bool:
        """Whether the formula moves numbers without changing any."""
        calls = [node.func for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return all(isinstance(name, ast.Name) and name.id in REARRANGING for name in calls)


def read_formula(text: str, where: str) -> Formula:
    """Parse a formula; nothing but calls, names and numbers is allowed in it."""
    if len(text) > MAX_CHARACTERS:
        raise SheetError(f"{where}: a formula of {len(text):,} characters is too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's advice on what is refused anyway
            tree = ast.parse(text.strip(), mode="eval").body
        names = names_in(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.args[0] if type(error) is ValueError else "not a formula"
        raise SheetError(f"{where}: {text!r}: {reason}; write one such as times(X, W_Q)") from None
    return Formula(text, tree, names)


def names_in(node: ast.expr) -> tuple[str, ...]:
    """Return the matrices that a formula names, each once, in order; refuse everything else."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
        return ()
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return names_in(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        operation = node.func.id
        if operation not in OPERATIONS:
            hint = (
                did_you_mean(operation, OPERATIONS)
                or " (listed by: minitransformer worked operations)"
            )
            raise ValueError(f"there is no operation '{operation}'{hint}")
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        return tuple(dict.fromkeys(name for part in arguments for name in names_in(part)))
    source = ast.unparse(node)[:40]
    if isinstance(node, ast.BinOp):
        raise ValueError(
            f"'{source}' is written with an operation: times(A, B) for matrices, product(A, B) "
            "number by number, plus(A, B), difference(A, B), dot_scores(Q, K) for Q Kᵀ"
        )
    raise ValueError(f"'{source}' is neither a call, a name nor a number")


def evaluate(formula: Formula, matrices: dict[str, Tensor], where: str) -> Tensor:
    """Compute a formula in float64, as a matrix; a vector is a matrix of one row."""
    for name in formula.names:
        if name not in matrices:
            raise SheetError(f"{where}: {formula.text}: {unknown_name(name, matrices)}")
    try:
        value = matrix(evaluate_node(formula.tree, matrices))
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise SheetError(f"{where}: {formula.text}: {reason}") from None
    except (TypeError, RuntimeError, IndexError, AttributeError, KeyError, OverflowError) as error:
        shapes = ", ".join(f"{name} is {size(matrices[name])}" for name in formula.names)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SheetError(
            f"{where}: {formula.text} does not work{': ' * bool(shapes)}{shapes} ({reason})"
        ) from None
    if not value.numel():
        raise SheetError(f"{where}: {formula.text}: the result is empty")
    return value


def unknown_name(name: str, matrices: dict[str, Tensor]) -> str:
    if name in ("true", "false"):
        return f"write {name.title()}, with a capital"
    listed = f" (available: {', '.join(matrices)})" if 0 < len(matrices) <= MAX_LISTED_NAMES else ""
    return (
        f"no matrix '{name}'{did_you_mean(name, matrices)}; it is neither given nor an earlier "
        f"step{listed}"
    )


def evaluate_node(node: ast.expr, matrices: dict[str, Tensor]) -> Tensor | str:
    if isinstance(node, ast.Name):
        return matrices[node.id]
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else matrix(node.value)
    if isinstance(node, ast.UnaryOp):
        return -matrix(evaluate_node(node.operand, matrices))
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    values = [evaluate_node(argument, matrices) for argument in node.args]
    options = {str(each.arg): evaluate_node(each.value, matrices) for each in node.keywords}
    return OPERATIONS[node.func.id](*values, **options)


class Operation(NamedTuple):
    """A function that formulas call: how they write it, and what it computes."""

    function: Callable[..., Any]
    usage: str
    meaning: str

    def __call__(self, *values: Tensor | str, **options: Tensor | str) -> Tensor:
        try:
            inspect.signature(self.function).bind(*values, **options)
        except TypeError:
            raise ValueError(f"write it as {self.usage}") from None
        if '"' not in self.usage:  # no text is one of its arguments
            values = tuple(matrix(each) for each in values)
            options = {name: matrix(each) for name, each in options.items()}
        with torch.no_grad():
            return matrix(self.function(*values, **options))


def matrix(value: Any) -> Tensor:
    """Return a number, a list or a vector as a float64 matrix; a vector becomes one row."""
    if isinstance(value, str):
        raise ValueError(f"'{value}' is a text, not a matrix")
    tensor = torch.as_tensor(value, dtype=torch.float64)
    return tensor.reshape(1, -1) if tensor.dim() < 2 else tensor


def size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def integer(number: Tensor, name: str, low: int = 1, high: int = MAX_SIZE) -> int:
    number = matrix(number)  # raises if it is a text
    is_number = number.numel() == 1
    fits = is_number and float(number) == round(float(number)) and low <= float(number) <= high
    got = f"{float(number):g}" if is_number else size(number)
    require(fits, f"{name}: expected a whole number from {low} to {high:,}, got {got}")
    return int(number)


def require_same_size(left: Tensor, right: Tensor, verb: str) -> None:
    """Refuse two matrices of different sizes; a single number goes with every matrix."""
    fits = left.shape == right.shape or 1 in (left.numel(), right.numel())
    require(fits, f"{size(left)} {verb} {size(right)}: the sizes differ")


def times(left: Tensor, right: Tensor) -> Tensor:
    fits = left.shape[1] == right.shape[0]
    require(fits, f"{size(left)} and {size(right)} cannot be multiplied")
    return left @ right


def plus(*terms: Tensor) -> Tensor:
    require(len(terms) > 0, "there is nothing to add")
    for term in terms[1:]:
        fits = term.shape == terms[0].shape
        require(fits, f"{size(terms[0])} and {size(term)} cannot be added")
    return torch.stack(terms).sum(dim=0)


def difference(left: Tensor, right: Tensor) -> Tensor:
    require_same_size(left, right, "minus")
    return left - right


def product(left: Tensor, right: Tensor) -> Tensor:
    require_same_size(left, right, "times, number by number,")
    return left * right


def checked_dot_scores(query: Tensor, key: Tensor) -> Tensor:
    fits = query.shape[1] == key.shape[1]
    require(fits, f"queries {size(query)} and keys {size(key)} differ in width")
    return dot_scores(query, key)


def checked_multiplicative_scores(query: Tensor, weight: Tensor, key: Tensor) -> Tensor:
    fits = weight.shape == (query.shape[1], key.shape[1])
    require(fits, f"{size(query)}, W {size(weight)} and keys {size(key)} cannot be multiplied")
    return multiplicative_scores(query, weight, key)


def scaled(scores: Tensor, width: Tensor) -> Tensor:
    is_width = width.numel() == 1 and float(width) > 0
    require(is_width, "the width d, in S / √d, must be a positive number")
    return scores / width.sqrt()


def masked(scores: Tensor) -> Tensor:
    is_square = scores.shape[0] == scores.shape[1]
    require(is_square, f"scores of all tokens are square; these are {size(scores)}")
    return apply_mask(scores, causal_mask(*scores.shape))


def checked_attend(
    query: Tensor, key: Tensor, value: Tensor, scaled: Flag, masked: Flag
) -> AttentionOutput:
    checked_dot_scores(query, key)
    fits = key.shape[0] == value.shape[0]
    require(fits, f"keys {size(key)} and values {size(value)} differ in number")
    mask = causal_mask(len(query), len(key)) if masked else None
    return attend(query, key, value, mask, scale_scores=bool(scaled))


def attention(
    query: Tensor, key: Tensor, value: Tensor, scaled: Flag = True, masked: Flag = False
) -> Tensor:
    return checked_attend(query, key, value, scaled, masked).context


def attention_weights(
    query: Tensor, key: Tensor, scaled: Flag = True, masked: Flag = False
) -> Tensor:
    return checked_attend(query, key, key, scaled, masked).weights


def attention_mask(query: Tensor, key: Tensor, masked: Flag) -> Tensor:
    lengths = len(query), len(key)
    return causal_mask(*lengths) if masked else torch.ones(*lengths, dtype=torch.bool)


def our_layer(
    query: Tensor, key_value: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor,
    w_output: Tensor, masked: Flag = False,
) -> Tensor:  # fmt: skip
    """Run our MultiHeadAttention with one head and a sheet's matrices."""
    config = ModelConfig(d_model=query.shape[1], output_projection=True)
    layer = MultiHeadAttention(config).double()
    assert layer.output is not None
    linears = (layer.query, layer.key, layer.value, layer.output)
    for linear, weight in zip(linears, (w_query, w_key, w_value, w_output), strict=True):
        linear.weight.copy_(weight.T)
    mask = attention_mask(query, key_value, masked)
    output: Tensor = layer(query[None], key_value[None], mask[None, None])
    return output[0]


def torch_layer(
    query: Tensor, key_value: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor,
    w_output: Tensor, masked: Flag = False,
) -> Tensor:  # fmt: skip
    """Run torch.nn.MultiheadAttention with one head and a sheet's matrices."""
    layer = nn.MultiheadAttention(
        query.shape[1], 1, bias=False, batch_first=True, dtype=torch.float64
    )
    layer.in_proj_weight.copy_(torch.cat([w_query.T, w_key.T, w_value.T]))
    layer.out_proj.weight.copy_(w_output.T)
    hidden = ~attention_mask(query, key_value, masked)
    output: Tensor = layer(query[None], key_value[None], key_value[None], attn_mask=hidden)[0]
    return output[0]


def sinusoid(position: Tensor, width: Tensor) -> Tensor:
    """Return one row of the sinusoid table of the paper."""
    return sinusoid_table(integer(position, "position", low=0) + 1, even(width), torch.float64)[-1:]


def boxed_sinusoid(position: Tensor, width: Tensor) -> Tensor:
    """Return the row that the exponent (2i+1)/d of a printed cosine formula gives."""
    # Twice the width halves the exponents' distance: 0/d, 1/d, 2/d, ... for the dimensions in turn.
    angles = angles_at(position, 2 * even(width))
    return torch.stack((angles[:, 0::2].sin(), angles[:, 1::2].cos()), dim=-1).flatten(-2)


def sinusoid_in_degrees(position: Tensor, width: Tensor) -> Tensor:
    """Return the row of the sinusoid table that a calculator set to degrees gives."""
    angles = angles_at(position, even(width)).deg2rad()
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def angles_at(position: Tensor, width: int) -> Tensor:
    index = integer(position, "position", low=0)
    return position_angles(torch.tensor([index]), width, torch.float64)


def even(width: Tensor) -> int:
    number = integer(width, "width", low=2)
    require(number % 2 == 0, f"width: expected an even number, got {number}")
    return number


def row(values: Tensor, number: Tensor) -> Tensor:
    index = integer(number, f"row of {size(values)}", high=len(values)) - 1
    return values[index : index + 1]


def column(values: Tensor, number: Tensor) -> Tensor:
    index = integer(number, f"column of {size(values)}", high=values.shape[1]) - 1
    return values[:, index]


def entry(values: Tensor, row_number: Tensor, column_number: Tensor) -> Tensor:
    return column(row(values, row_number), column_number)


def first_rows(values: Tensor, number: Tensor) -> Tensor:
    return values[: integer(number, f"rows of {size(values)}", high=len(values))]


def pick(values: Tensor, ids: Tensor) -> Tensor:
    """Return rows by their ids, which count from 0."""
    return values[[int(number) for number in ids[0]]]


def stack(*rows: Tensor) -> Tensor:
    require(len({each.shape[1] for each in rows}) == 1, "the rows to stack differ in length")
    return torch.cat(rows)


def join(*parts: Tensor) -> Tensor:
    require(len({len(each) for each in parts}) == 1, "the parts to join differ in height")
    return torch.cat(parts, dim=1)


def max_pool(values: Tensor, window: Tensor) -> Tensor:
    side = integer(window, "window", high=min(values.shape))
    return functional.max_pool2d(values[None], side)[0]


def same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, rtol=1e-9, atol=1e-12)


LAYER = "(query, key_value, W_Q, W_K, W_V, W_O, masked=False)"
TABLE: list[tuple[Callable[..., Any], str, str]] = [
    (times, "times(A, B)", "the matrix product, such as X W or weights times V"),
    (plus, "plus(A, B, ...)", "the sum of matrices of one size"),
    (difference, "difference(A, B)", "A minus B"),
    (product, "product(A, B)", "number by number; product(2, A) doubles A"),
    (checked_dot_scores, "dot_scores(Q, K)", "Q Kᵀ, a row per query"),
    (checked_multiplicative_scores, "multiplicative_scores(Q, W, K)", "Q W Kᵀ"),
    (scaled, "scaled(S, d)", "S divided by the root of d: scaled(S, 64) divides by 8"),
    (masked, "masked(S)", "square scores with -inf above the diagonal"),
    (lambda scores: scores.softmax(dim=-1), "softmax(S)", "of every row"),
    (attention, "attend(Q, K, V, scaled=True, masked=False)", "softmax(Q Kᵀ / √d) V"),
    (attention_weights, "attend_weights(Q, K, scaled=True, masked=False)",
     "softmax(Q Kᵀ / √d)"),
    (our_layer, f"our_layer{LAYER}", "our MultiHeadAttention, one head, no bias"),
    (torch_layer, f"torch_layer{LAYER}", "torch.nn.MultiheadAttention, the same"),
    (sinusoid, "sinusoid(position, width)", "a row of the positional encoding"),
    (boxed_sinusoid, "boxed_sinusoid(position, width)",
     "the same with the exponent (2i+1)/d for cosines"),
    (sinusoid_in_degrees, "sinusoid_in_degrees(position, width)",
     "the same on a calculator set to degrees"),
    (row, "row(A, n)", "row n of A, counted from 1"),
    (column, "column(A, n)", "column n of A, as a row"),
    (entry, "entry(A, m, n)", "one number: row m, column n"),
    (first_rows, "first_rows(A, n)", "the first n rows"),
    (pick, "pick(A, ids)", "rows of A by their numbers from 0, such as embeddings"),
    (stack, "stack(A, B, ...)", "one below the other"),
    (join, "join(A, B, ...)", "side by side"),
    (lambda values: values.T, "transpose(A)", "rows become columns"),
    (lambda width: torch.eye(integer(width, "width"), dtype=torch.float64), "identity(n)",
     "the n×n matrix with ones on the diagonal"),
    (lambda values: values.exp(), "exp(A)", "e to each number"),
    (lambda values: values.sqrt(), "root(A)", "the square root of each number"),
    (lambda values: values.sin(), "sine(A)", "of each number, in radians"),
    (lambda values: values.cos(), "cosine(A)", "of each number, in radians"),
    (lambda values: values.sigmoid(), "sigmoid(A)", "of each number"),
    (lambda values: values.sum(), "total(A)", "the sum of all numbers"),
    (lambda values: values * 100, "percent(A)", "a hundred times"),
    (lambda values: values.abs().max(), "largest(A)", "the largest, without sign"),
    (lambda values: values.argmax(), "choice(A)", "where the largest is, from 0"),
    (max_pool, "max_pool(A, n)", "the largest of each n×n window"),
    (same, "same(A, B)", "1 if equal, else 0; for check"),
    (lambda values, bound: (values.abs() <= bound).all(), "at_most(A, n)",
     "1 if no number is larger than n, else 0; for check"),
    (classifiers.output_shape, 'output_shape("mlp", "fc1")', "what a classifier's layer puts out"),
    (classifiers.parameter_counts, 'parameter_counts("mlp")', "all, trained, not trained"),
    (classifiers.widths, 'widths("rnn")', "hidden, embedding and classes of a recurrent one"),
    (lambda name: classifiers.mult_adds(name) / 1e6, 'mult_adds_in_millions("mlp")',
     "as torch-summary counts them"),
    (lambda name, batch: classifiers.megabytes(name, integer(batch, "batch")),
     'megabytes("conv_gmp", batch)', "input, forward and backward, parameters, all"),
]  # fmt: skip
OPERATIONS = {usage.partition("(")[0]: Operation(function, usage, meaning)
              for function, usage, meaning in TABLE}  # fmt: skip
REARRANGING = {"transpose", "row", "column", "entry", "stack", "join"}


def operations_text() -> str:
    """Return all operations with their meanings, a line each where there is room."""
    lines = []
    for each in OPERATIONS.values():
        is_long = len(each.usage) > 32
        lines.append(each.usage if is_long else f"{each.usage:33} {each.meaning}")
        lines += [f"{'':33} {each.meaning}"] * is_long
    return "\n".join(lines)
