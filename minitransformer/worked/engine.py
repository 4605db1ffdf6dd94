"""Run every step of a sheet through our own functions, and judge each printed number."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minitransformer.errors import SheetError
from minitransformer.worked.formulas import evaluate, only_moves
from minitransformer.worked.matrices import size
from minitransformer.worked.sheet import (
    RULES,
    SAME,
    Causes,
    Cell,
    Judged,
    Printed,
    Sheet,
    Slip,
    Step,
    is_rounded,
    is_same,
    read_number,
    rounded,
    shortest,
)
from minitransformer.worked.sheet_model import trace_sheet, traced

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


NOT_CHECKABLE, UNEXPLAINED = "not checkable", "unexplained"


def judge_step(
    sheet: Sheet, step: Step, chains: Chains, values: StepValues | None
) -> dict[Cell, Judged]:
    """Judge every printed number of a step."""
    if step.printed is None:
        return {}
    if values is None:  # nothing to compute it from
        return {cell: Judged(cell, each, None, NOT_CHECKABLE) for cell, each in prints_of(step)}
    printed, own = (len(step.printed), len(step.printed[0])), tuple(values.exact.shape)
    if printed != own:
        formula = step.compute.text if step.compute else ""
        turned = "; it seems to be transposed" if printed == own[::-1] else ""
        raise SheetError(
            f"{sheet.where}: step '{step.name}': printed is {printed[0]}×{printed[1]}, "
            f"{formula} is {size(values.exact)}{turned}"
        )
    origins = copied_cells(sheet, step, chains) if step.reprint else {}
    return {
        cell: judge_cell(sheet, step, cell, each, chains, values, origins.get(cell))
        for cell, each in prints_of(step)
    }


def prints_of(step: Step) -> Iterator[tuple[Cell, Printed]]:
    for at_row, row in enumerate(step.printed or (), start=1):
        for at_column, each in enumerate(row, start=1):
            yield (at_row, at_column), each


def judge_cell(
    sheet: Sheet,
    step: Step,
    cell: Cell,
    printed: Printed,
    chains: Chains,
    values: StepValues,
    origin: Judged | None = None,
) -> Judged:
    """Judge one printed number; `origin` is the earlier print that a reprint copies."""
    exact = at(values.exact, cell)
    is_scan = cell in step.scans
    if cell in step.uncheckable or printed.is_blank:
        return Judged(cell, printed, exact, NOT_CHECKABLE)
    if origin is not None and origin.printed.value == printed.value and not is_scan:
        # A slip that is copied is the same slip; on an unannounced one, the copy follows.
        kind = "follows" if origin.kind == UNEXPLAINED else origin.kind
        rounding = "nearest" if origin.kind == UNEXPLAINED else origin.rounding
        return Judged(
            cell, printed, exact, kind, origin.chain, rounding, origin.causes, origin.behind
        )
    for chain, rounding in fits_in_order(sheet, values, chains):
        tensor: Tensor = getattr(values, chain)
        value = at(tensor, cell)
        is_it = is_rounded(printed, value, rounding) if rounding else is_same(printed, value)
        if is_it:
            causes = causes_of(sheet, step, cell, printed, chains, chain, rounding)
            kind = "follows" if causes else "right"
            return Judged(cell, printed, exact, kind, chain, rounding, causes, is_scan=is_scan)
    same = same_as(at(values.printed, cell), cell)
    behind = slips_behind(sheet, step, chains, "printed", same)
    if slip := slip_at(sheet, step.name, cell, printed, chains):
        return Judged(cell, printed, exact, "slip", causes=Causes([slip.number]), behind=behind)
    label = f"{step.name}{place_of(cell, step)}"
    return Judged(cell, printed, exact, UNEXPLAINED, causes=Causes([label]), behind=behind)


def fits_in_order(sheet: Sheet, values: StepValues, chains: Chains) -> Iterator[tuple[str, str]]:
    """Chains and roundings in the order in which they are tried; the first that fits is it."""
    yield "exact", ""
    # Whoever works with rounded numbers rounds to nearest before anybody cuts.
    order = [("exact", "nearest"), ("exact", "half-down")]
    if values.hidden is None:
        order += [("printed", "nearest"), ("printed", "half-down"), ("exact", "truncated"),
                  ("printed", "truncated")]  # fmt: skip
        if chains.has_slips:
            order += [(chain, rounding) for chain in ("mended", "carried")
                      for rounding in ("nearest", "half-down", "truncated")]  # fmt: skip
    else:
        order += [("exact", "truncated"), ("hidden", "nearest"), ("hidden", "half-down"),
                  ("hidden", "truncated")]  # fmt: skip
    order.append(("exact", "double-rounded"))
    yield from (each for each in order if each[1] in RULES[sheet.rounding])


def causes_of(
    sheet: Sheet,
    step: Step,
    cell: Cell,
    printed: Printed,
    chains: Chains,
    chain: str,
    rounding: str,
) -> Causes:
    """The slips without which a number would have been printed otherwise."""

    def still_fits(tensor: Tensor) -> bool:
        return is_rounded(printed, at(tensor, cell), rounding)

    if chain in ("exact", "hidden"):
        return Causes()
    if chain == "carried":
        return slips_carried(sheet, step, chains, still_fits)
    return slips_behind(sheet, step, chains, chain, still_fits)


def slip_at(sheet: Sheet, step: str, cell: Cell, printed: Printed, chains: Chains) -> Slip | None:
    """The slip that explains a wrong number: it names the cell and the very number."""
    for slip in sheet.slips:
        if slip.step != step or cell not in slip.cells:
            continue
        number = slip.cells.index(cell)
        wrote = read_number(slip.wrote[number])
        if wrote is None or wrote.value != printed.value:
            continue
        if slip.reproduced is None:
            return slip
        where = f"{sheet.where}: slip {slip.number}: as"
        again = evaluate(slip.reproduced, chains.printed, where)
        if again.shape[0] != 1 or again.shape[1] < len(slip.cells):
            raise SheetError(f"{where}: is {size(again)}, for {len(slip.cells)} cells")
        value = at(again, (1, number + 1))
        if is_same(printed, value) or any(
            is_rounded(printed, value, rounding) for rounding in RULES["any"]
        ):
            return slip
    return None


def place_of(cell: Cell, step: Step) -> str:
    """A cell as people write it: [2,3], or [3] in a single row."""
    single = step.printed is not None and len(step.printed) == 1
    return f"[{cell[1]}]" if single else f"[{cell[0]},{cell[1]}]"


VERDICTS = ("agrees", "rounded", "errata_origin", "errata_propagated", "ocr", "not_checkable",
            "unexplained")  # fmt: skip
NOT_RUN = "not run"  # a statement whose check wants a trained run
SAME_ROAD = 1e-12  # two roads through float64 to the same number


@dataclass(frozen=True)
class WorkedStep:
    """A step with our values and a verdict on everything it prints."""

    step: Step
    values: StepValues | None
    judged: dict[Cell, Judged]
    how: str = ""  # the verdict on a statement in words


@dataclass(frozen=True)
class Worked:
    """A sheet that was worked through; `complaints` say where it is not what it claims to be."""

    sheet: Sheet
    steps: list[WorkedStep]
    complaints: list[str]

    def counts(self, *, reprints: bool = False) -> Counter[str]:
        """How many numbers got each verdict, first prints or reprints."""
        return Counter(
            judged.verdict
            for each in self.steps
            if each.step.reprint == reprints
            for judged in each.judged.values()
        )

    @property
    def is_explained(self) -> bool:
        """Is every number and every word of the sheet accounted for?"""
        return not self.complaints and not any(
            each.how == UNEXPLAINED or any(j.how == UNEXPLAINED for j in each.judged.values())
            for each in self.steps
        )


def work_through(sheet: Sheet, run: dict[str, Tensor] | None = None) -> Worked:
    """Run every step of a sheet through our own functions, and compare.

    A procedure in words is worked through on the tensors of a `run`, or else only read.
    """
    chains = new_chains(sheet, run)
    if sheet.run and run is None:
        return Worked(sheet, [WorkedStep(step, None, {}, NOT_RUN) for step in sheet.steps], [])
    tensors = trace_sheet(sheet) if sheet.model else {}
    steps: list[WorkedStep] = []
    complaints: list[str] = []
    for step in sheet.steps:
        values = step_values(sheet, step, chains) if step.compute else None
        judged = judge_step(sheet, step, chains, values)
        how = judge_words(sheet, step, chains.exact)
        steps.append(WorkedStep(step, values, judged, how))
        complaints += other_verdicts(step, judged, how)
        if values is None:
            continue
        extend(sheet, chains, step, values, judged)
        where = f"{sheet.where}: step '{step.name}'"
        roads = {formula.text: evaluate(formula, chains.exact, where) for formula in step.also}
        if step.traced:
            roads[step.traced] = traced(tensors, step.traced, where)
        complaints += [
            f"{step.name}: {road} leads elsewhere, to {listed(value)}"
            for road, value in roads.items()
            if not is_same_matrix(value, values.exact)
        ]
    return Worked(sheet, steps, complaints + wrong_corrections(sheet, steps))


def judge_words(sheet: Sheet, step: Step, exact: dict[str, Tensor]) -> str:
    """The verdict on a statement: by its check, or as declared where nothing can be computed."""
    if not step.text:
        return ""
    declared = step.verdict[0][0] if step.verdict else NOT_CHECKABLE
    slip = next((slip for slip in sheet.slips if slip.step == step.name), None)
    if step.check is None:  # read, not computed
        is_slip = slip is not None and declared == f"slip {slip.number}"
        return declared if is_slip or declared == "scan" else NOT_CHECKABLE
    holds = bool(evaluate(step.check, exact, f"{sheet.where}: step '{step.name}'").all())
    if holds:
        return declared if declared == "scan" else "agrees"
    return f"slip {slip.number}" if slip else UNEXPLAINED


def other_verdicts(step: Step, judged: dict[Cell, Judged], how: str) -> list[str]:
    """Where a sheet claims another verdict than its numbers have."""
    if not step.verdict:
        return []
    claims = {
        f"{step.name}{place_of(cell, step)}": (step.verdict[cell[0] - 1][cell[1] - 1], each.how)
        for cell, each in judged.items()
    }
    if step.text:
        claims[step.name] = (step.verdict[0][0], how)
    return [
        f"{place}: the sheet claims '{claimed}', it is '{found}'"
        for place, (claimed, found) in claims.items()
        if claimed != found
    ]


def wrong_corrections(sheet: Sheet, steps: list[WorkedStep]) -> list[str]:
    """Slips that nothing on the sheet shows, or whose right value is not right."""
    by_name = {each.step.name: each for each in steps}
    complaints = []
    for slip in sheet.slips:
        found = by_name[slip.step]
        if not slip.cells and found.how != f"slip {slip.number}":
            complaints.append(f"slip {slip.number}: {slip.step} does not show it")
        # A slip in words has no cells; its right words are not computed.
        for cell, right in zip(slip.cells, slip.right if slip.cells else (), strict=True):
            judged = found.judged[cell]
            place = f"slip {slip.number}: {slip.step}{place_of(cell, found.step)}"
            if judged.how != f"slip {slip.number}":
                complaints.append(f"{place} does not show it, it is '{judged.how}'")
                continue
            number = read_number(right)
            exact = judged.exact
            assert exact is not None
            if number is None or not (
                is_same(number, exact) or is_rounded(number, exact, "nearest")
            ):
                complaints.append(f"{place}: right is {shortest(exact)}, not {right}")
    return complaints


def is_same_matrix(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(
        first, second, rtol=SAME_ROAD, atol=SAME_ROAD
    )


def listed(values: Tensor) -> str:
    return str([[float(shortest(value)) for value in row] for row in values.tolist()])
