"""A checked sheet as text: printed values beside ours, slips marked, in 80 columns."""

from collections import Counter
from dataclasses import replace
from itertools import zip_longest

from torch import Tensor

from minitransformer.explain.rendering import WIDTH, columns_that_fit, wrap
from minitransformer.worked.engine import (
    CATEGORIES,
    NOT_RUN,
    CheckedSheet,
    CheckedStep,
    Verdict,
    check_sheet,
)
from minitransformer.worked.sheet import Sheet, Slip, Step, format_number

MAX_COLUMNS = 6  # of a matrix that the sheet does not print, such as a state of a trained model
HEADINGS = ("values", "agree", "round", "wrong", "follow", "scan", "n/c", "???")
MEANING = """round: agree after rounding; wrong: by a slip here; follow: by an earlier slip;
scan: damaged, read from elsewhere; n/c: not checkable; ???: unexplained"""
PHRASES = {  # singular and plural
    "agrees": ("agrees", "agree"),
    "rounded": ("agrees after rounding", "agree after rounding"),
    "errata_origin": ("wrong by a slip", "wrong by a slip"),
    "errata_propagated": ("wrong because of an earlier slip", "wrong because of an earlier slip"),
    "ocr": ("read from a damaged scan", "read from a damaged scan"),
    "not_checkable": ("not checkable", "not checkable"),
    "unexplained": ("slip", "slips"),
}
MARKS = {"slip": "!", "follows": "~", "unexplained": "!"}
VARIANTS = {
    "printed": "rounded from the sheet's own printed numbers",
    "corrected": "rounded from the sheet's own numbers, with a slip corrected",
    "hidden": "computed from matrices with more digits than were printed",
}


def list_text(checked: list[CheckedSheet]) -> str:
    """Return all sheets with their counts, one line each."""
    first_prints = [each for each in checked if not each.sheet.repeats]
    lines = [f"{'example':24}" + "".join(f"{heading:>7}" for heading in HEADINGS)]
    total = Counter[str]()
    for each in first_prints:
        lines.append(count_line(each.sheet.name, each.counts()))
        total += each.counts()
    lines += [count_line("all", total), MEANING, ""]
    repeated = [each.sheet for each in checked if each.sheet.repeats]
    lines += [f"{sheet.name}: {sheet.title}" for sheet in repeated]
    slips = {slip.number for each in first_prints for slip in each.sheet.slips}
    reprinted = sum(each.counts(reprints=True).total() for each in first_prints)
    statements = [
        each.statement for sheet in first_prints for each in sheet.steps if each.step.text
    ]
    not_run = statements.count(NOT_RUN)
    lines.append(
        f"{len(slips)} slips. Compared as well: {reprinted} reprints, "
        f"{len(statements) - not_run} statements in words;"
    )
    lines.append(f"{not_run} more (school) are checked on a trained run.")
    return "\n".join([*lines, *(line for each in checked for line in error_lines(each))])


def count_line(name: str, counts: Counter[str]) -> str:
    return f"{name:24}" + "".join(f"{number:>7}" for number in count_row(counts))


def count_row(counts: Counter[str]) -> list[int]:
    """Return the numbers under HEADINGS."""
    return [counts.total(), *(counts[category] for category in CATEGORIES)]


def sheet_text(checked: CheckedSheet) -> str:
    """Return a sheet step by step."""
    sheet = checked.sheet
    blocks = [sheet.title + (f"\nfrom: {sheet.source}" if sheet.source else "")]
    if facts := sheet_facts(sheet):
        blocks.append("\n".join(wrap(fact, "  ", "    ") for fact in facts))
    blocks += [
        "\n".join(side_by_side([f"{name} ="], aligned(rows)))
        for name, rows in given_matrices(sheet).items()
    ]
    if legend := mark_legend(checked):
        blocks.append(wrap(legend, "", "  "))
    blocks += [step_text(checked, number, each) for number, each in enumerate(checked.steps, 1)]
    return "\n\n".join([*blocks, summary(checked)])


def sheet_facts(sheet: Sheet) -> list[str]:
    """Return what a reader should know before the first step."""
    facts = [f"{name}: {text}" for name, text in sheet.conventions.items()]
    facts += [f"reading of {name}: {text}" for name, text in sheet.readings.items()]
    return [*facts, sheet.hidden_note] if sheet.hidden_note else facts


