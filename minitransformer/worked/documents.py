"""Checked sheets as JSON, Markdown, LaTeX and HTML."""

import json
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from minitransformer.explain.page import fill_template, page_style
from minitransformer.storage import write_output
from minitransformer.worked.engine import (
    CATEGORIES,
    NOT_RUN,
    CheckedSheet,
    CheckedStep,
    Verdict,
    slip_order,
)
from minitransformer.worked.report import (
    HEADINGS,
    MEANING,
    count_row,
    followers,
    given_matrices,
    mark,
    mark_legend,
    our_rows,
    sheet_facts,
    shortened,
    step_notes,
    summary,
)
from minitransformer.worked.sheet import Cell

LATEX_HEAD = r"""% compile with xelatex or lualatex; other scripts need \setmainfont{...}
\documentclass{article}
\usepackage{amsmath,fontspec}
\usepackage[margin=2cm]{geometry}
\setcounter{MaxMatrixCols}{99}
\begin{document}"""
LATEX_COLUMNS = 8  # of two matrices side by side
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "→": r"$\to$", "√": r"$\surd$", "·": r"$\cdot$", "ᵀ": r"$^T$", "…": r"\dots{}",
    "×": r"$\times$", "<": r"$<$", ">": r"$>$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip
NARROW = 20  # characters of a row that surely fits on a phone
CSS_CLASSES = {"slip": "wrong", "unexplained": "wrong", "follows": "follows"}


def write_document(path: Path, checked: list[CheckedSheet], *, is_list: bool) -> None:
    """Write sheets as .html, .md, .tex or .json, which is short for a list of them."""
    match path.suffix.lower():
        case ".html":
            content = html_page(checked)
        case ".md":
            content = "\n\n".join(sheet_markdown(each) for each in checked) + "\n"
        case ".tex":
            content = latex_document(checked) + "\n"
        case _:
            content = (list_json(checked) if is_list else sheet_json(checked[0])) + "\n"
    write_output(path, content.encode())


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
                    "cells": [from_one(cell) for cell in slip.cells],
                    "wrote": slip.wrote,
                    "right": slip.right,
                    "why": slip.why,
                }
                for slip in sheet.slips
            ],
            "found": [
                {
                    "step": step.name,
                    **cell_data(cell, verdict),
                    "follow": followers(checked, step.full_name(cell)),
                }
                for step, cell, verdict in checked.verdicts()
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
        "printed": [cell_data(cell, verdict) for cell, verdict in each.verdicts.items()],
        "text": step.text or None,
        "how": each.statement or None,
        "note": step.note or None,
    }


def cell_data(cell: Cell, verdict: Verdict) -> dict[str, Any]:
    return {
        "cell": from_one(cell),
        "printed": verdict.printed.text,
        "ours": None if verdict.exact is None else json_number(verdict.exact),
        "verdict": verdict.category,
        "how": verdict.text,
    }


def from_one(cell: Cell) -> Cell:
    """Return a cell as sheets number it."""
    return cell[0] + 1, cell[1] + 1


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
            step.heading,
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
    lines = [rf"\paragraph{{{latex(step.heading)}}}"]
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
    if parts and sum(len(rows[0]) for rows in matrices.values()) <= LATEX_COLUMNS:
        parts = [r" \quad ".join(parts)]
    lines += [rf"\[{part}\]" for part in parts]
    return [*lines, *(rf"{latex(note)}\par" for note in step_notes(checked, each))]


def latex_matrix(name: str, rows: list[list[str]]) -> str:
    body = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\text{{{name}}}\ \begin{{bmatrix}} {body} \end{{bmatrix}}"


def latex_cell(verdict: Verdict) -> str:
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


def html_page(checked: list[CheckedSheet]) -> str:
    """Return one sheet as a page, or several after an index."""
    is_alone = len(checked) == 1
    title = checked[0].sheet.title if is_alone else "Worked by hand, checked by machine"
    sections = "\n".join(html_sheet(each, is_alone=is_alone) for each in checked)
    body = f"""<main>
<h1>{escape(title)}</h1>
<p class="quiet">Every printed number, computed again with the functions that train the models.</p>
{"" if is_alone else html_index(checked)}
{sections}
</main>"""
    return fill_template("frame.html", title=escape(title), style=page_style(body), body=body)


