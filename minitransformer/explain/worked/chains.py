"""Five chains of numbers, carried from step to step of a sheet.

exact    from what is given, in float64
printed  each step from the sheet's own printed numbers before it, as people work
mended   the same, but a slip is put right where it stands: many sheets go on with the right value
carried  exactly again, but with every slip taken over, as a calculator's memory does
hidden   from weights with more digits than were printed, for sheets that come with them
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minitransformer.explain.worked.formulas import evaluate, only_moves
from minitransformer.explain.worked.numbers import SAME, rounded
from minitransformer.explain.worked.sheet import Cell, Sheet, Step
from minitransformer.explain.worked.verdict import Causes, Judged

Matrices = dict[str, Tensor]


@dataclass
class Chains:
    """The chains up to some step, and what was found until then."""

    exact: Matrices
    printed: Matrices
    mended: Matrices
    carried: Matrices
    hidden: Matrices
    done: list[Step] = field(default_factory=list)
    judged: dict[str, dict[Cell, Judged]] = field(default_factory=dict)
    # For the printed and the mended chain, the slips behind each cell of each matrix.
    causes: dict[str, dict[str, dict[Cell, Causes]]] = field(
        default_factory=lambda: {"printed": {}, "mended": {}}
    )

    @property
    def has_slips(self) -> bool:
        return any(each.is_origin for cells in self.judged.values() for each in cells.values())


@dataclass(frozen=True)
class StepValues:
    """What one step comes to on each chain."""

    exact: Tensor
    printed: Tensor
    mended: Tensor
    carried: Tensor
    hidden: Tensor | None


def new_chains(sheet: Sheet, run: Matrices | None) -> Chains:
    given = {**sheet.given, **(run or {})}
    return Chains(
        exact=dict(given),
        printed=dict(given),
        mended=dict(given),
        carried=dict(given),
        hidden={**given, **sheet.hidden},
    )


def step_values(sheet: Sheet, step: Step, chains: Chains) -> StepValues:
    """Run a step's formula on every chain."""
    return StepValues(
        exact=value_of(sheet, step, chains.exact),
        printed=value_of(sheet, step, chains.printed),
        mended=value_of(sheet, step, chains.mended),
        carried=value_of(sheet, step, chains.carried),
        hidden=value_of(sheet, step, chains.hidden) if sheet.hidden else None,
    )


def value_of(sheet: Sheet, step: Step, matrices: Matrices) -> Tensor:
    assert step.compute is not None
    return evaluate(step.compute, matrices, f"{sheet.where}: step '{step.name}'")


def extend(
    sheet: Sheet, chains: Chains, step: Step, values: StepValues, judged: dict[Cell, Judged]
) -> None:
    """Carry the chains past a judged step."""
    printed, mended, carried = (
        each.clone() for each in (values.printed, values.mended, values.carried)
    )
    causes: dict[str, dict[Cell, Causes]] = {"printed": {}, "mended": {}}
    for cell, each in judged.items():
        if each.printed.is_blank:
            continue
        value = float(each.printed.value)
        set_at(printed, cell, value)
        # What the sheet's own numbers before it give, to as many digits as were printed.
        right = rounded(at(values.printed, cell), each.printed, sheet.rounding)
        set_at(mended, cell, right if each.is_origin else value)
        if each.is_origin:
            set_at(carried, cell, value)
        causes["printed"][cell] = each.causes
        causes["mended"][cell] = each.behind if each.is_origin else each.causes
    for chain, value_then in (("printed", values.printed), ("mended", values.mended)):
        unjudged = [cell for cell in cells_of(values.exact) if cell not in causes[chain]]
        if unjudged and tainted_cells(step, chains, chain):  # not printed, or left empty
            for cell in unjudged:
                same = same_as(at(value_then, cell), cell)
                causes[chain][cell] = slips_behind(sheet, step, chains, chain, same)
        chains.causes[chain][step.name] = causes[chain]
    chains.exact[step.name], chains.printed[step.name] = values.exact, printed
    chains.mended[step.name], chains.carried[step.name] = mended, carried
    if values.hidden is not None:
        chains.hidden[step.name] = values.hidden
    chains.judged[step.name] = judged
    chains.done.append(step)


