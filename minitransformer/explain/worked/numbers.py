"""Numbers as a sheet prints them: their text, the unit of their last digit, what rounds to it."""

import math
import re
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_DOWN, ROUND_HALF_UP, Context, Decimal, InvalidOperation

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