def given_matrices(sheet: Sheet) -> dict[str, list[list[str]]]:
    """Return what a sheet starts from, as printed, and matrices with more digits."""
    given = {f"given {name}": rows for name, rows in sheet.given_text.items()}
    return given | {f"longer {name}": shortened(each) for name, each in sheet.hidden.items()}


def mark_legend(checked: CheckedSheet) -> str:
    """Explain the marks after this sheet's numbers."""
    verdicts = [verdict for _, _, verdict in checked.verdicts()]
    kinds = {each.kind for each in verdicts}
    number = next((mark(each)[1:] for each in verdicts if each.kind == "slip"), "")
    slip = f"slip {number}" if number else "a slip"
    parts = {
        f"!{number} wrong, see {slip}": bool(number),
        "! wrong": "unexplained" in kinds,
        f"~{number} wrong because of {slip}": "follows" in kinds,
        "? read from a damaged scan": any(each.is_scan for each in verdicts),
        "# not checkable": "not checkable" in kinds,
    }
    used = [part for part, is_used in parts.items() if is_used]
    return f"marks: {'   '.join(used)}" if used else ""


def step_text(checked: CheckedSheet, number: int, each: CheckedStep) -> str:
    step, indent = each.step, " " * 5
    lines = [wrap(step.heading, f"{number:3}  ", indent)]
    if step.compute:
        lines.append(wrap(step.compute.text, f"{indent}= ", f"{indent}  "))
    if step.text:
        verdict = "" if each.statement == NOT_RUN else f": {each.statement}"
        if verdict and step.check is None:
            verdict += " (read, not computed)"
        lines.append(wrap(f"“{step.text}”{verdict}", indent, indent))
    lines += [indent + line for line in matrix_lines(each)]
    lines += [wrap(note, indent, f"{indent}  ") for note in step_notes(checked, each)]
    return "\n".join(lines)


def matrix_lines(each: CheckedStep) -> list[str]:
    """Return what was printed and our values, side by side or one below the other."""
    if not each.step.printed:
        return aligned(our_rows(each)) if each.values else []
    left = ["printed", *aligned([[cell.printed.text + mark(cell) for cell in row]
                                 for row in each.rows])]  # fmt: skip
    if each.values is None:
        return left
    right = ["ours", *aligned(our_rows(each))]
    both = side_by_side(left, right)
    return both if max(map(len, both)) <= WIDTH - 5 else [*left, *right]


def our_rows(each: CheckedStep) -> list[list[str]]:
    """Return our values with at least as many digits as were printed."""
    assert each.values is not None
    if not each.step.printed:
        return shortened(each.values["exact"])
    return [
        [format_number(value, each.step.printed[r][c]) for c, value in enumerate(row)]
        for r, row in enumerate(each.values["exact"].tolist())
    ]


def shortened(values: Tensor) -> list[list[str]]:
    """Return a matrix as text, without its last columns where there are very many."""
    left_out = values.shape[1] - MAX_COLUMNS
    if left_out <= MAX_COLUMNS:
        return [[format_number(value) for value in row] for row in values.tolist()]
    return [
        [*(format_number(round(value, 4)) for value in row[:MAX_COLUMNS]), f"… {left_out} more"]
        for row in values.tolist()
    ]