def html_index(checked: list[CheckedSheet]) -> str:
    """Return a table of the sheets with their counts."""
    headings = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("example", *HEADINGS))
    rows = []
    for each in checked:
        cells = "".join(f"<td>{number}</td>" for number in count_row(each.counts()))
        name = escape(each.sheet.name)
        rows.append(f'<tr><th scope="row"><a href="#{name}">{name}</a></th>{cells}</tr>')
    table = (
        f'<table class="counts"><thead><tr>{headings}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="All examples">{table}</div>'
        f'\n<p class="quiet">{escape(MEANING)}</p>'
    )


def html_sheet(checked: CheckedSheet, *, is_alone: bool) -> str:
    sheet = checked.sheet
    lines = [f'<section class="sheet" id="{escape(sheet.name)}">']
    lines += [] if is_alone else [f"<h2>{escape(sheet.title)}</h2>"]
    lines += [f'<p class="quiet">from: {escape(sheet.source)}</p>'] if sheet.source else []
    if facts := sheet_facts(sheet):
        lines += ["<ul>", *(f"<li>{escape(fact)}</li>" for fact in facts), "</ul>"]
    given = [html_matrix(name, rows) for name, rows in given_matrices(sheet).items()]
    lines += ['<div class="equation">', *given, "</div>"] if given else []
    if legend := mark_legend(checked):
        lines.append(f'<p class="quiet">{escape(legend)}</p>')
    level = "h2" if is_alone else "h3"
    for number, each in enumerate(checked.steps, start=1):
        lines += html_step(checked, number, each, level)
    return "\n".join([*lines, f"<pre>{escape(summary(checked))}</pre>", "</section>"])


def html_step(checked: CheckedSheet, number: int, each: CheckedStep, level: str) -> list[str]:
    step = each.step
    lines = [f"<{level}>{number}. {escape(step.heading)}</{level}>"]
    if step.compute:
        lines.append(f"<p><code>= {escape(step.compute.text)}</code></p>")
    if step.text:
        verdict = "" if each.statement == NOT_RUN else f": <b>{escape(each.statement)}</b>"
        lines.append(f"<p>“{escape(step.text)}”{verdict}</p>")
    lines.append('<div class="equation">')
    if step.printed:
        lines.append(html_matrix("printed", each.rows))
    if each.values:
        lines.append(html_matrix("ours", our_rows(each)))
    lines.append("</div>")
    if notes := step_notes(checked, each):
        lines += ['<ul class="notes">', *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"]
    return lines


def html_matrix(name: str, rows: Sequence[Sequence[str | Verdict]]) -> str:
    """Return a matrix of texts, or of printed numbers with their verdicts, as a captioned table."""
    lines = [f"<tr>{''.join(map(html_cell, row))}</tr>" for row in rows]
    table = f'<table class="sheet-matrix"><tbody>{"".join(lines)}</tbody></table>'
    longest = max((sum(len(text_of(cell)) + 2 for cell in row) for row in rows), default=0)
    may_scroll = ' tabindex="0"' if longest > NARROW else ""
    label = f'role="group" aria-label="{escape(name)}"{may_scroll}'
    return (
        f"<figure><figcaption><b>{escape(name)}</b></figcaption>"
        f'<div class="scroll" {label}>{table}</div></figure>'
    )


def html_cell(cell: str | Verdict) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    css_class = CSS_CLASSES.get(cell.kind, "scan" if cell.is_scan else "")
    sign = f"<sup>{escape(mark(cell))}</sup>" if mark(cell) else ""
    return f'<td class="{css_class}" title="{escape(cell.text)}">{escape(text_of(cell))}{sign}</td>'


def text_of(cell: str | Verdict) -> str:
    return cell if isinstance(cell, str) else cell.printed.text
