"""Worked sheets as a page: printed values beside ours, slips marked; all of them with an index."""

from html import escape

from minitransformer.explain.page.writer import filled, page_style
from minitransformer.worked.engine import NOT_RUN, VERDICTS, Worked, WorkedStep
from minitransformer.worked.report import (
    HEADINGS,
    MEANING,
    heading,
    legend_of,
    mark,
    sheet_facts,
    shortened,
    step_notes,
    summary,
)
from minitransformer.worked.sheet import Judged, shortest

FEW = 20  # letters of a row that surely fit on a phone
CLASSES = {"slip": "wrong", "unexplained": "wrong", "follows": "follows"}


def worked_page(works: list[Worked]) -> str:
    """One sheet as a page, or several under an index."""
    title = works[0].sheet.title if len(works) == 1 else "Worked by hand, checked by machine"
    sheets = "\n".join(sheet_section(worked, is_alone=len(works) == 1) for worked in works)
    body = f"""<main>
<h1>{escape(title)}</h1>
<p class="quiet">Every printed number, run again through the functions that train the models.</p>
{index(works) if len(works) > 1 else ""}
{sheets}
</main>"""
    return filled("frame.html", title=escape(title), style=page_style(body), body=body)


def index(works: list[Worked]) -> str:
    """Every sheet with its counts."""
    headings = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("example", *HEADINGS))
    rows = []
    for worked in works:
        counts = worked.counts()
        numbers = [counts.total(), *(counts[verdict] for verdict in VERDICTS)]
        cells = "".join(f"<td>{number}</td>" for number in numbers)
        name = escape(worked.sheet.name)
        rows.append(f'<tr><th scope="row"><a href="#{name}">{name}</a></th>{cells}</tr>')
    table = (
        f'<table class="counts"><thead><tr>{headings}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="All examples">{table}</div>'
        f'\n<p class="quiet">{escape(MEANING)}</p>'
    )


def sheet_section(worked: Worked, *, is_alone: bool) -> str:
    sheet = worked.sheet
    lines = [f'<section class="sheet" id="{escape(sheet.name)}">']
    lines += [] if is_alone else [f"<h2>{escape(sheet.title)}</h2>"]
    lines += [f'<p class="quiet">from: {escape(sheet.source)}</p>'] if sheet.source else []
    if facts := sheet_facts(sheet):
        lines += ["<ul>", *(f"<li>{escape(fact)}</li>" for fact in facts), "</ul>"]
    given = [matrix(f"given {name}", rows) for name, rows in sheet.given_text.items()]
    given += [matrix(f"longer {name}", shortened(each)) for name, each in sheet.hidden.items()]
    lines += ['<div class="equation">', *given, "</div>"] if given else []
    if legend := legend_of(worked):
        lines.append(f'<p class="quiet">{escape(legend)}</p>')
    level = "h2" if is_alone else "h3"
    steps = enumerate(worked.steps, start=1)
    lines += [step_section(worked, number, each, level) for number, each in steps]
    lines += [f"<pre>{escape(summary(worked))}</pre>", "</section>"]
    return "\n".join(lines)


def step_section(worked: Worked, number: int, each: WorkedStep, level: str) -> str:
    step = each.step
    lines = [f"<{level}>{number}. {escape(heading(step))}</{level}>"]
    if step.compute:
        lines.append(f"<p><code>= {escape(step.compute.text)}</code></p>")
    if step.text:
        verdict = "" if each.how == NOT_RUN else f": <b>{escape(each.how)}</b>"
        lines.append(f"<p>“{escape(step.text)}”{verdict}</p>")
    lines += ['<div class="equation">', *matrices(each), "</div>"]
    notes = [*step_notes(worked, each), *([step.note] if step.note else [])]
    if notes:
        lines += ['<ul class="notes">', *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"]
    return "\n".join(lines)


def matrices(each: WorkedStep) -> list[str]:
    """What was printed, and what we make of it."""
    step, values = each.step, each.values
    if step.printed is None:
        return [matrix("ours", shortened(values.exact))] if values else []
    texts = [[number.text for number in row] for row in step.printed]
    judged = [[each.judged[(r, c)] for c in range(1, len(row) + 1)]
              for r, row in enumerate(texts, 1)]  # fmt: skip
    shown = [matrix("printed", texts, judged)]
    if values is not None:
        ours = [
            [shortest(value, step.printed[r][c]) for c, value in enumerate(row)]
            for r, row in enumerate(values.exact.tolist())
        ]
        shown.append(matrix("ours", ours))
    return shown


def matrix(name: str, rows: list[list[str]], judged: list[list[Judged]] | None = None) -> str:
    lines = []
    for r, row in enumerate(rows):
        cells = [
            f"<td>{escape(text)}</td>" if judged is None else judged_cell(text, judged[r][c])
            for c, text in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    table = f'<table class="sheet-matrix"><tbody>{"".join(lines)}</tbody></table>'
    longest = max((sum(len(text) + 2 for text in row) for row in rows), default=0)
    may_scroll = ' tabindex="0"' if longest > FEW else ""
    label = f'role="group" aria-label="{escape(name)}"{may_scroll}'
    return (
        f"<figure><figcaption><b>{escape(name)}</b></figcaption>"
        f'<div class="scroll" {label}>{table}</div></figure>'
    )


def judged_cell(text: str, judged: Judged) -> str:
    kind = CLASSES.get(judged.kind, "scan" if judged.is_scan else "")
    sign = f"<sup>{escape(mark(judged))}</sup>" if mark(judged) else ""
    return f'<td class="{kind}" title="{escape(judged.how)}">{escape(text)}{sign}</td>'
