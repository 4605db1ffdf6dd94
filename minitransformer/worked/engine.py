"""Compute every step of a sheet with our own functions, and explain each printed number."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from minitransformer.errors import SheetError
from minitransformer.worked.formulas import evaluate
from minitransformer.worked.operations import size
from minitransformer.worked.sheet import (
    RELATIVE_TOLERANCE,
    RULES,
    Cell,
    Printed,
    Sheet,
    Slip,
    Step,
    by_cell,
    is_rounded,
    is_same,
    read_number,
    rounded_like,
    shortest,
)
from minitransformer.worked.sheet_model import select_tensor, trace_sheet

CATEGORIES = ("agrees", "rounded", "errata_origin", "errata_propagated", "ocr", "not_checkable",
              "unexplained")  # fmt: skip
NOT_RUN = "not run"  # a statement whose check needs a trained run
FLOAT64_TOLERANCE = 1e-12  # between two formulas for the same numbers

# Whoever works with rounded numbers is assumed to round to nearest before truncating.
CANDIDATES = [
    ("exact", ""), ("exact", "nearest"), ("exact", "half-down"),
    ("printed", "nearest"), ("printed", "half-down"),
    ("exact", "truncated"), ("printed", "truncated"),
    ("hidden", "nearest"), ("hidden", "half-down"), ("hidden", "truncated"),
    ("mended", "nearest"), ("mended", "half-down"), ("mended", "truncated"),
    ("carried", "nearest"), ("carried", "half-down"), ("carried", "truncated"),
    ("exact", "double-rounded"),
]  # fmt: skip

Kind = Literal["right", "slip", "follows", "not checkable", "unexplained"]
SlipIds = frozenset[str]  # numbers of slips that a sheet declares, and cells such as E[2,3]
NO_SLIPS: SlipIds = frozenset()
Matrices = dict[str, Tensor]


@dataclass(frozen=True)
class CellVerdict:
    """A printed number, our value, and what explains the number."""

    cell: Cell
    printed: Printed
    exact: float | None  # None where nothing can be computed
    kind: Kind
    variant: str = "exact"  # of the calculation, that gives the number
    rounding: str = ""  # of its value; none where the number is the value
    slips: SlipIds = NO_SLIPS  # that made the number wrong
    earlier_slips: SlipIds = NO_SLIPS  # of a new slip: those behind what was right to print
    is_scan: bool = False  # read from a damaged scan

    @property
    def text(self) -> str:
        """The verdict and its reason in a few words, as sheets claim it."""
        if self.kind == "right":
            variant = "" if self.variant == "exact" else self.variant
            words = ["scan" * self.is_scan, variant, self.rounding or "agrees"]
        elif self.kind == "follows":
            variant = "" if self.variant in ("exact", "printed") else self.variant
            words = ["follows", self.slip_list("+"), variant, self.rounding]
        else:
            words = [self.kind, self.slip_list("+") if self.kind == "slip" else ""]
        return " ".join(filter(None, words))

    @property
    def category(self) -> str:
        """One of CATEGORIES."""
        if self.kind == "right":
            return "ocr" if self.is_scan else "rounded" if self.rounding else "agrees"
        return {
            "slip": "errata_origin", "follows": "errata_propagated",
            "not checkable": "not_checkable", "unexplained": "unexplained",
        }[self.kind]  # fmt: skip

    @property
    def is_new_slip(self) -> bool:
        """Whether the number is wrong by itself and not because of an earlier one."""
        return self.kind in ("slip", "unexplained")

    def slip_list(self, separator: str) -> str:
        """Return the slips that made the number wrong, in the order of their numbers."""
        return separator.join(sorted(self.slips, key=slip_order))


def slip_order(slip: str) -> tuple[int, str]:
    return (int(slip), "") if slip.isdecimal() else (10**9, slip)


Verdicts = dict[Cell, CellVerdict]


@dataclass(frozen=True)
class CheckedStep:
    """A step with our values and a verdict on everything that it prints."""

    step: Step
    values: Matrices | None  # by variant of the calculation
    verdicts: Verdicts
    statement: str = ""  # the verdict on a statement in words

    @property
    def rows(self) -> list[list[CellVerdict]]:
        """The verdicts in the rows that are printed."""
        verdicts = iter(self.verdicts.values())
        return [[next(verdicts) for _ in row] for row in self.step.printed]


@dataclass(frozen=True)
class CheckedSheet:
    """A sheet with its verdicts; `errors` say where it is not what it claims to be."""

    sheet: Sheet
    steps: list[CheckedStep]
    errors: list[str]

    def counts(self, *, reprints: bool = False) -> Counter[str]:
        """Count the numbers of each category, first prints or reprints."""
        return Counter(
            verdict.category
            for each in self.steps
            if each.step.is_reprint == reprints
            for verdict in each.verdicts.values()
        )

    @property
    def is_explained(self) -> bool:
        """Whether every number and every statement of the sheet is accounted for."""
        return not self.errors and not any(
            each.statement == "unexplained"
            or any(verdict.kind == "unexplained" for verdict in each.verdicts.values())
            for each in self.steps
        )


def check_sheet(sheet: Sheet, run: Matrices | None = None) -> CheckedSheet:
    """Compute every step of a sheet with our own functions, and compare.

    A procedure in words is checked with the tensors of a `run`, or else only read.
    """
    if sheet.run and run is None:
        unchecked = [CheckedStep(step, None, {}, NOT_RUN) for step in sheet.steps]
        return CheckedSheet(sheet, unchecked, errors=[])
    calculation = Calculation(sheet, run)
    traced = trace_sheet(sheet) if sheet.model else {}
    steps: list[CheckedStep] = []
    errors: list[str] = []
    for step in sheet.steps:
        values = calculation.values_of(step) if step.compute else None
        verdicts = calculation.check(step, values)
        statement = check_statement(sheet, step, calculation.matrices["exact"])
        steps.append(CheckedStep(step, values, verdicts, statement))
        errors += wrong_claims(step, verdicts, statement)
        if values is None:
            continue
        calculation.add(step, values, verdicts)
        where = f"{sheet.where}: step '{step.name}'"
        exact = calculation.matrices["exact"]
        others = {formula.text: evaluate(formula, exact, where) for formula in step.also}
        if step.traced:
            others[step.traced] = select_tensor(traced, step.traced, where)
        for name, other in others.items():
            if not is_close(other, values["exact"]):
                listed = [[float(shortest(value)) for value in row] for row in other.tolist()]
                errors.append(f"{step.name}: {name} gives something else: {listed}")
    return CheckedSheet(sheet, steps, errors + wrong_slips(sheet, steps))


def is_close(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(
        first, second, rtol=FLOAT64_TOLERANCE, atol=FLOAT64_TOLERANCE
    )


def check_statement(sheet: Sheet, step: Step, matrices: Matrices) -> str:
    """Return the verdict on a statement: by its check, or as claimed where there is none."""
    if not step.text:
        return ""
    claimed = step.claimed.get((1, 1), "not checkable")
    slip = next((slip for slip in sheet.slips if slip.step == step.name), None)
    if step.check is None:  # read, not computed
        is_slip = slip is not None and claimed == f"slip {slip.number}"
        return claimed if is_slip or claimed == "scan" else "not checkable"
    if evaluate(step.check, matrices, f"{sheet.where}: step '{step.name}'").all():
        return claimed if claimed == "scan" else "agrees"
    return f"slip {slip.number}" if slip else "unexplained"


def wrong_claims(step: Step, verdicts: Verdicts, statement: str) -> list[str]:
    """Return where a sheet claims another verdict than ours."""
    if not step.claimed:
        return []
    claims = {
        f"{step.name}{step.cell_name(cell)}": (step.claimed[cell], verdict.text)
        for cell, verdict in verdicts.items()
    }
    if step.text:
        claims[step.name] = (step.claimed[1, 1], statement)
    return [
        f"{name}: the sheet claims '{claimed}', it is '{found}'"
        for name, (claimed, found) in claims.items()
        if claimed != found
    ]


def wrong_slips(sheet: Sheet, steps: list[CheckedStep]) -> list[str]:
    """Return which declared slips are not on the sheet, and which right values are not right."""
    by_name = {each.step.name: each for each in steps}
    errors = []
    for slip in sheet.slips:
        found = by_name[slip.step]
        if not slip.cells and found.statement != f"slip {slip.number}":
            errors.append(f"slip {slip.number}: {slip.step} does not show it")
        # A slip in words has no cells; its right words are not computed.
        for cell, right in zip(slip.cells, slip.right if slip.cells else (), strict=True):
            verdict = found.verdicts[cell]
            name = f"slip {slip.number}: {slip.step}{found.step.cell_name(cell)}"
            if verdict.text != f"slip {slip.number}":
                errors.append(f"{name} does not show it, it is '{verdict.text}'")
                continue
            number, exact = read_number(right), verdict.exact
            assert exact is not None
            if number is None or not (
                is_same(number, exact) or is_rounded(number, exact, "nearest")
            ):
                errors.append(f"{name}: right is {shortest(exact)}, not {right}")
    return errors


class Calculation:
    """A sheet calculated up to some step, in variants that differ in what a step goes on with.

    exact: our values. printed: the printed numbers. mended: the printed numbers, but what should
    have been printed instead of a slip. carried: our values, but slips as printed. hidden: our
    values, from weights with more digits than were printed, for sheets that have those.
    """

    def __init__(self, sheet: Sheet, run: Matrices | None = None) -> None:
        given = {**sheet.given, **(run or {})}
        self.sheet = sheet
        self.steps: list[Step] = []
        self.verdicts: dict[str, Verdicts] = {}
        self.matrices = {
            variant: dict(given) for variant in ("exact", "printed", "mended", "carried")
        }
        if sheet.hidden:
            self.matrices["hidden"] = {**given, **sheet.hidden}
        self.new_slips: dict[tuple[str, Cell], CellVerdict] = {}  # by step and cell
        # For two variants, the slips behind each cell of each matrix.
        self.slips: dict[str, dict[str, dict[Cell, SlipIds]]] = {"printed": {}, "mended": {}}

    def values_of(self, step: Step) -> Matrices:
        """Compute a step in every variant."""
        return {
            variant: self.compute(step, matrices) for variant, matrices in self.matrices.items()
        }

    def compute(self, step: Step, matrices: Matrices) -> Tensor:
        assert step.compute is not None
        return evaluate(step.compute, matrices, f"{self.sheet.where}: step '{step.name}'")

    def check(self, step: Step, values: Matrices | None) -> Verdicts:
        """Explain every printed number of a step."""
        if not step.printed:
            return {}
        if values is None:  # nothing to compute it from
            return {
                cell: CellVerdict(cell, number, None, "not checkable")
                for cell, number in step.cells.items()
            }
        printed, ours = (len(step.printed), len(step.printed[0])), tuple(values["exact"].shape)
        if printed != ours:
            formula = step.compute.text if step.compute else ""
            hint = "; it seems to be transposed" if printed == ours[::-1] else ""
            raise SheetError(
                f"{self.sheet.where}: step '{step.name}': printed is {printed[0]}×{printed[1]}, "
                f"{formula} is {size(values['exact'])}{hint}"
            )
        copied = self.copied_cells(step) if step.is_reprint else {}
        return {
            cell: self.check_cell(step, cell, number, values, copied.get(cell))
            for cell, number in step.cells.items()
        }

    def check_cell(
        self,
        step: Step,
        cell: Cell,
        printed: Printed,
        values: Matrices,
        copied: CellVerdict | None = None,
    ) -> CellVerdict:
        """Explain one printed number; `copied` is the earlier print that a reprint copies."""
        exact = at(values["exact"], cell)
        is_scan = cell in step.scans
        if cell in step.uncheckable or printed.is_blank:
            return CellVerdict(cell, printed, exact, "not checkable")
        if copied is not None and copied.printed.value == printed.value and not is_scan:
            # A copied slip is the same slip; the copy of an undeclared one follows from it.
            if copied.kind == "unexplained":
                copied = replace(copied, kind="follows", rounding="nearest")
            return replace(copied, cell=cell, printed=printed, exact=exact, is_scan=False)
        for variant, rounding in self.candidates():
            value = at(values[variant], cell)
            if is_rounded(printed, value, rounding) if rounding else is_same(printed, value):
                slips = self.slips_behind(step, variant, rounds_to(printed, cell, rounding))
                kind: Kind = "follows" if slips else "right"
                return CellVerdict(
                    cell, printed, exact, kind, variant, rounding, slips, is_scan=is_scan
                )
        is_expected = is_value(at(values["printed"], cell), cell)
        earlier = self.slips_behind(step, "printed", is_expected)
        if slip := self.declared_slip(step, cell, printed):
            slips, kind = SlipIds([slip.number]), "slip"
        else:
            slips, kind = SlipIds([f"{step.name}{step.cell_name(cell)}"]), "unexplained"
        return CellVerdict(cell, printed, exact, kind, slips=slips, earlier_slips=earlier)

    def candidates(self) -> list[tuple[str, str]]:
        """Return the variants and roundings to try, in this order; the first that fits counts."""
        variants = {"exact", "hidden"} if self.sheet.hidden else {"exact", "printed"}
        if self.new_slips and not self.sheet.hidden:
            variants |= {"mended", "carried"}
        roundings = ("", *RULES[self.sheet.rounding])
        return [each for each in CANDIDATES if each[0] in variants and each[1] in roundings]

    def declared_slip(self, step: Step, cell: Cell, printed: Printed) -> Slip | None:
        """Return the slip that the sheet declares for this very number at this cell."""
        for slip in self.sheet.slips:
            if slip.step != step.name or cell not in slip.cells:
                continue
            index = slip.cells.index(cell)
            wrote = read_number(slip.wrote[index])
            if wrote is None or wrote.value != printed.value:
                continue
            if slip.reproduced is None:
                return slip
            where = f"{self.sheet.where}: slip {slip.number}: as"
            reproduced = evaluate(slip.reproduced, self.matrices["printed"], where)
            if reproduced.shape[0] != 1 or reproduced.shape[1] < len(slip.cells):
                raise SheetError(f"{where}: is {size(reproduced)}, for {len(slip.cells)} cells")
            value = float(reproduced[0, index])
            if is_same(printed, value) or any(
                is_rounded(printed, value, rounding) for rounding in RULES["any"]
            ):
                return slip
        return None

    def copied_cells(self, step: Step) -> Verdicts:
        """Return, for each cell of a reprint, the verdict on the print that it copies."""
        assert step.compute is not None
        if not step.compute.only_rearranges:  # numbers that this sheet did not print before
            return {}
        exact = self.matrices["exact"]
        numbered: Matrices = {}
        prints: list[CellVerdict | None] = []
        for name in step.compute.names:
            numbered[name] = torch.zeros_like(exact[name])
            for cell in cells_of(exact[name]):
                set_at(numbered[name], cell, len(prints))
                prints.append(self.verdicts.get(name, {}).get(cell))
        moved = self.compute(step, numbered)
        origins = {cell: prints[int(at(moved, cell))] for cell in cells_of(moved)}
        return {cell: origin for cell, origin in origins.items() if origin is not None}

    def slips_behind(
        self, step: Step, variant: str, still_fits: Callable[[Tensor], bool]
    ) -> SlipIds:
        """Return the slips without which a value would not fit; all, if none alone decides it."""
        without: Callable[[SlipIds], Tensor]
        if variant == "carried":
            slips = NO_SLIPS.union(*(verdict.slips for verdict in self.new_slips.values()))
            without = partial(self.carried_value_without, step)
        elif variant in self.slips:
            slips = NO_SLIPS.union(*self.tainted_cells(step, variant).values())
            without = partial(self.value_without, step, variant)
        else:
            return NO_SLIPS
        if not slips or still_fits(without(slips)):
            return NO_SLIPS
        return SlipIds(each for each in slips if not still_fits(without(SlipIds([each])))) or slips

    def value_without(self, step: Step, variant: str, slips: SlipIds) -> Tensor:
        """Compute a step in a variant, from our values where some slips spoiled what it reads."""
        matrices = dict(self.matrices[variant])
        tainted = self.tainted_cells(step, variant)
        for name in {name for name, _ in tainted}:
            matrices[name] = matrices[name].clone()
        for (name, cell), behind in tainted.items():
            if behind & slips:
                set_at(matrices[name], cell, at(self.matrices["exact"][name], cell))
        return self.compute(step, matrices)

    def tainted_cells(self, step: Step, variant: str) -> dict[tuple[str, Cell], SlipIds]:
        """Return what a step reads that goes back to slips."""
        assert step.compute is not None
        return {
            (name, cell): slips
            for name in step.compute.names
            for cell, slips in self.slips[variant].get(name, {}).items()
            if slips
        }

    def carried_value_without(self, step: Step, slips: SlipIds) -> Tensor:
        """Compute a step and all before it, going on with slips as printed but for some."""
        matrices = dict(self.matrices["exact"])
        for earlier in self.steps:
            matrices[earlier.name] = self.compute(earlier, matrices).clone()
            for (name, cell), verdict in self.new_slips.items():
                if name == earlier.name and not verdict.slips & slips:
                    set_at(matrices[name], cell, float(verdict.printed.value))
        return self.compute(step, matrices)

    def add(self, step: Step, values: Matrices, verdicts: Verdicts) -> None:
        """Continue every variant with a checked step."""
        printed, mended, carried = (
            values[variant].clone() for variant in ("printed", "mended", "carried")
        )
        slips: dict[str, dict[Cell, SlipIds]] = {"printed": {}, "mended": {}}
        for cell, verdict in verdicts.items():
            if verdict.printed.is_blank:
                continue
            is_new = verdict.is_new_slip
            value = float(verdict.printed.value)
            # What the sheet's own numbers before it give, to as many digits as were printed.
            right = rounded_like(verdict.printed, at(values["printed"], cell), self.sheet.rounding)
            set_at(printed, cell, value)
            set_at(mended, cell, right if is_new else value)
            if is_new:
                set_at(carried, cell, value)
                self.new_slips[step.name, cell] = verdict
            slips["printed"][cell] = verdict.slips
            slips["mended"][cell] = verdict.earlier_slips if is_new else verdict.slips
        for variant in ("printed", "mended"):
            # Cells that were not printed, or left empty
            silent = [cell for cell in cells_of(values["exact"]) if cell not in slips[variant]]
            if silent and self.tainted_cells(step, variant):
                for cell in silent:
                    same = is_value(at(values[variant], cell), cell)
                    slips[variant][cell] = self.slips_behind(step, variant, same)
            self.slips[variant][step.name] = slips[variant]
        self.matrices["printed"][step.name] = printed
        self.matrices["mended"][step.name] = mended
        self.matrices["carried"][step.name] = carried
        for variant in values.keys() & {"exact", "hidden"}:
            self.matrices[variant][step.name] = values[variant]
        self.verdicts[step.name] = verdicts
        self.steps.append(step)


def is_value(value: float, cell: Cell) -> Callable[[Tensor], bool]:
    """Return a function that tests whether a matrix has this value at a cell."""
    return lambda tensor: abs(at(tensor, cell) - value) <= RELATIVE_TOLERANCE * abs(value)


def rounds_to(printed: Printed, cell: Cell, rounding: str) -> Callable[[Tensor], bool]:
    """Return a function that tests whether a matrix's value at a cell is printed like this."""
    return lambda tensor: is_rounded(printed, at(tensor, cell), rounding)


def cells_of(tensor: Tensor) -> list[Cell]:
    return list(by_cell(tensor.tolist()))


def at(tensor: Tensor, cell: Cell) -> float:
    return float(tensor[cell[0] - 1, cell[1] - 1])


def set_at(tensor: Tensor, cell: Cell, value: float) -> None:
    tensor[cell[0] - 1, cell[1] - 1] = value