def aligned(rows: list[list[str]]) -> list[str]:
    """Return rows as lines of aligned columns, as many as fit."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = columns_that_fit(widths, WIDTH - 8)
    rest = f"  … {len(widths) - columns} more" if columns < len(widths) else ""
    return [
        "  ".join(text.rjust(width) for text, width in zip(row, widths[:columns], strict=False))
        + rest
        for row in rows
    ]


def side_by_side(left: list[str], right: list[str]) -> list[str]:
    width = max(map(len, left)) + 4
    return [f"{a:{width}}{b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]


def mark(verdict: Verdict) -> str:
    """Return the sign after a printed number, with the slips that made it wrong."""
    if verdict.is_scan:
        return "?"
    if verdict.kind == "not checkable":
        return "" if verdict.printed.is_blank else "#"
    are_declared = all(slip.isdecimal() for slip in verdict.slips)
    return MARKS.get(verdict.kind, "") + (verdict.slip_list(",") if are_declared else "")


def step_notes(checked: CheckedSheet, each: CheckedStep) -> list[str]:
    """Explain the numbers of a step that are not simply right; at the end, the sheet's own note."""
    step = each.step
    notes = [slip_text(slip, step) for slip in checked.sheet.slips if slip.step == step.name]
    groups: dict[str, list[str]] = {}  # cells with the same explanation
    for cell, verdict in each.verdicts.items():
        name = step.cell_name(cell)
        right = "" if verdict.exact is None else format_number(verdict.exact, verdict.printed)
        if verdict.kind == "unexplained":
            note = f"{name} printed {verdict.printed.text}, right {right}"
            assert each.values is not None
            ours, expected = (
                format_number(each.values[variant][cell].item()) for variant in ("exact", "printed")
            )
            if expected != ours:
                note += f" ({expected} from the numbers printed before it)"
            notes.append(note)
        elif verdict.kind == "follows":
            plural = "s" * (len(verdict.slips) > 1)
            reason = f"because of slip{plural} {verdict.slip_list(' and ')}"
            groups.setdefault(reason, []).append(f"{name} (right: {right})")
        elif verdict.is_scan:
            notes.append(f"{name} read as {verdict.printed.text}; scan: {step.scans[cell]}")
        elif verdict.kind == "not checkable":
            why = "left empty" if verdict.printed.is_blank else step.uncheckable.get(cell, "")
            groups.setdefault(f"not checkable: {why}", []).append(name)
        elif verdict.variant in VARIANTS:
            if verdict.variant == "hidden" and each.values:
                value = each.values["hidden"][cell].item()
                name += f" ({format_number(value, verdict.printed)})"
            groups.setdefault(VARIANTS[verdict.variant], []).append(name)
    notes += [f"{reason}: {', '.join(cells)}" for reason, cells in groups.items()]
    return [*notes, step.note] if step.note else notes


def slip_text(slip: Slip, step: Step) -> str:
    cells = ", ".join(step.cell_name(cell) for cell in slip.cells)
    where = f" at {cells}" if cells else ""
    return (
        f"slip {slip.number}{where}: printed {', '.join(slip.wrote)}; "
        f"right {', '.join(slip.right)}. {slip.why}"
    )


def summary(checked: CheckedSheet) -> str:
    """Return the counts of a sheet, and for a reader's own sheet where the slips are."""
    counts = checked.counts()
    parts = [counted(counts[name], *PHRASES[name]) for name in CATEGORIES if counts[name]]
    values = counted(counts.total(), "value", "values")
    lines = [wrap(f"{values}: {', '.join(parts)}", "", "  ") if parts else "no printed values"]
    with_check = [each for each in checked.steps if each.step.check and each.statement != NOT_RUN]
    if with_check:
        lines.append(counted(len(with_check), "statement checked", "statements checked"))
    run = checked.sheet.run
    if run and any(each.statement == NOT_RUN for each in checked.steps):
        lines.append(f"to check it: minitransformer train --config {run.config}, then this again")
    return "\n".join([*lines, *slip_lines(checked), *error_lines(checked)])


def counted(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def slip_lines(checked: CheckedSheet) -> list[str]:
    """Return the first unexplained number, what follows from it, and the other slips."""
    slips = [each for each in checked.verdicts() if each[2].kind == "unexplained"]
    if not slips:
        return []
    (step, cell, verdict), *others = slips
    assert verdict.exact is not None
    right, name = format_number(verdict.exact, verdict.printed), step.cell_name(cell)
    lines = [
        f"first slip: step {step.name}, cell {name}: printed {verdict.printed.text}, right {right}"
    ]
    from_first = followers(checked, step.full_name(cell))
    from_others = [name for name in followers(checked) if name not in from_first]
    for phrase, names in (
        ("merely follow from it", from_first),
        ("other slips", [step.full_name(cell) for step, cell, _ in others]),
        ("merely follow from those", from_others),
    ):
        if names:
            lines.append(wrap(f"{phrase}: {', '.join(names)}", "", "  "))
    is_strict = checked.sheet.rounding == "nearest"
    if is_strict and check_sheet(replace(checked.sheet, rounding="any")).is_explained:
        lines.append(
            "these numbers are truncated, not rounded: put rounding: truncated into the sheet"
        )
    return lines


def followers(checked: CheckedSheet, slip: str = "") -> list[str]:
    """Return the numbers that are wrong because of a slip, or because of any."""
    return [
        step.full_name(cell)
        for step, cell, verdict in checked.verdicts()
        if verdict.kind == "follows" and (not slip or slip in verdict.slips)
    ]


def error_lines(checked: CheckedSheet) -> list[str]:
    return [f"error: {checked.sheet.name}: {error}" for error in checked.errors]
