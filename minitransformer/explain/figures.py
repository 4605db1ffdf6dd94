"""Numbers as they are shown: terms that add up at the shown precision, and no minus zero."""


def shown(value: float, precision: int) -> str:
    """A number with so many digits after the point."""
    text = f"{value:.{precision}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def shown_terms(terms: list[float], total: float, precision: int) -> list[str]:
    """Terms rounded so that what is shown of them adds up to what is shown of their total.

    Where plain rounding does not, the terms that it changed most are moved by one last digit.
    """
    unit = 10.0**-precision
    counts = [round(term / unit) for term in terms]
    missing = round(total / unit) - sum(counts)
    sign = 1 if missing > 0 else -1
    rest = [sign * (term / unit - count) for term, count in zip(terms, counts, strict=True)]
    by_rest = sorted(range(len(terms)), key=lambda place: rest[place], reverse=True)
    for number in range(abs(missing)):
        counts[by_rest[number % len(terms)]] += sign
    return [shown(count * unit, precision) for count in counts]


def shown_columns(
    rows: list[list[float]], totals: list[float], precision: int
) -> tuple[list[list[str]], list[str]]:
    """Rows of terms, column by column, and their totals, so that each column adds up."""
    columns = [
        shown_terms([row[place] for row in rows], total, precision)
        for place, total in enumerate(totals)
    ]
    texts = [[column[number] for column in columns] for number in range(len(rows))]
    return texts, [shown(total, precision) for total in totals]


def shown_sum(
    before: list[float], found: list[float], after: list[float], precision: int
) -> list[list[str]]:
    """before + found = after, so that each column adds up."""
    texts, totals = shown_columns([before, found], after, precision)
    return [*texts, totals]
