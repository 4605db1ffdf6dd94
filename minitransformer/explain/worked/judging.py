"""Is a printed number right? It is compared with what our own functions make of it."""

from collections.abc import Iterator

from torch import Tensor

from minitransformer.errors import SheetError
from minitransformer.explain.worked.chains import (
    Chains,
    StepValues,
    at,
    copied_cells,
    same_as,
    slips_behind,
    slips_carried,
)
from minitransformer.explain.worked.formulas import evaluate
from minitransformer.explain.worked.matrices import size
from minitransformer.explain.worked.numbers import (
    RULES,
    Printed,
    is_rounded,
    is_same,
    read_number,
)
from minitransformer.explain.worked.sheet import Cell, Sheet, Slip, Step
from minitransformer.explain.worked.verdict import Causes, Judged

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
