"""Worked sheets for other programs: JSON and Markdown."""

import json
import math
from typing import Any

from minitransformer.explain.worked.engine import VERDICTS, Worked, WorkedStep
from minitransformer.explain.worked.judging import UNEXPLAINED, place_of
from minitransformer.explain.worked.layout import shortened
from minitransformer.explain.worked.report import heading, sheet_facts, step_notes
from minitransformer.explain.worked.summary import labelled, summary
from minitransformer.explain.worked.verdict import Judged


def list_json(works: list[Worked]) -> str:
    """One entry per sheet: the verdicts sum to `values`."""
    return dumped([overview(worked) for worked in works if not worked.sheet.repeats])


def overview(worked: Worked) -> dict[str, Any]:
    counts = worked.counts()
    return {
        "id": worked.sheet.name,
        "title": worked.sheet.title,
        "values": counts.total(),
        **{verdict: counts[verdict] for verdict in VERDICTS},
        "slips": [int(slip.number) for slip in worked.sheet.slips],
    }


def sheet_json(worked: Worked) -> str:
    """Everything about one sheet; `found` are the slips that it does not declare itself."""
    sheet = worked.sheet
    found = [each for each in labelled(worked) if each[2].kind == UNEXPLAINED]
    return dumped(
        {
            **overview(worked),
            "source": sheet.source,
            "conventions": sheet.conventions,
            "readings": sheet.readings,
            "given": sheet.given_text,
            "steps": [step_json(each) for each in worked.steps],
            "slips": [
                {
                    "number": int(slip.number),
                    "step": slip.step,
                    "cells": slip.cells,
                    "wrote": slip.wrote,
                    "right": slip.right,
                    "why": slip.why,
                }
                for slip in sheet.slips
            ],
            "found": [
                {
                    "step": step,
                    **value_json(judged),
                    "follow": [
                        name + at
                        for name, at, other in labelled(worked)
                        if other.kind == "follows" and step + place in other.causes
                    ],
                }
                for step, place, judged in found
            ],
            "complaints": worked.complaints,
        }
    )


def step_json(each: WorkedStep) -> dict[str, Any]:
    step = each.step
    exact = each.values.exact.tolist() if each.values else None
    return {
        "name": step.name,
        "says": step.says or None,
        "formula": step.compute.text if step.compute else None,
        "reprint": step.reprint,
        "ours": exact and [[number_json(value) for value in row] for row in exact],
        "printed": [value_json(judged) for judged in each.judged.values()],
        "text": step.text or None,
        "how": each.how or None,
        "note": step.note or None,
    }


def value_json(judged: Judged) -> dict[str, Any]:
    return {
        "cell": judged.cell,
        "printed": judged.printed.text,
        "ours": None if judged.exact is None else number_json(judged.exact),
        "verdict": judged.verdict,
        "how": judged.how,
    }


def number_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has no infinity


def dumped(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2)


def sheet_markdown(worked: Worked) -> str:
    """What is given, a table of the steps, and what there is to say about them."""
    sheet = worked.sheet
    lines = [f"## {sheet.title}", ""]
    lines += [f"Source: {sheet.source}", ""] if sheet.source else []
    lines += [f"- {fact}" for fact in sheet_facts(sheet)]
    lines += [f"- given {name} = {inline(rows)}" for name, rows in sheet.given_text.items()]
    lines += ["", "| step | formula | printed | ours | verdict |", "|---|---|---|---|---|"]
    for each in worked.steps:
        step = each.step
        cells = [
            heading(step),
            f"`{step.compute.text}`" if step.compute else "",
            f"“{step.text}”" if step.text else inline(printed_rows(each)),
            inline(shortened(each.values.exact)) if each.values else "",
            verdicts(each) or each.how or "not printed",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    notes = [
        f"- {step.name}: {note}"
        for each in worked.steps
        for step in [each.step]
        for note in [*step_notes(worked, each), *([step.note] if step.note else [])]
    ]
    return "\n".join([*lines, "", *notes, "", *summary(worked).splitlines()])


def verdicts(each: WorkedStep) -> str:
    """The verdicts of a step, each with its cells; a single one stands for all."""
    cells: dict[str, list[str]] = {}
    for cell, judged in each.judged.items():
        cells.setdefault(judged.how, []).append(place_of(cell, each.step))
    if len(cells) == 1:
        return next(iter(cells))
    return "; ".join(f"{how} {''.join(places)}" for how, places in cells.items())


def printed_rows(each: WorkedStep) -> list[list[str]]:
    return [[number.text for number in row] for row in each.step.printed or ()]


def inline(rows: list[list[str]]) -> str:
    """A matrix in one line."""
    return "[" + "; ".join(", ".join(row) for row in rows) + "]" if rows else ""
