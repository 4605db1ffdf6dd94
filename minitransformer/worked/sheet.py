"""A hand-worked sheet as data: its steps, printed numbers and mistakes; how numbers are rounded."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_DOWN, ROUND_HALF_DOWN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TypeVar

from torch import Tensor

from minitransformer.worked.formulas import Formula

Cell = tuple[int, int]  # row and column, from 0; in files and messages they count from 1
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Sheet:
    """A worked sheet."""

    name: str
    where: str  # its file, for messages
    title: str
    source: str
    repeats: str  # the sheet whose printed numbers these are
    rounding: str  # a key of RULES
    conventions: dict[str, str]
    readings: dict[str, str]  # how damaged passages were read
    given: dict[str, Tensor]
    given_text: dict[str, list[list[str]]]
    hidden: dict[str, Tensor]  # given matrices with more digits than were printed
    hidden_note: str
    model: "SheetModel | None"
    run: "SheetRun | None"
    steps: tuple["Step", ...]
    slips: tuple["Slip", ...]


@dataclass(frozen=True)
class SheetModel:
    """The Transformer that has the matrices of a sheet as weights; all values are formulas."""

    source: dict[str, str]  # the embedding of each word
    target: dict[str, str]
    start: str  # the embedding of <EOS>, which starts the target
    weights: dict[str, str]  # by the names of the model's tensors


@dataclass(frozen=True)
class SheetRun:
    """The trained run on which a procedure without numbers is checked."""

    config: str
    source: str
    target: str
    tensors: dict[str, str]  # paths of the model's tensors, by their names in formulas


@dataclass(frozen=True)
class Step:
    """One line of a sheet: a matrix with the numbers printed for it, or a statement in words."""

    name: str
    title: str
    compute: Formula | None = None
    also: tuple[Formula, ...] = ()  # other formulas that must give the same numbers
    traced: str = ""  # the tensor of the sheet's model that must have the same numbers
    printed: "tuple[tuple[Printed, ...], ...]" = ()  # rows of equal length
    is_reprint: bool = False
    scans: dict[Cell, str] = field(default_factory=dict)  # what a damaged scan shows
    uncheckable: dict[Cell, str] = field(default_factory=dict)  # what a check would need
    claimed: dict[Cell, str] = field(default_factory=dict)  # the verdicts; a statement's is (0, 0)
    text: str = ""
    check: Formula | None = None
    note: str = ""

    @property
    def heading(self) -> str:
        """The name that formulas call it by, and the sheet's own words."""
        return f"{self.name}: {self.title}" if self.title else self.name

    @property
    def cells(self) -> "dict[Cell, Printed]":
        """The printed numbers by cell, row by row."""
        return by_cell(self.printed)

    def cell_name(self, cell: Cell) -> str:
        """Return [2,3], or [3] where a single row is printed."""
        row, column = cell[0] + 1, cell[1] + 1
        return f"[{column}]" if len(self.printed) == 1 else f"[{row},{column}]"

    def full_name(self, cell: Cell) -> str:
        """Return the name of a cell on the sheet, such as E[2,3]."""
        return self.name + self.cell_name(cell)


@dataclass(frozen=True)
class Slip:
    """A mistake on the sheet: its cells, what was written, what is right, and the likely cause."""

    number: str
    step: str
    cells: tuple[Cell, ...]  # none for a slip in words
    wrote: tuple[str, ...]
    right: tuple[str, ...]
    why: str
    reproduced: Formula | None  # the likely cause as a formula, which must give what was written


@dataclass(frozen=True)
class Printed:
    """A number as printed: 0.50 has the value of 0.5 but another unit."""

    text: str
    value: Decimal
    unit: Decimal  # one unit of the last digit

    @property
    def is_blank(self) -> bool:
        return self.text == BLANK


BLANK = "?"  # a cell that was left empty
NUMBER = re.compile(r"[-+−]?(\d+(,\d{3})*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+−]?inf")
RELATIVE_TOLERANCE = 1e-9  # between two ways to compute the same number
# A float64 sum of a few terms is accurate to this many digits; a tie such as 0.15 is seen as one.
ACCURATE_DIGITS = Context(prec=12)
ROUNDINGS = {
    "nearest": ROUND_HALF_UP,
    "half-down": ROUND_HALF_DOWN,  # a tie, rounded towards zero
    "truncated": ROUND_DOWN,
    "double-rounded": ROUND_HALF_UP,  # nearest of a nearest with one digit more
}
RULES = {  # of a sheet, and the roundings that each allows
    "nearest": ("nearest", "half-down"),
    "truncated": ("truncated",),
    "any": ("nearest", "half-down", "truncated", "double-rounded"),
}


def by_cell(rows: Iterable[Iterable[Entry]]) -> dict[Cell, Entry]:
    """Return the entries of a matrix by cell, row by row."""
    return {(r, c): entry for r, row in enumerate(rows) for c, entry in enumerate(row)}


def read_number(text: str, decimals: int = 0) -> Printed | None:
    """Parse a number, or return None; `decimals` may be more than were written down."""
    if not NUMBER.fullmatch(text):
        return None
    try:
        value = Decimal(text.replace(",", "").replace("−", "-"))
    except InvalidOperation:
        return None
    if not value.is_finite():
        return Printed(text, value, Decimal(1))
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    if math.isinf(float(value)) or abs(exponent) > 400:  # beyond what a float holds
        return None
    return Printed(text, value, Decimal(1).scaleb(min(exponent, -decimals)))


def is_rounded(printed: Printed, value: float, rounding: str) -> bool:
    """Return whether a printed number is this rounding of a value; "": whether it is the value."""
    if not printed.value.is_finite() or not math.isfinite(value):
        return float(printed.value) == value
    if not rounding:
        is_close = math.isclose(float(printed.value), value, rel_tol=RELATIVE_TOLERANCE)
        return is_close and is_rounded(printed, value, "nearest")
    exact = ACCURATE_DIGITS.create_decimal_from_float(value)
    if rounding == "double-rounded":
        exact = quantize(exact, printed.unit / 10, ROUND_HALF_UP)
    return quantize(exact, printed.unit, ROUNDINGS[rounding]) == printed.value


def round_like(printed: Printed, value: float, rule: str) -> float:
    """Round a value to as many digits as a printed number has."""
    if not math.isfinite(value) or not printed.value.is_finite():
        return value
    exact = ACCURATE_DIGITS.create_decimal_from_float(value)
    return float(quantize(exact, printed.unit, ROUNDINGS[RULES[rule][0]]))


def quantize(value: Decimal, unit: Decimal, rounding: str) -> Decimal:
    # The default context keeps 28 digits, too few for 1e+20 printed to many decimals.
    return value.quantize(unit, rounding, Context(prec=999))


def format_number(value: float, beside: Printed | None = None) -> str:
    """Format with six digits, or two more than the number beside it has; integers in full."""
    if value.is_integer() and abs(value) < 1e15:
        return "0" if value == 0 else f"{value:.0f}"
    digits = 6
    if beside is not None and beside.value.is_finite():
        digits = max(digits, len(beside.value.normalize().as_tuple().digits) + 2)
    return f"{value:.{min(digits, 15)}g}"
