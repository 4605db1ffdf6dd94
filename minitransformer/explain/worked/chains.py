"""Four chains of numbers, carried from step to step of a sheet.

exact    from what is given, in float64
printed  each step from the sheet's own printed numbers before it, as people work
mended   the same, but a slip is put right where it stands: many sheets go on with the right value
hidden   from weights with more digits than were printed, for sheets that come with them
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minitransformer.explain.worked.formulas import evaluate, only_moves
from minitransformer.explain.worked.numbers import Printed, rounded
from minitransformer.explain.worked.sheet import Cell, Sheet, Step

Matrices = dict[str, Tensor]
Causes = frozenset[str]  # the slips that a wrong number goes back to


@dataclass(frozen=True)
class Judged:
    """A printed number, our value, and in `how` the verdict with its reason."""

    cell: Cell
    printed: Printed
    exact: float | None  # None where nothing can be computed
    how: str
    causes: Causes = frozenset()

    @property
    def verdict(self) -> str:
        first = self.how.split()[0]
        return {
            "agrees": "agrees", "slip": "errata_origin", "follows": "errata_propagated",
            "scan": "ocr", "not": "not_checkable", "unexplained": "unexplained",
        }.get(first, "rounded")  # fmt: skip

    @property
    def is_origin(self) -> bool:
        """Is the number wrong without an earlier one to blame?"""
        return self.verdict in ("errata_origin", "unexplained")


@dataclass
class Chains:
    """The four chains up to some step, and the verdicts on what was printed until then."""

    exact: Matrices
    printed: Matrices
    mended: Matrices
    hidden: Matrices
    judged: dict[str, dict[Cell, Judged]]


@dataclass(frozen=True)
class StepValues:
    """What one step comes to on each chain."""

    exact: Tensor
    printed: Tensor
    mended: Tensor
    hidden: Tensor | None


def new_chains(sheet: Sheet, run: Matrices | None) -> Chains:
    given = {**sheet.given, **(run or {})}
    return Chains(dict(given), dict(given), dict(given), {**given, **sheet.hidden}, {})


def step_values(sheet: Sheet, step: Step, chains: Chains) -> StepValues:
    """Run a step's formula on every chain."""
    assert step.compute is not None
    where = f"{sheet.where}: step '{step.name}'"
    return StepValues(
        exact=evaluate(step.compute, chains.exact, where),
        printed=evaluate(step.compute, chains.printed, where),
        mended=evaluate(step.compute, chains.mended, where),
        hidden=evaluate(step.compute, chains.hidden, where) if sheet.hidden else None,
    )


def extend(chains: Chains, step: Step, values: StepValues, judged: dict[Cell, Judged]) -> None:
    """Carry the chains past a judged step."""
    chains.exact[step.name] = values.exact
    if values.hidden is not None:
        chains.hidden[step.name] = values.hidden
    printed, mended = values.printed.clone(), values.mended.clone()
    for cell, each in judged.items():
        set_at(printed, cell, float(each.printed.value))
        # What the sheet's own numbers before it give, to as many digits as were printed.
        right = rounded(at(values.printed, cell), each.printed)
        set_at(mended, cell, right if each.is_origin else float(each.printed.value))
    chains.printed[step.name], chains.mended[step.name] = printed, mended
    chains.judged[step.name] = judged


def copied_cells(sheet: Sheet, step: Step, chains: Chains) -> dict[Cell, Judged]:
    """For each cell of a reprint, the print that it copies."""
    assert step.compute is not None
    if not only_moves(step.compute):  # of a number that this sheet did not print before
        return {}
    numbered: Matrices = {}
    prints: list[Judged | None] = []
    for name in step.compute.names:
        places = torch.zeros_like(chains.exact[name])
        for r in range(1, places.shape[0] + 1):
            for c in range(1, places.shape[1] + 1):
                set_at(places, (r, c), len(prints))
                prints.append(chains.judged.get(name, {}).get((r, c)))
        numbered[name] = places
    moved = evaluate(step.compute, numbered, f"{sheet.where}: step '{step.name}'")
    return {
        (r, c): origin
        for r in range(1, moved.shape[0] + 1)
        for c in range(1, moved.shape[1] + 1)
        if (origin := prints[int(at(moved, (r, c)))]) is not None
    }


def at(tensor: Tensor, cell: Cell) -> float:
    return float(tensor[cell[0] - 1, cell[1] - 1])


def set_at(tensor: Tensor, cell: Cell, value: float) -> None:
    tensor[cell[0] - 1, cell[1] - 1] = value
