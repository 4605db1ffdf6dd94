"""A worked sheet as data: printed numbers, steps, slips."""

import math
import re
from dataclasses import dataclass, field
from decimal import ROUND_DOWN, ROUND_HALF_DOWN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from torch import Tensor

from minitransformer.worked.formulas import Formula

NUMBER = re.compile(r"[-+−]?(\d+(,\d{3})*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+−]?inf")
BLANK = "?"  # a cell that was left empty
SAME = 1e-9  # relative: two roads to the same number
# A float64 sum of a few terms is sure to this many digits, so a tie such as 0.15 is seen as one.
SURE_DIGITS = Context(prec=12)
ROUNDINGS = {
    "nearest": ROUND_HALF_UP,
    "half-down": ROUND_HALF_DOWN,  # a tie, taken towards zero
    "truncated": ROUND_DOWN,
    "double-rounded": ROUND_HALF_UP,  # nearest of a nearest with one digit more
}
RULES = {
    "nearest": ("nearest", "half-down"),
    "truncated": ("truncated",),
    "any": ("nearest", "half-down", "truncated", "double-rounded"),
}


@dataclass(frozen=True)
class Printed:
    """A number on paper: 0.50 is not 0.5, for it promises one digit more."""

    text: str
    value: Decimal
    unit: Decimal  # one unit of the last digit

    @property
    def is_blank(self) -> bool:
        return self.text == BLANK


def read_number(text: str, decimals: int = 0) -> Printed | None:
    """The number that a text says, or None; `decimals` may be more than were written down."""
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


def decimals_of(texts: list[str]) -> int:
    """The fewest decimals of numbers with a point: beside 0.25, a 0 stands for 0.00."""
    points = [text.partition(".")[2] for text in texts if "." in text and "e" not in text.lower()]
    return min((len(digits) for digits in points if digits), default=0)


def is_same(printed: Printed, value: float) -> bool:
    """Is the number not rounded at all?"""
    if not printed.value.is_finite() or not math.isfinite(value):
        return float(printed.value) == value
    is_near = abs(float(printed.value) - value) <= SAME * abs(value)
    return is_near and is_rounded(printed, value, "nearest")


def is_rounded(printed: Printed, value: float, rounding: str) -> bool:
    """Is the number this rounding of a value?"""
    if not printed.value.is_finite() or not math.isfinite(value):
        return float(printed.value) == value
    exact = SURE_DIGITS.create_decimal_from_float(value)
    if rounding == "double-rounded":
        exact = quantized(exact, printed.unit / 10, ROUND_HALF_UP)
    return quantized(exact, printed.unit, ROUNDINGS[rounding]) == printed.value


def rounded(value: float, printed: Printed, rule: str) -> float:
    """A value to as many digits as a printed number has."""
    if not math.isfinite(value) or not printed.value.is_finite():
        return value
    exact = SURE_DIGITS.create_decimal_from_float(value)
    return float(quantized(exact, printed.unit, ROUNDINGS[RULES[rule][0]]))


def quantized(value: Decimal, unit: Decimal, rounding: str) -> Decimal:
    # The default context keeps 28 digits, too few for 1e+20 printed to many decimals.
    return value.quantize(unit, rounding, Context(prec=999))


def shortest(value: float, beside: Printed | None = None) -> str:
    """A value to six digits, or two more than the number beside it has; whole ones in full."""
    if value.is_integer() and abs(value) < 1e15:
        return f"{value:.0f}".replace("-0", "0") if value == 0 else f"{value:.0f}"
    digits = 6
    if beside is not None and beside.value.is_finite():
        digits = max(digits, len(beside.value.normalize().as_tuple().digits) + 2)
    return f"{value:.{min(digits, 15)}g}"


Cell = tuple[int, int]  # row and column, counted from 1
Grid = tuple[tuple[Printed, ...], ...]


@dataclass(frozen=True)
class Step:
    """One line of a sheet: a matrix with what was printed of it, or a statement in words."""

    name: str
    says: str
    compute: Formula | None = None
    also: tuple[Formula, ...] = ()  # other roads that must lead to the same numbers
    traced: str = ""  # the tensor of the sheet's model that must have the same numbers
    printed: Grid | None = None
    reprint: bool = False
    scans: dict[Cell, str] = field(default_factory=dict)  # what a damaged scan shows there
    uncheckable: dict[Cell, str] = field(default_factory=dict)  # what a check would need
    verdict: tuple[tuple[str, ...], ...] = ()
    text: str = ""
    check: Formula | None = None
    note: str = ""


@dataclass(frozen=True)
class Slip:
    """A mistake on the sheet: where, what was written, what is right, and the likely cause."""

    number: str
    step: str
    cells: tuple[Cell, ...]  # none for a slip in words
    wrote: tuple[str, ...]
    right: tuple[str, ...]
    why: str
    reproduced: Formula | None  # the likely cause as a formula, which must give what was written


@dataclass(frozen=True)
class Sheet:
    """A worked sheet."""

    name: str
    where: str
    title: str
    source: str
    repeats: str  # the sheet whose prints these are
    rounding: str
    conventions: dict[str, str]
    readings: dict[str, str]  # how damaged places were read
    given: dict[str, Tensor]
    given_text: dict[str, list[list[str]]]
    hidden: dict[str, Tensor]  # longer weights than were printed
    hidden_note: str
    model: dict[str, Any]  # the Transformer that the sheet's numbers make, if any
    run: dict[str, Any]  # the trained run that a procedure in words is shown on, if any
    steps: tuple[Step, ...]
    slips: tuple[Slip, ...]


Causes = frozenset[str]  # the slips that a wrong number goes back to


@dataclass(frozen=True)
class Judged:
    """A printed number, our value, and what is to be said about it."""

    cell: Cell
    printed: Printed
    exact: float | None  # None where nothing can be computed
    kind: str  # right, slip, follows, not checkable or unexplained
    chain: str = "exact"  # that gives the number
    rounding: str = ""  # by which it does; none where it is the same
    causes: Causes = frozenset()
    behind: Causes = frozenset()  # earlier slips in what a wrong number should have been
    is_scan: bool = False  # read from a damaged place

    @property
    def how(self) -> str:
        """The verdict and its reason in a few words, as sheets declare it."""
        way = [self.chain] * (self.chain not in ("exact", "printed")) + [self.rounding]
        if self.kind == "right":
            way = [self.chain] * (self.chain != "exact") + [self.rounding or "agrees"]
            return " ".join(["scan"] * self.is_scan + way)
        if self.kind in ("slip", "follows"):
            slips = "+".join(sorted(self.causes, key=slip_order))
            return " ".join([self.kind, slips, *(way if self.kind == "follows" else [])])
        return self.kind

    @property
    def verdict(self) -> str:
        """One of the names under which verdicts are counted."""
        if self.is_scan and self.kind == "right":
            return "ocr"
        return {
            "right": "rounded" if self.rounding else "agrees", "slip": "errata_origin",
            "follows": "errata_propagated", "not checkable": "not_checkable",
        }.get(self.kind, "unexplained")  # fmt: skip

    @property
    def is_origin(self) -> bool:
        """Is the number wrong without an earlier one to blame?"""
        return self.kind in ("slip", "unexplained")


def slip_order(number: str) -> tuple[int, str]:
    return (int(number), "") if number.isdecimal() else (10**9, number)
