"""A worked sheet as text: printed values beside ours, slips marked, in 80 columns."""

import dataclasses
from collections import Counter
from collections.abc import Iterator

from torch import Tensor

from minitransformer.explain.terminal import WIDTH, wrapped
from minitransformer.worked.engine import (
    NOT_RUN,
    UNEXPLAINED,
    VERDICTS,
    Worked,
    WorkedStep,
    at,
    place_of,
    work_through,
)
from minitransformer.worked.sheet import Cell, Judged, Sheet, Slip, Step, shortest, slip_order

MOST_COLUMNS = 6  # of a matrix nobody printed, such as a state of a trained model


def shortened(values: Tensor) -> list[list[str]]:
    """A matrix as text, its columns cut short where there are very many."""
    left_out = values.shape[1] - MOST_COLUMNS
    if left_out <= MOST_COLUMNS:
        return [[shortest(value) for value in row] for row in values.tolist()]
    rows = [[shortest(round(value, 4)) for value in row[:MOST_COLUMNS]] for row in values.tolist()]
    return [[*row, f"… {left_out} more"] for row in rows]


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows of text in columns, as many as there is room for."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    columns, used = len(widths), sum(widths) + 2 * len(widths)
    while used > WIDTH - 8 and columns > 1:
        columns -= 1
        used = sum(widths[:columns]) + 2 * columns + 14
    rest = f"  … {len(widths) - columns} more" if columns < len(widths) else ""
    return [
        "  ".join(text.rjust(width) for text, width in zip(row, widths[:columns], strict=False))
        + rest
        for row in rows
    ]


def beside(left: list[str], right: list[str]) -> list[str]:
    """Two blocks of lines side by side."""
    width = max(map(len, left)) + 4
    height = max(len(left), len(right))
    left, right = left + [""] * (height - len(left)), right + [""] * (height - len(right))
    return [f"{a:{width}}{b}".rstrip() for a, b in zip(left, right, strict=True)]


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


WORDS = {
    "agrees": ("agrees", "agree"),
    "rounded": ("agrees after rounding", "agree after rounding"),
    "errata_origin": ("wrong where it stands", "wrong where they stand"),
    "errata_propagated": ("wrong because of a slip", "wrong because of a slip"),
    "ocr": ("read from a damaged scan", "read from a damaged scan"),
    "not_checkable": ("not checkable", "not checkable"),
    "unexplained": ("wrong where it stands", "wrong where they stand"),
}


def summary(worked: Worked) -> str:
    """The counts of a sheet, and for a reader's own sheet where the slips are."""
    counts = worked.counts()
    parts = [counted(counts[name], *WORDS[name]) for name in VERDICTS if counts[name]]
    told = f"{counted(counts.total(), 'value', 'values')}: {', '.join(parts)}"
    lines = [wrapped(told, "", "  ")] if parts else ["no printed values"]
    checked = [each for each in worked.steps if each.step.check and each.how != NOT_RUN]
    if checked:
        lines.append(counted(len(checked), "statement checked", "statements checked"))
    if any(each.how == NOT_RUN for each in worked.steps):
        config = worked.sheet.run["config"]
        lines.append(f"to see its numbers: python train.py --config {config}, then this again")
    return "\n".join([*lines, *slip_lines(worked), *complaint_lines(worked)])


def labelled(worked: Worked) -> Iterator[tuple[str, str, Judged]]:
    """Every judged number with its step and its place, such as ("E", "[2,3]", …)."""
    for each in worked.steps:
        for cell, judged in each.judged.items():
            yield each.step.name, place_of(cell, each.step), judged


def slip_lines(worked: Worked) -> list[str]:
    """The first number that nothing explains, what merely follows from it, and the other slips."""
    slips = [each for each in labelled(worked) if each[2].kind == UNEXPLAINED]
    if not slips:
        return []
    step, place, judged = slips[0]
    assert judged.exact is not None
    right = shortest(judged.exact, judged.printed)
    lines = [f"first slip: step {step}, cell {place}: printed {judged.printed.text}, right {right}"]
    follow = [each for each in labelled(worked) if each[2].kind == "follows"]
    from_first = [name + at for name, at, other in follow if f"{step}{place}" in other.causes]
    if from_first:
        lines.append(wrapped(f"merely follow from it: {', '.join(from_first)}", "", "  "))
    if len(slips) > 1:
        others = ", ".join(name + at for name, at, _ in slips[1:])
        lines.append(wrapped(f"other slips: {others}", "", "  "))
    rest = [name + at for name, at, _ in follow if name + at not in from_first]
    if rest:
        lines.append(wrapped(f"merely follow from those: {', '.join(rest)}", "", "  "))
    if is_only_cut(worked):
        lines.append("these numbers are cut, not rounded: rounding: truncated expects that")
    return lines


