"""Numbers as a sheet prints them: their text, the unit of their last digit, what rounds to it."""

import math
import re
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_DOWN, ROUND_HALF_UP, Context, Decimal, InvalidOperation

NUMBER = re.compile(r"[-+−]?(\d+(,\d{3})*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+−]?inf")
SAME = 1e-9  # relative: two roads to the same number
# A float64 sum of a few terms is sure to this many digits, so a tie such as 0.15 is seen as one.
SURE_DIGITS = Context(prec=12)


@dataclass(frozen=True)
class Printed:
    """A number on paper: 0.50 is not 0.5, for it promises one digit more."""

    text: str
    value: Decimal
    unit: Decimal  # one unit of the last digit


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
    if abs(exponent) > 400:  # beyond what a float holds
        return None
    return Printed(text, value, Decimal(1).scaleb(min(exponent, -decimals)))


def is_same(printed: Printed, value: float) -> bool:
    """Is the number not rounded at all?"""
    if not printed.value.is_finite() or not math.isfinite(value):
        return float(printed.value) == value
    return abs(float(printed.value) - value) <= SAME * abs(value)


def is_rounded(printed: Printed, value: float, rounding: str) -> bool:
    """Is the number this rounding of a value?"""
    if not printed.value.is_finite() or not math.isfinite(value):
        return float(printed.value) == value
    exact = SURE_DIGITS.create_decimal_from_float(value)
    if rounding == "double-rounded":
        exact = quantized(exact, printed.unit / 10, ROUND_HALF_UP)
    return quantized(exact, printed.unit, ROUNDINGS[rounding]) == printed.value


def quantized(value: Decimal, unit: Decimal, rounding: str) -> Decimal:
    # The default context keeps 28 digits, too few for 1e+20 printed to many decimals.
    return value.quantize(unit, rounding, Context(prec=999))


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


def shortest(value: float, digits: int = 6) -> str:
    """A value to some significant digits, without zeros that say nothing."""
    text = f"{value:.{digits}g}"
    return "0" if float(text) == 0 else text


def rounded(value: float, printed: Printed) -> float:
    """A value to as many digits as a printed number has."""
    if not math.isfinite(value):
        return value
    exact = SURE_DIGITS.create_decimal_from_float(value)
    return float(quantized(exact, printed.unit, ROUND_HALF_UP))
