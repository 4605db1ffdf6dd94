"""Numbers as they are shown: each rounded by itself, and what that leaves open in a sum."""

from decimal import Decimal


def shown(value: float, precision: int) -> str:
    """A number with so many digits after the point, and no minus zero."""
    text = f"{value:.{precision}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def rounding_row(rows: list[list[str]], totals: list[str]) -> list[str] | None:
    """What must be added so that shown terms make up their shown totals; None if nothing.

    Every number is shown as it is, so that it looks the same wherever it stands; what rounding does
    to a sum stands on a line of its own.
    """
    missing = [
        Decimal(total) - sum(Decimal(row[place]) for row in rows) if total else None
        for place, total in enumerate(totals)
    ]
    if not any(missing):
        return None
    return ["" if each is None else str(each) if each else "0" for each in missing]
