"""Compute every step of a sheet with our own functions, and explain each printed number."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from minitransformer.errors import SheetError
from minitransformer.worked.formulas import evaluate, size
from minitransformer.worked.sheet import (
    RELATIVE_TOLERANCE,
    RULES,
    Cell,
    Printed,
    Sheet,
    Slip,
    Step,
    by_cell,
    format_number,
    is_rounded,
    read_number,
    round_like,
)
from minitransformer.worked.sheet_model import select_tensor, trace_sheet

CATEGORIES = ("agrees", "rounded", "errata_origin", "errata_propagated", "ocr", "not_checkable",
              "unexplained")  # fmt: skip
NOT_RUN = "not run"  # a statement whose check needs a trained run
TOLERANCE = 1e-12  # between two formulas for the same numbers

# Variants of the calculation and roundings to try; the first that gives the printed number counts.
# Rounding to nearest, also of the sheet's own rounded numbers, is tried before truncation.
CANDIDATES = [
    ("exact", ""), ("exact", "nearest"), ("exact", "half-down"),
    ("printed", "nearest"), ("printed", "half-down"),
    ("exact", "truncated"), ("printed", "truncated"),
    ("hidden", "nearest"), ("hidden", "half-down"), ("hidden", "truncated"),
    ("corrected", "nearest"), ("corrected", "half-down"), ("corrected", "truncated"),
    ("carried", "nearest"), ("carried", "half-down"), ("carried", "truncated"),
    ("exact", "double-rounded"),
]  # fmt: skip

Kind = Literal["right", "slip", "follows", "not checkable", "unexplained"]
SlipIds = frozenset[str]  # numbers of slips that a sheet declares, and cells such as E[2,3]
NO_SLIPS: SlipIds = frozenset()
Matrices = dict[str, Tensor]


@dataclass(frozen=True)
class Verdict:
    """A printed number, our value, and what explains the number."""

    printed: Printed
    exact: float | None  # None where nothing can be computed
    kind: Kind
    variant: str = "exact"  # of the calculation, that gives the number
    rounding: str = ""  # of its value; none where the number is the value
    slips: SlipIds = NO_SLIPS  # that made the number wrong
    earlier_slips: SlipIds = NO_SLIPS  # of a new slip: those that changed its right value
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

    def slip_list(self, separator: str) -> str:
        """Return the slips that made the number wrong, in the order of their numbers."""
        return separator.join(sorted(self.slips, key=slip_order))


def slip_order(slip: str) -> tuple[int, str]:
    return (int(slip), "") if slip.isdecimal() else (10**9, slip)


Verdicts = dict[Cell, Verdict]


@dataclass(frozen=True)
class CheckedStep:
    """A step with our values and a verdict on everything that it prints."""

    step: Step
    values: Matrices | None  # by variant of the calculation
    verdicts: Verdicts
    statement: str = ""  # the verdict on a statement in words

    @property
    def rows(self) -> list[list[Verdict]]:
        """The verdicts in the rows that are printed."""
        verdicts = iter(self.verdicts.values())
        return [[next(verdicts) for _ in row] for row in self.step.printed]


@dataclass(frozen=True)
class CheckedSheet:
    """A sheet with its verdicts; `errors` are the claims of the sheet that do not hold."""

    sheet: Sheet
    steps: list[CheckedStep]
    errors: list[str]

    def verdicts(self) -> Iterator[tuple[Step, Cell, Verdict]]:
        """Yield the verdict on every printed number."""
        for each in self.steps:
            for cell, verdict in each.verdicts.items():
                yield each.step, cell, verdict

    def counts(self, *, reprints: bool = False) -> Counter[str]:
        """Count the numbers of each category, first prints or reprints."""
        return Counter(
            verdict.category for step, _, verdict in self.verdicts() if step.is_reprint == reprints
        )

    @property
    def is_explained(self) -> bool:
        """Whether every number and every statement of the sheet is accounted for."""
        found = [each.statement for each in self.steps]
        found += [verdict.kind for _, _, verdict in self.verdicts()]
        return not self.errors and "unexplained" not in found


def check_sheet(sheet: Sheet, run: Matrices | None = None) -> CheckedSheet:
    """Compute every step of a sheet with our own functions, and compare.

    A procedure in words is checked with the tensors of a `run`; without one, it is not checked.
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
        exact = calculation.matrices["exact"]
        statement = check_statement(sheet, step, exact)
        steps.append(CheckedStep(step, values, verdicts, statement))
        errors += wrong_claims(step, verdicts, statement)
        if values is None:
            continue
        calculation.add(step, values, verdicts)
        where = f"{sheet.where}: step '{step.name}'"
        others = {formula.text: evaluate(formula, exact, where) for formula in step.also}
        if step.traced:
            others[step.traced] = select_tensor(traced, step.traced, where)
        for name, other in others.items():
            ours = values["exact"]
            is_close = other.shape == ours.shape and torch.allclose(
                other, ours, rtol=TOLERANCE, atol=TOLERANCE
            )
            if not is_close:
                listed = [[float(format_number(value)) for value in row] for row in other.tolist()]
                errors.append(f"{step.name}: {name} gives other numbers: {listed}")
    return CheckedSheet(sheet, steps, errors + wrong_slips(sheet, steps))


