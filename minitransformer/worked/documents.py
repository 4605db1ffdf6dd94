"""Worked sheets as JSON, Markdown and LaTeX."""

import json
import math
import re
from typing import Any

from minitransformer.worked.engine import (
    CATEGORIES,
    NOT_RUN,
    CellVerdict,
    CheckedSheet,
    CheckedStep,
    slip_order,
)
from minitransformer.worked.report import (
    followers,
    heading,
    labelled,
    sheet_facts,
    shortened,
    step_notes,
    summary,
)

LATEX_HEAD = r"""% compile with xelatex or lualatex; other scripts need \setmainfont{...}
\documentclass{article}
\usepackage{amsmath,fontspec}
\usepackage[margin=2cm]{geometry}
\setcounter{MaxMatrixCols}{99}
\begin{document}"""
MAX_COLUMNS = 8  # of two matrices side by side
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "→": r"$\to$", "√": r"$\surd$", "·": r"$\cdot$", "ᵀ": r"$^T$", "…": r"\dots{}",
    "×": r"$\times$", "<": r"$<$", ">": r"$>$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def list_json(checked: list[CheckedSheet]) -> str:
    """Return one entry per sheet; the counts of its categories sum to `values`."""
    return to_json([overview(each) for each in checked if not each.sheet.repeats])


def sheet_json(checked: CheckedSheet) -> str:
    """Return everything about a sheet; `found` are the slips that it does not declare itself."""
    sheet = checked.sheet
    return to_json(
        {
            **overview(checked),
            "source": sheet.source,
            "conventions": sheet.conventions,
            "readings": sheet.readings,
            "given": sheet.given_text,
            "steps": [step_data(each) for each in checked.steps],
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
                {"step": step, **cell_data(verdict), "follow": followers(checked, step + cell)}
                for step, cell, verdict in labelled(checked)
                if verdict.kind == "unexplained"
            ],
            "complaints": checked.errors,
        }
    )


def overview(checked: CheckedSheet) -> dict[str, Any]:
    counts = checked.counts()
    return {
        "id": checked.sheet.name,
        "title": checked.sheet.title,
        "values": counts.total(),
        **{category: counts[category] for category in CATEGORIES},
        "slips": [int(slip.number) for slip in checked.sheet.slips],
    }


def step_data(each: CheckedStep) -> dict[str, Any]:
    step = each.step
    exact = each.values["exact"].tolist() if each.values else None
    return {
        "name": step.name,
        "says": step.title or None,
        "formula": step.compute.text if step.compute else None,
        "reprint": step.is_reprint,
        "ours": exact and [[json_number(value) for value in row] for row in exact],
        "printed": [cell_data(verdict) for verdict in each.verdicts.values()],
        "text": step.text or None,
        "how": each.statement or None,
        "note": step.note or None,
    }


def cell_data(verdict: CellVerdict) -> dict[str, Any]:
    return {
        "cell": verdict.cell,
        "printed": verdict.printed.text,
        "ours": None if verdict.exact is None else json_number(verdict.exact),
        "verdict": verdict.category,
        "how": verdict.text,
    }


def json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has no infinity


def to_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2)