def is_only_cut(worked: Worked) -> bool:
    """Would nothing be wrong if numbers were allowed to be cut?"""
    sheet = worked.sheet
    if sheet.rounding != "nearest":
        return False
    return work_through(dataclasses.replace(sheet, rounding="any")).is_explained


def complaint_lines(worked: Worked) -> list[str]:
    return [f"error: {worked.sheet.name}: {complaint}" for complaint in worked.complaints]


HEADINGS = ("values", "agree", "round", "wrong", "follow", "scan", "n/c", "???")
MEANING = """round: agree after rounding; wrong: by a slip made here; follow: because of one;
scan: damaged, read from elsewhere; n/c: not checkable; ???: unexplained"""
MARKS = {"slip": "!", "follows": "~", "unexplained": "!"}
ROADS = {
    "printed": "rounded from the sheet's own printed numbers",
    "mended": "rounded from the sheet's own numbers, with a slip put right",
    "hidden": "compared through longer weights than were printed, which give",
}


def list_text(works: list[Worked]) -> str:
    """All sheets with their counts, one line each."""
    own = [each for each in works if not each.sheet.repeats]
    lines = [f"{'example':24}" + "".join(f"{heading:>7}" for heading in HEADINGS)]
    lines += [count_line(worked.sheet.name, worked.counts()) for worked in own]
    total = sum((worked.counts() for worked in own), Counter[str]())
    lines += [count_line("all", total), MEANING, ""]
    others = [each.sheet for each in works if each.sheet.repeats]
    lines += [f"{sheet.name}: {sheet.title}" for sheet in others]
    slips = {slip.number for worked in own for slip in worked.sheet.slips}
    reprinted = sum(worked.counts(reprints=True).total() for worked in own)
    hows = [each.how for worked in own for each in worked.steps if each.step.text]
    lines.append(
        f"{len(slips)} slips. Compared as well: {reprinted} reprints, "
        f"{len(hows) - hows.count(NOT_RUN)} statements in words;"
    )
    lines.append(f"{hows.count(NOT_RUN)} more (school) are checked on a trained run.")
    return "\n".join([*lines, *(line for worked in works for line in complaint_lines(worked))])


def count_line(name: str, counts: Counter[str]) -> str:
    numbers = [counts.total(), *(counts[verdict] for verdict in VERDICTS)]
    return f"{name:24}" + "".join(f"{number:>7}" for number in numbers)


def sheet_text(worked: Worked) -> str:
    """A sheet step by step."""
    sheet = worked.sheet
    blocks = [sheet.title + (f"\nfrom: {sheet.source}" if sheet.source else "")]
    if facts := sheet_facts(sheet):
        blocks.append("\n".join(wrapped(fact, "  ", "    ") for fact in facts))
    blocks += [
        "\n".join(beside([f"given {name} ="], aligned(rows)))
        for name, rows in sheet.given_text.items()
    ]
    blocks += [
        "\n".join(beside([f"longer {name} ="], aligned(shortened(values))))
        for name, values in sheet.hidden.items()
    ]
    if legend := legend_of(worked):
        blocks.append(legend)
    blocks += [step_text(worked, number, each) for number, each in enumerate(worked.steps, 1)]
    return "\n\n".join([*blocks, summary(worked)])


def sheet_facts(sheet: Sheet) -> list[str]:
    """What a reader should know before the first step."""
    facts = [f"{name}: {text}" for name, text in sheet.conventions.items()]
    facts += [f"reading of {name}: {text}" for name, text in sheet.readings.items()]
    return [*facts, sheet.hidden_note] if sheet.hidden_note else facts


def legend_of(worked: Worked) -> str:
    """The marks that stand behind this sheet's numbers."""
    judged = [each for step in worked.steps for each in step.judged.values()]
    kinds = {each.kind for each in judged}
    number = next((mark(each)[1:] for each in judged if each.kind == "slip"), "")
    parts = [f"!{number} wrong, see slip {number}"] * bool(number)
    parts += ["! wrong"] * (UNEXPLAINED in kinds)
    parts += [f"~{number} wrong because of {f'slip {number}' if number else 'a slip'}"] * (
        "follows" in kinds
    )
    parts += ["? read from a damaged scan"] * any(each.is_scan for each in judged)
    parts += ["# not checkable"] * ("not checkable" in kinds)
    return wrapped(f"marks: {'   '.join(parts)}", "", "  ") if parts else ""


