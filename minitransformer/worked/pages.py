"""Worked sheets as a page: printed values beside ours, slips marked; all of them with an index."""

from collections.abc import Sequence
from html import escape

from minitransformer.explain.page import fill_template, page_style
from minitransformer.worked.engine import (
    CATEGORIES,
    NOT_RUN,
    CellVerdict,
    CheckedSheet,
    CheckedStep,
)
from minitransformer.worked.report import (
    HEADINGS,
    MEANING,
    given_matrices,
    heading,
    mark,
    mark_legend,
    our_rows,
    sheet_facts,
    step_notes,
    summary,
)

MAX_CHARACTERS = 20  # of a row that surely fits on a phone
CSS_CLASSES = {"slip": "wrong", "unexplained": "wrong", "follows": "follows"}


def worked_page(checked: list[CheckedSheet]) -> str:
    """Return one sheet as a page, or several after an index."""
    is_alone = len(checked) == 1
    title = checked[0].sheet.title if is_alone else "Worked by hand, checked by machine"
    sections = "\n".join(sheet_section(each, is_alone=is_alone) for each in checked)
    body = f"""<main>
<h1>{escape(title)}</h1>
<p class="quiet">Every printed number, run again through the functions that train the models.</p>
{"" if is_alone else index(checked)}
{sections}
</main>"""
    return fill_template("frame.html", title=escape(title), style=page_style(body), body=body)


def index(checked: list[CheckedSheet]) -> str:
    """Return a table of the sheets with their counts."""
    headings = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("example", *HEADINGS))
    rows = []
    for each in checked:
        counts = each.counts()
        numbers = [counts.total(), *(counts[category] for category in CATEGORIES)]
        cells = "".join(f"<td>{number}</td>" for number in numbers)
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


def sheet_section(checked: CheckedSheet, *, is_alone: bool) -> str:
    sheet = checked.sheet
    lines = [f'<section class="sheet" id="{escape(sheet.name)}">']
    lines += [] if is_alone else [f"<h2>{escape(sheet.title)}</h2>"]
    lines += [f'<p class="quiet">from: {escape(sheet.source)}</p>'] if sheet.source else []
    if facts := sheet_facts(sheet):
        lines += ["<ul>", *(f"<li>{escape(fact)}</li>" for fact in facts), "</ul>"]
    given = [matrix(name, rows) for name, rows in given_matrices(sheet).items()]
    lines += ['<div class="equation">', *given, "</div>"] if given else []
    if legend := mark_legend(checked):
        lines.append(f'<p class="quiet">{escape(legend)}</p>')
    level = "h2" if is_alone else "h3"
    for number, each in enumerate(checked.steps, start=1):
        lines += step_section(checked, number, each, level)
    return "\n".join([*lines, f"<pre>{escape(summary(checked))}</pre>", "</section>"])


def step_section(checked: CheckedSheet, number: int, each: CheckedStep, level: str) -> list[str]:
    step = each.step
    lines = [f"<{level}>{number}. {escape(heading(step))}</{level}>"]
    if step.compute:
        lines.append(f"<p><code>= {escape(step.compute.text)}</code></p>")
    if step.text:
        verdict = "" if each.statement == NOT_RUN else f": <b>{escape(each.statement)}</b>"
        lines.append(f"<p>“{escape(step.text)}”{verdict}</p>")
    lines.append('<div class="equation">')
    if step.printed:
        lines.append(matrix("printed", each.rows))
    if each.values:
        lines.append(matrix("ours", our_rows(each)))
    lines.append("</div>")
    if notes := step_notes(checked, each):
        lines += ['<ul class="notes">', *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"]
    return lines


def matrix(name: str, rows: Sequence[Sequence[str | CellVerdict]]) -> str:
    """Return a matrix of texts, or of printed numbers with their verdicts, as a captioned table."""
    lines = [f"<tr>{''.join(map(table_cell, row))}</tr>" for row in rows]
    table = f'<table class="sheet-matrix"><tbody>{"".join(lines)}</tbody></table>'
    longest = max((sum(len(text_of(cell)) + 2 for cell in row) for row in rows), default=0)
    may_scroll = ' tabindex="0"' if longest > MAX_CHARACTERS else ""
    label = f'role="group" aria-label="{escape(name)}"{may_scroll}'
    return (
        f"<figure><figcaption><b>{escape(name)}</b></figcaption>"
        f'<div class="scroll" {label}>{table}</div></figure>'
    )


def table_cell(cell: str | CellVerdict) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    css_class = CSS_CLASSES.get(cell.kind, "scan" if cell.is_scan else "")
    sign = f"<sup>{escape(mark(cell))}</sup>" if mark(cell) else ""
    return f'<td class="{css_class}" title="{escape(cell.text)}">{escape(text_of(cell))}{sign}</td>'


def text_of(cell: str | CellVerdict) -> str:
    return cell if isinstance(cell, str) else cell.printed.text
