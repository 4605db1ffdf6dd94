"""What a walk-through is told in: blocks of a sentence and tables whose last column is a word."""

from dataclasses import dataclass, field

from torch import Tensor

from minitransformer.explain.figures import rounding_row, shown

MOST_WORDS = 8  # of one table; beyond, the most important ones and the sum of the others
REST = "…"
ROUNDING = "rounding"  # what must be added so that shown terms make up their total


@dataclass(frozen=True)
class Row:
    """One line of a table: what it is, its numbers, and the word that it belongs to."""

    name: str
    numbers: list[str]
    word: str


@dataclass(frozen=True)
class Table:
    rows: list[Row]
    headings: list[str] = field(default_factory=list)  # of the numbers, where they differ in kind


@dataclass(frozen=True)
class Block:
    """Something that happens in the model, told and shown."""

    step: int  # 0 is the encoder
    path: str
    sentence: str
    tables: list[Table]


def most_important(importance: list[float]) -> list[int]:
    """The places that a table has room for, in their own order."""
    if len(importance) <= MOST_WORDS:
        return list(range(len(importance)))
    best = sorted(range(len(importance)), key=lambda place: importance[place], reverse=True)
    return sorted(best[: MOST_WORDS - 2])


def with_total(terms: list[Row], total: Row) -> list[Row]:
    """Terms and their total, and between them what rounding leaves open."""
    rest = rounding_row([row.numbers for row in terms], total.numbers)
    return [*terms, *([Row(ROUNDING, rest, "")] if rest else []), total]


def vectors(name: str, values: Tensor, tokens: list[str], precision: int) -> list[Row]:
    return [
        Row(name, [shown(value, precision) for value in row], token)
        for row, token in zip(values.tolist(), tokens, strict=True)
    ]


def sums(
    before: Tensor, found: Tensor, after: Tensor, tokens: list[str], precision: int, name: str
) -> list[Row]:
    """before + found = after, for each token."""
    rows = []
    for place, token in enumerate(tokens):
        first, second, total = (
            [shown(value, precision) for value in values[place].tolist()]
            for values in (before, found, after)
        )
        terms = [Row("", first, token), Row(f"+ {name}", second, "")]
        rows += with_total(terms, Row("=", total, token))
    return rows


def listed(words: list[str]) -> str:
    """Words with commas, the middle of a long list left out."""
    if len(words) <= MOST_WORDS:
        return ", ".join(words)
    return f"{', '.join(words[:4])}, {REST} {len(words) - 5} more, {words[-1]}"