def slips_behind(
    sheet: Sheet, step: Step, chains: Chains, chain: str, still_fits: Callable[[Tensor], bool]
) -> Causes:
    """The slips without which a step's value on a chain would have been another."""
    matrices: Matrices = getattr(chains, chain)
    tainted = tainted_cells(step, chains, chain)

    def without(slips: Causes) -> Tensor:
        put_right = dict(matrices)
        for name in {name for name, _ in tainted}:
            put_right[name] = matrices[name].clone()
        for (name, cell), behind in tainted.items():
            if behind & slips:
                set_at(put_right[name], cell, at(chains.exact[name], cell))
        return value_of(sheet, step, put_right)

    return blamed(Causes().union(*tainted.values()), without, still_fits)


def tainted_cells(step: Step, chains: Chains, chain: str) -> dict[tuple[str, Cell], Causes]:
    """What a step reads that goes back to slips."""
    assert step.compute is not None
    return {
        (name, cell): causes
        for name in step.compute.names
        for cell, causes in chains.causes[chain].get(name, {}).items()
        if causes
    }


def slips_carried(
    sheet: Sheet, step: Step, chains: Chains, still_fits: Callable[[Tensor], bool]
) -> Causes:
    """The same for the carried chain, on which every earlier step is computed once more."""
    origins = {
        (name, cell): each
        for name, cells in chains.judged.items()
        for cell, each in cells.items()
        if each.is_origin
    }

    def without(slips: Causes) -> Tensor:
        matrices = dict(chains.exact)
        for earlier in chains.done:
            matrices[earlier.name] = value_of(sheet, earlier, matrices).clone()
            for (name, cell), each in origins.items():
                if name == earlier.name and not each.causes & slips:
                    set_at(matrices[name], cell, float(each.printed.value))
        return value_of(sheet, step, matrices)

    return blamed(Causes().union(*(each.causes for each in origins.values())), without, still_fits)


def blamed(
    causes: Causes, without: Callable[[Causes], Tensor], still_fits: Callable[[Tensor], bool]
) -> Causes:
    """The slips that change a value by themselves; all of them where only together they do."""
    if not causes or still_fits(without(causes)):
        return Causes()
    return Causes(each for each in causes if not still_fits(without(Causes([each])))) or causes


def copied_cells(sheet: Sheet, step: Step, chains: Chains) -> dict[Cell, Judged]:
    """For each cell of a reprint, the print that it copies."""
    assert step.compute is not None
    if not only_moves(step.compute):  # of a number that this sheet did not print before
        return {}
    numbered: Matrices = {}
    prints: list[Judged | None] = []
    for name in step.compute.names:
        numbered[name] = torch.zeros_like(chains.exact[name])
        for cell in cells_of(numbered[name]):
            set_at(numbered[name], cell, len(prints))
            prints.append(chains.judged.get(name, {}).get(cell))
    moved = value_of(sheet, step, numbered)
    origins = {cell: prints[int(at(moved, cell))] for cell in cells_of(moved)}
    return {cell: origin for cell, origin in origins.items() if origin is not None}


def cells_of(tensor: Tensor) -> list[Cell]:
    rows, columns = tensor.shape
    return [(row, column) for row in range(1, rows + 1) for column in range(1, columns + 1)]


def same_as(value: float, cell: Cell) -> Callable[[Tensor], bool]:
    return lambda tensor: abs(at(tensor, cell) - value) <= SAME * abs(value)


def at(tensor: Tensor, cell: Cell) -> float:
    return float(tensor[cell[0] - 1, cell[1] - 1])


def set_at(tensor: Tensor, cell: Cell, value: float) -> None:
    tensor[cell[0] - 1, cell[1] - 1] = value
