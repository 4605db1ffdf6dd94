"""Worked sheets as a LaTeX document: matrices set properly, wrong numbers underlined."""

import re

from minitransformer.explain.worked.engine import NOT_RUN, Worked, WorkedStep
from minitransformer.explain.worked.layout import shortened
from minitransformer.explain.worked.report import heading, sheet_facts, step_notes
from minitransformer.explain.worked.summary import summary
from minitransformer.explain.worked.verdict import Judged, slip_order

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
