"""Rows of numbers in columns."""

from torch import Tensor

from minitransformer.explain.paragraphs import WIDTH
from minitransformer.explain.worked.numbers import shortest

MOST_COLUMNS = 6  # of a matrix nobody printed, such as a state of a trained model


def shortened(values: Tensor) -> list[list[str]]:
    """A matrix as text, its columns cut short where there are very many."""
    left_out = values.shape[1] - MOST_COLUMNS
    if left_out <= MOST_COLUMNS:
        return [[shortest(value) for value in row] for row in values.tolist()]
    rows = [[shortest(round(value, 4)) for value in row[:MOST_COLUMNS]] for row in values.tolist()]
    return [[*row, f"… {left_out} more"] for row in rows]


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows of text in columns, as many as there is room for."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    columns, used = len(widths), sum(widths) + 2 * len(widths)
    while used > WIDTH - 8 and columns > 1:
        columns -= 1
        used = sum(widths[:columns]) + 2 * columns + 14
    rest = f"  … {len(widths) - columns} more" if columns < len(widths) else ""
    return [
        "  ".join(text.rjust(width) for text, width in zip(row, widths[:columns], strict=False))
        + rest
        for row in rows
    ]


def beside(left: list[str], right: list[str]) -> list[str]:
    """Two blocks of lines side by side."""
    width = max(map(len, left)) + 4
    height = max(len(left), len(right))
    left, right = left + [""] * (height - len(left)), right + [""] * (height - len(right))
    return [f"{a:{width}}{b}".rstrip() for a, b in zip(left, right, strict=True)]


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