def sheet_markdown(checked: CheckedSheet) -> str:
    """Return what is given, a table of the steps, and notes on them."""
    sheet = checked.sheet
    lines = [f"## {sheet.title}", ""]
    lines += [f"Source: {sheet.source}", ""] if sheet.source else []
    lines += [f"- {fact}" for fact in sheet_facts(sheet)]
    lines += [f"- given {name} = {inline(rows)}" for name, rows in sheet.given_text.items()]
    lines += ["", "| step | formula | printed | ours | verdict |", "|---|---|---|---|---|"]
    for each in checked.steps:
        step = each.step
        printed = [[verdict.printed.text for verdict in row] for row in each.rows]
        cells = [
            heading(step),
            f"`{step.compute.text}`" if step.compute else "",
            f"“{step.text}”" if step.text else inline(printed),
            inline(shortened(each.values["exact"])) if each.values else "",
            verdicts_text(each) or each.statement or "not printed",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    notes = [
        f"- {each.step.name}: {note}"
        for each in checked.steps
        for note in step_notes(checked, each)
    ]
    return "\n".join([*lines, "", *notes, "", *summary(checked).splitlines()])


def verdicts_text(each: CheckedStep) -> str:
    """Return the verdicts of a step, each with its cells; a single one is for all of them."""
    cells: dict[str, list[str]] = {}
    for cell, verdict in each.verdicts.items():
        cells.setdefault(verdict.text, []).append(each.step.cell_name(cell))
    if len(cells) == 1:
        return next(iter(cells))
    return "; ".join(f"{text} {''.join(names)}" for text, names in cells.items())


def inline(rows: list[list[str]]) -> str:
    """Return a matrix in one line."""
    return "[" + "; ".join(", ".join(row) for row in rows) + "]" if rows else ""


def latex_document(checked: list[CheckedSheet]) -> str:
    """Return a complete document, a section per sheet."""
    sections = [line for each in checked for line in latex_section(each)]
    return "\n".join([LATEX_HEAD, *sections, r"\end{document}"])


def latex_section(checked: CheckedSheet) -> list[str]:
    sheet = checked.sheet
    lines = [rf"\section*{{{latex(sheet.title)}}}"]
    lines += [rf"{latex(text)}\par" for text in [sheet.source, *sheet_facts(sheet)] if text]
    for name, rows in sheet.given_text.items():
        cells = [[latex_number(text) for text in row] for row in rows]
        lines.append(rf"\[{latex_matrix(f'given {latex(name)}', cells)}\]")
    for each in checked.steps:
        lines += latex_step(checked, each)
    return [*lines, *(rf"{latex(line)}\par" for line in summary(checked).splitlines())]


def latex_step(checked: CheckedSheet, each: CheckedStep) -> list[str]:
    step = each.step
    lines = [rf"\paragraph{{{latex(heading(step))}}}"]
    if step.compute:
        lines.append(rf"\texttt{{{latex(step.compute.text)}}}")
    if step.text:
        verdict = "" if each.statement == NOT_RUN else f" ({each.statement})"
        lines.append(rf"``{latex(step.text)}''{latex(verdict)}")
    matrices = {}
    if step.printed:
        matrices["printed"] = [[latex_cell(verdict) for verdict in row] for row in each.rows]
    if each.values is not None:
        ours = shortened(each.values["exact"])
        matrices["ours"] = [[latex_number(text) for text in row] for row in ours]
    parts = [latex_matrix(name, rows) for name, rows in matrices.items()]
    if parts and sum(len(rows[0]) for rows in matrices.values()) <= MAX_COLUMNS:
        parts = [r" \quad ".join(parts)]
    lines += [rf"\[{part}\]" for part in parts]
    return [*lines, *(rf"{latex(note)}\par" for note in step_notes(checked, each))]


def latex_matrix(name: str, rows: list[list[str]]) -> str:
    body = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\text{{{name}}}\ \begin{{bmatrix}} {body} \end{{bmatrix}}"


def latex_cell(verdict: CellVerdict) -> str:
    """Return a printed number, underlined and with the numbers of its slips if it is wrong."""
    text = latex_number(verdict.printed.text)
    if verdict.kind not in ("slip", "follows", "unexplained"):
        return text
    numbers = [slip for slip in sorted(verdict.slips, key=slip_order) if slip.isdecimal()]
    return rf"\underline{{{text}}}" + (f"^{{({','.join(numbers)})}}" if numbers else "")


def latex_number(text: str) -> str:
    if text.startswith("…"):
        return rf"\text{{\dots{text[1:]}}}"
    text = text.replace("inf", r"\infty").replace(",", "{,}")
    return re.sub(r"e([-+]?)0*(\d+)", r"\\cdot 10^{\1\2}", text).replace("^{+", "^{")


def latex(text: str) -> str:
    """Escape LaTeX's own characters."""
    return "".join(LATEX_ESCAPES.get(character, character) for character in text)
