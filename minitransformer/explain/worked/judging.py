"""Is a printed number right? It is compared with what our own functions make of it."""

from collections.abc import Callable

from torch import Tensor

from minitransformer.explain.worked.chains import (
    Causes,
    Chains,
    Judged,
    Matrices,
    StepValues,
    at,
    copied_cells,
    set_at,
)
from minitransformer.explain.worked.formulas import SheetError, evaluate, shape_of
from minitransformer.explain.worked.numbers import (
    RULES,
    Printed,
    is_rounded,
    is_same,
    read_number,
)
from minitransformer.explain.worked.sheet import Cell, Sheet, Slip, Step

NOT_CHECKABLE, UNEXPLAINED = "not checkable", "unexplained"


def judge_step(
    sheet: Sheet, step: Step, chains: Chains, values: StepValues | None
) -> dict[Cell, Judged]:
    """Judge every printed number of a step."""
    if step.printed is None:
        return {}
    if values is None:  # nothing to compute it from
        return {
            (r, c): Judged((r, c), each, None, NOT_CHECKABLE)
            for r, row in enumerate(step.printed, 1)
            for c, each in enumerate(row, 1)
        }
    size = (len(step.printed), len(step.printed[0]))
    if size != tuple(values.exact.shape):
        raise SheetError(
            f"{sheet.where}: step '{step.name}': printed is {size[0]}×{size[1]}, "
            f"{step.compute.text if step.compute else ''} is {shape_of(values.exact)}"
        )
    origins = copied_cells(sheet, step, chains) if step.reprint else {}
    return {
        (r, c): judge_cell(sheet, step, (r, c), each, chains, values, origins.get((r, c)))
        for r, row in enumerate(step.printed, 1)
        for c, each in enumerate(row, 1)
    }


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
    if cell in step.uncheckable:
        return Judged(cell, printed, exact, NOT_CHECKABLE)
    if origin is not None and origin.printed.value == printed.value and cell not in step.scans:
        # A reading that was recovered there is plain print here.
        how = origin.how.removeprefix("scan ")
        return Judged(cell, printed, exact, how, origin.causes)
    how, causes = fitting_chain(sheet, step, cell, printed, chains, values)
    if cell in step.scans and how != UNEXPLAINED:
        return Judged(cell, printed, exact, f"scan {how}", causes)
    if how == UNEXPLAINED:
        label = f"{step.name}{place_of(cell, step)}"
        if slip := slip_at(sheet, step.name, cell, printed, chains):
            how = label = f"slip {slip.number}"
        return Judged(cell, printed, exact, how, frozenset([label.removeprefix("slip ")]))
    if causes:
        slips = "+".join(sorted(causes, key=slip_order))
        how = f"follows {slips} {how.removeprefix('printed ')}"
    return Judged(cell, printed, exact, how, causes)


def fitting_chain(
    sheet: Sheet, step: Step, cell: Cell, printed: Printed, chains: Chains, values: StepValues
) -> tuple[str, Causes]:
    """The first chain and rounding that give a printed number, and the slips behind it."""
    if is_same(printed, at(values.exact, cell)):
        return "agrees", frozenset()
    allowed = RULES[sheet.rounding]
    # Whoever works with rounded numbers rounds to nearest before anybody truncates.
    order = [("exact", "nearest"), ("exact", "half-down")]
    if values.hidden is None:
        order += [("printed", "nearest"), ("printed", "half-down"), ("exact", "truncated"),
                  ("printed", "truncated"), ("mended", "nearest"), ("mended", "half-down"),
                  ("mended", "truncated")]  # fmt: skip
    else:
        order += [("exact", "truncated"), ("hidden", "nearest"), ("hidden", "half-down"),
                  ("hidden", "truncated")]  # fmt: skip
    order.append(("exact", "double-rounded"))
    for name, rounding in order:
        tensor: Tensor = getattr(values, name)
        if rounding not in allowed or not is_rounded(printed, at(tensor, cell), rounding):
            continue
        if name == "exact":
            return rounding, frozenset()
        if name == "hidden":
            return f"hidden {rounding}", frozenset()

        def still_fits(tensor: Tensor, rounding: str = rounding) -> bool:
            return is_rounded(printed, at(tensor, cell), rounding)

        return f"{name} {rounding}", slips_behind(sheet, step, chains, name, still_fits)
    return UNEXPLAINED, frozenset()


def slips_behind(
    sheet: Sheet, step: Step, chains: Chains, chain: str, still_fits: Callable[[Tensor], bool]
) -> Causes:
    """The slips without which a printed number would have been another."""
    assert step.compute is not None
    formula = step.compute
    matrices: Matrices = getattr(chains, chain)
    tainted = {
        (name, cell): each.causes
        for name in formula.names
        for cell, each in chains.judged.get(name, {}).items()
        if each.causes and not (chain == "mended" and each.is_origin)
    }
    causes = Causes().union(*tainted.values())

    def without(slips: Causes) -> Tensor:
        put_right = {name: values.clone() for name, values in matrices.items()}
        for (name, cell), behind in tainted.items():
            if behind & slips:
                set_at(put_right[name], cell, at(chains.exact[name], cell))
        return evaluate(formula, put_right, f"{sheet.where}: step '{step.name}'")

    if not causes or still_fits(without(causes)):
        return Causes()
    return Causes(each for each in causes if not still_fits(without(Causes([each])))) or causes


def slip_at(sheet: Sheet, step: str, cell: Cell, printed: Printed, chains: Chains) -> Slip | None:
    """The slip that explains a wrong number: it names the cell and the very number."""
    for slip in sheet.slips:
        if slip.step != step or cell not in slip.cells:
            continue
        wrote = read_number(slip.wrote[slip.cells.index(cell)])
        if wrote is None or wrote.value != printed.value:
            continue
        if slip.reproduced is None:
            return slip
        again = evaluate(slip.reproduced, chains.printed, f"{sheet.where}: slip {slip.number}")
        value = at(again, (1, slip.cells.index(cell) + 1))
        if is_same(printed, value) or any(
            is_rounded(printed, value, rounding) for rounding in RULES["any"]
        ):
            return slip
    return None


def place_of(cell: Cell, step: Step) -> str:
    """A cell as people write it: [2,3], or [3] in a single row."""
    single = step.printed is not None and len(step.printed) == 1
    return f"[{cell[1]}]" if single else f"[{cell[0]},{cell[1]}]"


def slip_order(number: str) -> tuple[int, str]:
    return (int(number), "") if number.isdigit() else (10**9, number)
