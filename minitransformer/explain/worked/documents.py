"""Worked sheets for other programs and papers: JSON, Markdown, LaTeX."""

import json
import math
import re
from typing import Any

from minitransformer.explain.worked.chains import Judged
from minitransformer.explain.worked.engine import VERDICTS, Worked, WorkedStep
from minitransformer.explain.worked.report import shortened, step_notes, summary


def list_json(works: list[Worked]) -> str:
    """One entry per sheet: the verdicts sum to `values`."""
    entries = []
    for worked in works:
        counts = worked.counts()
        if not worked.sheet.repeats:
            entries.append(
                {
                    "id": worked.sheet.name,
                    "title": worked.sheet.title,
                    "values": counts.total(),
                    **{verdict: counts[verdict] for verdict in VERDICTS},
                    "slips": [int(slip.number) for slip in worked.sheet.slips],
                }
            )
    return dumped(entries)


def sheet_json(worked: Worked) -> str:
    """Everything about one sheet."""
    sheet, counts = worked.sheet, worked.counts()
    return dumped(
        {
            "id": sheet.name,
            "title": sheet.title,
            "source": sheet.source,
            "conventions": sheet.conventions,
            "values": counts.total(),
            **{verdict: counts[verdict] for verdict in VERDICTS},
            "steps": [step_json(each) for each in worked.steps],
            "slips": [
                {
                    "number": slip.number,
                    "step": slip.step,
                    "cells": slip.cells,
                    "wrote": slip.wrote,
                    "right": slip.right,
                    "why": slip.why,
                }
                for slip in sheet.slips
            ],
            "complaints": worked.complaints,
        }
    )


def step_json(each: WorkedStep) -> dict[str, Any]:
    step = each.step
    exact = each.values.exact.tolist() if each.values else None
    return {
        "name": step.name,
        "says": step.says,
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
    """A table of the steps, then what there is to say about them."""
    sheet = worked.sheet
    lines = [f"## {sheet.title}", ""]
    lines += [f"Source: {sheet.source}", ""] if sheet.source else []
    lines += [f"- {name}: {text}" for name, text in sheet.conventions.items()]
    lines += ["", "| step | formula | printed | ours | verdict |", "|---|---|---|---|---|"]
    for each in worked.steps:
        step = each.step
        formula = f"`{step.compute.text}`" if step.compute else ""
        ours = inline(shortened(each.values.exact)) if each.values else ""
        printed = f"“{step.text}”" if step.text else inline(printed_rows(each))
        hows = list(dict.fromkeys(judged.how for judged in each.judged.values()))
        cells = [
            step.says or step.name,
            formula,
            printed,
            ours,
            "; ".join(hows) or each.how or "not printed",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    notes = [
        f"- {each.step.says or each.step.name}: {note}"
        for each in worked.steps
        for note in [*step_notes(worked, each), *([each.step.note] if each.step.note else [])]
    ]
    return "\n".join([*lines, "", *notes, "", *summary(worked).splitlines()])


def printed_rows(each: WorkedStep) -> list[list[str]]:
    return [[number.text for number in row] for row in each.step.printed or ()]


def inline(rows: list[list[str]]) -> str:
    """A matrix in one line."""
    return "[" + "; ".join(", ".join(row) for row in rows) + "]" if rows else ""


LATEX_HEAD = r"""% compile with xelatex or lualatex; other scripts need \setmainfont{…}
\documentclass{article}
\usepackage{amsmath,fontspec}
\setcounter{MaxMatrixCols}{20}
\begin{document}"""


def latex_document(works: list[Worked]) -> str:
    """A document of its own, a section per sheet; slips are underlined, with their number."""
    sections = [section for worked in works for section in latex_section(worked)]
    return "\n".join([LATEX_HEAD, *sections, r"\end{document}"])


def latex_section(worked: Worked) -> list[str]:
    sheet = worked.sheet
    lines = [rf"\section*{{{latex(sheet.title)}}}", rf"{latex(sheet.source)}\par"]
    for each in worked.steps:
        step = each.step
        lines.append(rf"\paragraph{{{latex(step.says or step.name)}}}")
        if step.text:
            lines.append(rf"``{latex(step.text)}'' ({latex(each.how)})")
        parts = []
        if step.printed is not None:
            rows = [
                [latex_cell(each.judged[(r, c)]) for c, _ in enumerate(row, 1)]
                for r, row in enumerate(step.printed, 1)
            ]
            parts.append(latex_matrix("printed", rows))
        if each.values is not None:
            rows = [[latex_number(text) for text in row] for row in shortened(each.values.exact)]
            parts.append(latex_matrix("ours", rows))
        if parts:
            lines.append(r"\[" + r" \quad ".join(parts) + r"\]")
        lines += [rf"{latex(note)}\par" for note in step_notes(worked, each)]
    return [*lines, *(rf"{latex(line)}\par" for line in summary(worked).splitlines())]


def latex_matrix(name: str, rows: list[list[str]]) -> str:
    body = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\text{{{name}}}\ \begin{{bmatrix}} {body} \end{{bmatrix}}"


def latex_cell(judged: Judged) -> str:
    text = latex_number(judged.printed.text)
    first, *rest = judged.how.split()
    if first == "slip":
        return rf"\underline{{{text}}}^{{({rest[0]})}}"
    return rf"\underline{{{text}}}" if judged.verdict == "unexplained" else text


def latex_number(text: str) -> str:
    text = text.replace("inf", r"\infty").replace(",", "{,}")
    return re.sub(r"e([-+]?)0*(\d+)", r"\\cdot 10^{\1\2}", text).replace("^{+", "^{")


def latex(text: str) -> str:
    """A text with LaTeX's own characters made harmless."""
    escapes = {
        "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
        "→": r"$\to$", "√": r"$\surd$", "·": r"$\cdot$",
    }  # fmt: skip
    escapes |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(escapes.get(character, character) for character in text)
