"""Works a sheet through, step by step, and says what became of every printed number."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from minitransformer.explain.worked.chains import (
    StepValues,
    extend,
    new_chains,
    step_values,
)
from minitransformer.explain.worked.formulas import evaluate
from minitransformer.explain.worked.judging import NOT_CHECKABLE, UNEXPLAINED, judge_step, place_of
from minitransformer.explain.worked.numbers import is_rounded, is_same, read_number, shortest
from minitransformer.explain.worked.sheet import Cell, Sheet, Step
from minitransformer.explain.worked.sheet_model import trace_sheet, traced
from minitransformer.explain.worked.verdict import Judged

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