def check_statement(sheet: Sheet, step: Step, matrices: Matrices) -> str:
    """Return the verdict on a statement: by its check, or as claimed where there is none."""
    if not step.text:
        return ""
    claimed = step.claimed.get((0, 0), "not checkable")
    slip = next((slip for slip in sheet.slips if slip.step == step.name), None)
    if step.check is None:  # read, not computed
        is_slip = slip is not None and claimed == f"slip {slip.number}"
        return claimed if is_slip or claimed == "scan" else "not checkable"
    if evaluate(step.check, matrices, f"{sheet.where}: step '{step.name}'").all():
        return claimed if claimed == "scan" else "agrees"
    return f"slip {slip.number}" if slip else "unexplained"


def wrong_claims(step: Step, verdicts: Verdicts, statement: str) -> list[str]:
    """Return an error for each verdict that the sheet claims otherwise."""
    if not step.claimed:
        return []
    claims = {
        step.full_name(cell): (step.claimed[cell], verdict.text)
        for cell, verdict in verdicts.items()
    }
    if step.text:
        claims[step.name] = (step.claimed[0, 0], statement)
    return [
        f"{name}: the sheet claims '{claimed}', the verdict is '{found}'"
        for name, (claimed, found) in claims.items()
        if claimed != found
    ]


def wrong_slips(sheet: Sheet, steps: list[CheckedStep]) -> list[str]:
    """Return an error for each declared slip that is not on the sheet or not right as declared."""
    by_name = {each.step.name: each for each in steps}
    errors = []
    for slip in sheet.slips:
        number, found = f"slip {slip.number}", by_name[slip.step]
        if not slip.cells and found.statement != number:
            errors.append(f"{number}: the verdict on {slip.step} is '{found.statement}'")
        # A slip in words has no cells; its right words are not computed.
        for cell, right in zip(slip.cells, slip.right if slip.cells else (), strict=True):
            verdict, name = found.verdicts[cell], found.step.full_name(cell)
            if verdict.text != number:
                errors.append(f"{number}: the verdict on {name} is '{verdict.text}'")
                continue
            declared, exact = read_number(right), verdict.exact
            assert exact is not None
            if declared is None or not is_rounded(declared, exact, "nearest"):
                errors.append(f"{number}: {name}: right is {format_number(exact)}, not {right}")
    return errors