def step_text(worked: Worked, number: int, each: WorkedStep) -> str:
    step = each.step
    lines = [wrapped(heading(step), f"{number:3}  ", " " * 5)]
    if step.compute:
        lines.append(wrapped(step.compute.text, " " * 5 + "= ", " " * 7))
    if step.text:
        is_read = step.check is None and each.how != NOT_RUN
        verdict = "" if each.how == NOT_RUN else f": {each.how}{' (read, not computed)' * is_read}"
        lines.append(wrapped(f"“{step.text}”{verdict}", " " * 5, " " * 5))
    lines += [f"     {line}" for line in matrices(each)]
    notes = [*step_notes(worked, each), *([step.note] if step.note else [])]
    lines += [wrapped(note, " " * 5, " " * 7) for note in notes]
    return "\n".join(lines)


def heading(step: Step) -> str:
    """A step's name, by which formulas call it, and the sheet's own words."""
    return f"{step.name}: {step.says}" if step.says else step.name


def matrices(each: WorkedStep) -> list[str]:
    """What was printed, and what we make of it, side by side or one below the other."""
    if each.step.printed is None:
        return aligned(shortened(each.values.exact)) if each.values else []
    printed = [
        [number.text + mark(each.judged[(r, c)]) for c, number in enumerate(row, 1)]
        for r, row in enumerate(each.step.printed, 1)
    ]
    left = ["printed", *aligned(printed)]
    if each.values is None:
        return left
    ours = [
        [shortest(value, each.step.printed[r][c]) for c, value in enumerate(row)]
        for r, row in enumerate(each.values.exact.tolist())
    ]
    right = ["ours", *aligned(ours)]
    both = beside(left, right)
    return both if max(map(len, both)) <= WIDTH - 5 else [*left, *right]


def mark(judged: Judged) -> str:
    if judged.is_scan:
        return "?"
    if judged.kind == "not checkable":
        return "" if judged.printed.is_blank else "#"
    slips = sorted(judged.causes, key=slip_order) if is_numbered(judged) else []
    return MARKS.get(judged.kind, "") + ",".join(slips)


def is_numbered(judged: Judged) -> bool:
    """Do the slips behind a number have numbers, as those that a sheet declares?"""
    return judged.kind != UNEXPLAINED and all(each.isdecimal() for each in judged.causes)


def step_notes(worked: Worked, each: WorkedStep) -> list[str]:
    """What there is to say about the numbers of a step that are not simply right."""
    step = each.step
    notes = [slip_text(slip, step) for slip in worked.sheet.slips if slip.step == step.name]
    groups: dict[str, list[str]] = {}
    for cell, judged in each.judged.items():
        place = place_of(cell, step)
        right = "" if judged.exact is None else shortest(judged.exact, judged.printed)
        if judged.kind == UNEXPLAINED:
            notes.append(f"{place} printed {judged.printed.text}, right {right}{own(each, cell)}")
        elif judged.kind == "follows":
            slips = " and ".join(sorted(judged.causes, key=slip_order))
            several = "s" * (len(judged.causes) > 1)
            reason = f"because of slip{several} {slips}"
            groups.setdefault(reason, []).append(f"{place} (right: {right})")
        elif judged.is_scan:
            notes.append(f"{place} read as {judged.printed.text}; scan: {step.scans[cell]}")
        elif judged.kind == "not checkable":
            why = "left empty" if judged.printed.is_blank else step.uncheckable.get(cell, "")
            groups.setdefault(f"not checkable: {why}", []).append(place)
        elif judged.chain == "hidden" and each.values and each.values.hidden is not None:
            there = shortest(at(each.values.hidden, cell), judged.printed)
            groups.setdefault(ROADS["hidden"], []).append(f"{place} ({there})")
        elif judged.chain in ROADS:
            groups.setdefault(ROADS[judged.chain], []).append(place)
    return notes + [f"{reason}: {', '.join(places)}" for reason, places in groups.items()]


def own(each: WorkedStep, cell: Cell) -> str:
    """What a sheet's own numbers would have given, where earlier slips make that another value."""
    if each.values is None:
        return ""
    exact, printed = (at(values, cell) for values in (each.values.exact, each.values.printed))
    if shortest(exact) == shortest(printed):
        return ""
    return f" ({shortest(printed)} from the numbers printed before it)"


def slip_text(slip: Slip, step: Step) -> str:
    places = ", ".join(place_of(cell, step) for cell in slip.cells)
    where = f" at {places}" if places else ""
    return (
        f"slip {slip.number}{where}: printed {', '.join(slip.wrote)}; "
        f"right {', '.join(slip.right)}. {slip.why}"
    )
