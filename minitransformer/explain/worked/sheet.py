"""A worked sheet as data: what is given, each step with what was printed, and the slips in it."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from minitransformer.explain.worked.formulas import Formula
from minitransformer.explain.worked.numbers import Printed

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