class Calculation:
    """A sheet calculated up to some step, in variants that differ in what a step goes on with.

    exact: our values. printed: the printed numbers. corrected: the printed numbers, but what should
    have been printed instead of a slip. carried: our values, but slips as printed. hidden: our
    values, from matrices with more digits than were printed, for sheets that have those.
    """

    def __init__(self, sheet: Sheet, run: Matrices | None = None) -> None:
        given = {**sheet.given, **(run or {})}
        self.sheet = sheet
        self.steps: list[Step] = []
        self.verdicts: dict[str, Verdicts] = {}
        self.matrices = {
            variant: dict(given) for variant in ("exact", "printed", "corrected", "carried")
        }
        if sheet.hidden:
            self.matrices["hidden"] = {**given, **sheet.hidden}
        self.new_slips: dict[tuple[str, Cell], Verdict] = {}  # by step and cell
        # For two variants, the slips that each cell of each matrix depends on.
        self.slips: dict[str, dict[str, dict[Cell, SlipIds]]] = {"printed": {}, "corrected": {}}

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
                cell: Verdict(number, None, "not checkable") for cell, number in step.cells.items()
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
        copied: Verdict | None,
    ) -> Verdict:
        """Explain one printed number; `copied` is the earlier print that a reprint copies."""
        exact = values["exact"][cell].item()
        is_scan = cell in step.scans
        if cell in step.uncheckable or printed.is_blank:
            return Verdict(printed, exact, "not checkable")
        if copied is not None and copied.printed.value == printed.value and not is_scan:
            # A copied slip is the same slip; the copy of an undeclared one follows from it.
            if copied.kind == "unexplained":
                copied = replace(copied, kind="follows", rounding="nearest")
            return replace(copied, printed=printed, exact=exact, is_scan=False)
        for variant, rounding in self.candidates():
            if is_rounded(printed, values[variant][cell].item(), rounding):
                slips = self.slips_of(step, variant, rounds_to(printed, cell, rounding))
                kind: Kind = "follows" if slips else "right"
                return Verdict(printed, exact, kind, variant, rounding, slips, is_scan=is_scan)
        is_expected = is_value(values["printed"][cell].item(), cell)
        earlier = self.slips_of(step, "printed", is_expected)
        if slip := self.declared_slip(step, cell, printed):
            slips, kind = SlipIds([slip.number]), "slip"
        else:
            slips, kind = SlipIds([step.full_name(cell)]), "unexplained"
        return Verdict(printed, exact, kind, slips=slips, earlier_slips=earlier)

    def candidates(self) -> list[tuple[str, str]]:
        """Return those of CANDIDATES that are possible on this sheet so far."""
        variants = {"exact", "hidden"} if self.sheet.hidden else {"exact", "printed"}
        if self.new_slips and not self.sheet.hidden:
            variants |= {"corrected", "carried"}
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
            value = reproduced[0, index].item()
            if any(is_rounded(printed, value, rounding) for rounding in RULES["any"]):
                return slip
        return None

    def copied_cells(self, step: Step) -> Verdicts:
        """Return, for each cell of a reprint, the verdict on the print that it copies."""
        assert step.compute is not None
        if not step.compute.only_rearranges:  # numbers that this sheet did not print before
            return {}
        # Rearrange the indices of the earlier prints instead of their numbers.
        indices: Matrices = {}
        prints: list[Verdict | None] = []
        for name in step.compute.names:
            indices[name] = torch.zeros_like(self.matrices["exact"][name])
            for cell in cells_of(indices[name]):
                indices[name][cell] = len(prints)
                prints.append(self.verdicts.get(name, {}).get(cell))
        moved = by_cell(self.compute(step, indices).tolist())
        originals = {cell: prints[int(index)] for cell, index in moved.items()}
        return {cell: original for cell, original in originals.items() if original is not None}

    def slips_of(self, step: Step, variant: str, fits: Callable[[Tensor], bool]) -> SlipIds:
        """Return the slips without which a value would not fit; all, if none alone decides it."""
        without: Callable[[SlipIds], Tensor]
        if variant == "carried":
            slips = NO_SLIPS.union(*(verdict.slips for verdict in self.new_slips.values()))
            without = partial(self.carried_value_without, step)
        elif variant in self.slips:
            slips = NO_SLIPS.union(*self.input_slips(step, variant).values())
            without = partial(self.value_without, step, variant)
        else:
            return NO_SLIPS
        if not slips or fits(without(slips)):
            return NO_SLIPS
        return SlipIds(each for each in slips if not fits(without(SlipIds([each])))) or slips

    def input_slips(self, step: Step, variant: str) -> dict[tuple[str, Cell], SlipIds]:
        """Return the cells of a step's inputs that depend on slips, and those slips."""
        assert step.compute is not None
        return {
            (name, cell): slips
            for name in step.compute.names
            for cell, slips in self.slips[variant].get(name, {}).items()
            if slips
        }

    def value_without(self, step: Step, variant: str, slips: SlipIds) -> Tensor:
        """Compute a step in a variant, with our values for inputs that depend on some slips."""
        matrices = dict(self.matrices[variant])
        input_slips = self.input_slips(step, variant)
        for name in {name for name, _ in input_slips}:
            matrices[name] = matrices[name].clone()
        for (name, cell), own in input_slips.items():
            if own & slips:
                matrices[name][cell] = self.matrices["exact"][name][cell]
        return self.compute(step, matrices)

    def carried_value_without(self, step: Step, slips: SlipIds) -> Tensor:
        """Compute a step and all before it, with all slips as printed but for some."""
        matrices = dict(self.matrices["exact"])
        for earlier in self.steps:
            matrices[earlier.name] = self.compute(earlier, matrices).clone()
            for (name, cell), verdict in self.new_slips.items():
                if name == earlier.name and not verdict.slips & slips:
                    matrices[name][cell] = float(verdict.printed.value)
        return self.compute(step, matrices)

    def add(self, step: Step, values: Matrices, verdicts: Verdicts) -> None:
        """Continue every variant with a checked step."""
        printed, corrected, carried = (
            values[variant].clone() for variant in ("printed", "corrected", "carried")
        )
        slips: dict[str, dict[Cell, SlipIds]] = {"printed": {}, "corrected": {}}
        for cell, verdict in verdicts.items():
            if verdict.printed.is_blank:
                continue
            number = float(verdict.printed.value)
            printed[cell] = corrected[cell] = number
            slips["printed"][cell] = slips["corrected"][cell] = verdict.slips
            if verdict.kind in ("slip", "unexplained"):  # wrong by itself
                # What the sheet's own numbers before it give, to as many digits as were printed.
                right = values["printed"][cell].item()
                corrected[cell] = round_like(verdict.printed, right, self.sheet.rounding)
                slips["corrected"][cell] = verdict.earlier_slips
                carried[cell] = number
                self.new_slips[step.name, cell] = verdict
        for variant in ("printed", "corrected"):
            # Cells that were not printed, or left empty
            silent = [cell for cell in cells_of(values["exact"]) if cell not in slips[variant]]
            if silent and self.input_slips(step, variant):
                for cell in silent:
                    is_same = is_value(values[variant][cell].item(), cell)
                    slips[variant][cell] = self.slips_of(step, variant, is_same)
            self.slips[variant][step.name] = slips[variant]
        values = {**values, "printed": printed, "corrected": corrected, "carried": carried}
        for variant, matrix in values.items():
            self.matrices[variant][step.name] = matrix
        self.verdicts[step.name] = verdicts
        self.steps.append(step)


def is_value(value: float, cell: Cell) -> Callable[[Tensor], bool]:
    """Return a function that tests whether a matrix has this value at a cell."""
    return lambda matrix: abs(matrix[cell].item() - value) <= RELATIVE_TOLERANCE * abs(value)


def rounds_to(printed: Printed, cell: Cell, rounding: str) -> Callable[[Tensor], bool]:
    """Return a function that tests whether a matrix's value at a cell is printed like this."""
    return lambda matrix: is_rounded(printed, matrix[cell].item(), rounding)


def cells_of(matrix: Tensor) -> list[Cell]:
    return list(by_cell(matrix.tolist()))
