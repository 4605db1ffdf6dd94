"""A sheet's formulas: calls of named operations on named matrices, such as dot_scores(Q, K)."""

import ast
import warnings
from dataclasses import dataclass

from torch import Tensor

from minitransformer.errors import SheetError, did_you_mean
from minitransformer.worked.operations import OPERATIONS, REARRANGING, matrix, size

MAX_CHARACTERS = 500  # a line of a sheet, not a program
MAX_LISTED_NAMES = 12  # in an error message


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
            hint = did_you_mean(operation, OPERATIONS) or " (--operations lists them)"
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
    listed = f" (there: {', '.join(matrices)})" if 0 < len(matrices) <= MAX_LISTED_NAMES else ""
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
