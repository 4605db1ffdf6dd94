"""Worked sheets as JSON, Markdown and LaTeX."""

import json
import math
import re
from typing import Any

from minitransformer.worked.engine import (
    NOT_RUN,
    UNEXPLAINED,
    VERDICTS,
    Worked,
    WorkedStep,
    place_of,
)
from minitransformer.worked.report import (
    heading,
    labelled,
    sheet_facts,
    shortened,
    step_notes,
    summary,
)
from minitransformer.worked.sheet import Judged, slip_order


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


HEAD = r"""% compile with xelatex or lualatex; other scripts need \setmainfont{...}
\documentclass{article}
\usepackage{amsmath,fontspec}
\usepackage[margin=2cm]{geometry}
\setcounter{MaxMatrixCols}{99}
\begin{document}"""
WIDE = 8  # columns of two matrices that still stand side by side


def latex_document(works: list[Worked]) -> str:
    """A document of its own, a section per sheet."""
    sections = [section for worked in works for section in latex_section(worked)]
    return "\n".join([HEAD, *sections, r"\end{document}"])


def latex_section(worked: Worked) -> list[str]:
    sheet = worked.sheet
    lines = [rf"\section*{{{latex(sheet.title)}}}"]
    lines += [rf"{latex(text)}\par" for text in [sheet.source, *sheet_facts(sheet)] if text]
    for name, rows in sheet.given_text.items():
        cells = [[latex_number(text) for text in row] for row in rows]
        lines.append(rf"\[{matrix(latex_name(name), cells)}\]")
    for each in worked.steps:
        lines += latex_step(worked, each)
    return [*lines, *(rf"{latex(line)}\par" for line in summary(worked).splitlines())]


def latex_step(worked: Worked, each: WorkedStep) -> list[str]:
    step = each.step
    lines = [rf"\paragraph{{{latex(heading(step))}}}"]
    if step.compute:
        lines.append(rf"\texttt{{{latex(step.compute.text)}}}")
    if step.text:
        how = "" if each.how == NOT_RUN else f" ({each.how})"
        lines.append(rf"``{latex(step.text)}''{latex(how)}")
    parts, columns = [], 0
    if step.printed is not None and each.judged:
        rows = [
            [latex_cell(each.judged[(r, c)]) for c, _ in enumerate(row, 1)]
            for r, row in enumerate(step.printed, 1)
        ]
        parts.append(matrix("printed", rows))
        columns += len(rows[0])
    if each.values is not None:
        rows = [[latex_number(text) for text in row] for row in shortened(each.values.exact)]
        parts.append(matrix("ours", rows))
        columns += len(rows[0])
    if parts and columns <= WIDE:
        lines.append(r"\[" + r" \quad ".join(parts) + r"\]")
    else:
        lines += [rf"\[{part}\]" for part in parts]
    notes = [*step_notes(worked, each), *([step.note] if step.note else [])]
    return [*lines, *(rf"{latex(note)}\par" for note in notes)]


def matrix(name: str, rows: list[list[str]]) -> str:
    body = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\text{{{name}}}\ \begin{{bmatrix}} {body} \end{{bmatrix}}"


def latex_cell(judged: Judged) -> str:
    text = latex_number(judged.printed.text)
    if judged.kind not in ("slip", "follows", "unexplained"):
        return text
    numbers = [each for each in sorted(judged.causes, key=slip_order) if each.isdecimal()]
    return rf"\underline{{{text}}}" + (f"^{{({','.join(numbers)})}}" if numbers else "")


def latex_name(name: str) -> str:
    return f"given {latex(name)}"


def latex_number(text: str) -> str:
    if text.startswith("…"):
        return rf"\text{{\dots{text[1:]}}}"
    text = text.replace("inf", r"\infty").replace(",", "{,}")
    return re.sub(r"e([-+]?)0*(\d+)", r"\\cdot 10^{\1\2}", text).replace("^{+", "^{")


def latex(text: str) -> str:
    """A text with LaTeX's own characters made harmless."""
    escapes = {
        "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
        "→": r"$\to$", "√": r"$\surd$", "·": r"$\cdot$", "ᵀ": r"$^T$", "…": r"\dots{}",
        "×": r"$\times$", "<": r"$<$", ">": r"$>$",
    }  # fmt: skip
    escapes |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(escapes.get(character, character) for character in text)
