"""A worked sheet as text: printed values beside ours, slips marked, in 80 columns."""

import textwrap
from collections import Counter

from torch import Tensor

from minitransformer.explain.worked.chains import Judged, at
from minitransformer.explain.worked.engine import NOT_RUN, VERDICTS, Worked, WorkedStep
from minitransformer.explain.worked.judging import UNEXPLAINED, place_of
from minitransformer.explain.worked.numbers import shortest
from minitransformer.explain.worked.sheet import Cell, Slip

WIDTH = 80
MOST_COLUMNS = 6  # of a matrix nobody printed, such as a state of a trained model
HEADINGS = ("values", "agree", "round", "slips", "follow", "scan", "n/c", "???")
MEANING = """round: agree after rounding; slips: made here; follow: wrong because of a slip;
scan: damaged, read from elsewhere; n/c: not checkable; ???: unexplained"""
LEGEND = "*1 slip 1  ^1 follows from slip 1  ? scan damage  ~ not checkable  ! wrong"


def list_text(works: list[Worked]) -> str:
    """All sheets with their counts, one line each."""
    counted = [each for each in works if not each.sheet.repeats]
    lines = [f"{'example':24}" + "".join(f"{heading:>7}" for heading in HEADINGS)]
    total: Counter[str] = Counter()
    for worked in counted:
        counts = worked.counts()
        total += counts
        lines.append(count_line(worked.sheet.name, counts))
    lines += [count_line("all", total), MEANING, ""]
    others = [each.sheet for each in works if each.sheet.repeats]
    lines += [f"{sheet.name}: {sheet.title}" for sheet in others]
    slips = {slip.number for worked in counted for slip in worked.sheet.slips}
    reprinted = sum(worked.counts(reprints=True).total() for worked in counted)
    hows = [each.how for worked in counted for each in worked.steps if each.step.text]
    lines.append(
        f"{len(slips)} slips. Compared as well: {reprinted} reprints, "
        f"{len(hows) - hows.count(NOT_RUN)} statements in words;"
    )
    lines.append(f"{hows.count(NOT_RUN)} more (school) are checked on a trained run.")
    lines += [complaint for worked in works for complaint in complaint_lines(worked)]
    return "\n".join(lines)


def count_line(name: str, counts: Counter[str]) -> str:
    numbers = [counts.total(), *(counts[verdict] for verdict in VERDICTS)]
    return f"{name:24}" + "".join(f"{number:>7}" for number in numbers)


def sheet_text(worked: Worked) -> str:
    """A sheet step by step."""
    sheet = worked.sheet
    blocks = [sheet.title + (f"\nfrom: {sheet.source}" if sheet.source else "")]
    facts = [f"{name}: {text}" for name, text in sheet.conventions.items()]
    facts += [f"reading: {text}" for text in sheet.readings.values()]
    if sheet.hidden_note:
        facts.append(sheet.hidden_note)
    if facts:
        blocks.append("\n".join(wrapped(fact, "  ", "    ") for fact in facts))
    for name, rows in sheet.given_text.items():
        blocks.append("\n".join(beside([f"given {name} ="], aligned(rows))))
    blocks += [step_text(worked, number, each) for number, each in enumerate(worked.steps, 1)]
    hows = [judged.how for each in worked.steps for judged in each.judged.values()]
    if any(how.split()[0] in MARKS for how in hows):
        blocks.append(LEGEND)
    blocks.append(summary(worked))
    return "\n\n".join(blocks)


def step_text(worked: Worked, number: int, each: WorkedStep) -> str:
    step = each.step
    lines = [wrapped(step.says or step.name, f"{number:3}  ", " " * 5)]
    if step.compute:
        lines.append(wrapped(step.compute.text, " " * 5 + "= ", " " * 7))
    if step.text:
        verdict = "" if each.how == NOT_RUN else f": {each.how}"
        lines.append(wrapped(f"“{step.text}”{verdict}", " " * 5, " " * 5))
    lines += [f"     {line}" for line in matrices(each)]
    notes = [*step_notes(worked, each), *([step.note] if step.note else [])]
    lines += [wrapped(note, " " * 5, " " * 7) for note in notes]
    return "\n".join(lines)


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
    right = ["ours", *aligned(shortened(each.values.exact))]
    both = beside(left, right)
    return both if max(map(len, both)) <= WIDTH - 5 else [*left, *right]


MARKS = {"slip": "*", "follows": "^", "scan": "?", "not": "~", "unexplained": "!"}


def mark(judged: Judged) -> str:
    first, *rest = judged.how.split()
    numbered = first in ("slip", "follows") and not judged.how.count("[")
    return MARKS.get(first, "") + (rest[0] if numbered else "")


def step_notes(worked: Worked, each: WorkedStep) -> list[str]:
    """What there is to say about the numbers of a step that are not simply right."""
    notes = [slip_text(slip) for slip in worked.sheet.slips if slip.step == each.step.name]
    groups: dict[str, list[str]] = {}
    for cell, judged in each.judged.items():
        place = place_of(cell, each.step)
        first = judged.how.split()[0]
        right = "" if judged.exact is None else shortest(judged.exact)
        if judged.how == UNEXPLAINED:
            notes.append(f"{place} printed {judged.printed.text}, right {right}{own(each, cell)}")
        elif first == "follows":
            slips = " and ".join(judged.how.split()[1].split("+"))
            groups.setdefault(f"follow from slip {slips}", []).append(f"{place} (right: {right})")
        elif first == "scan" and cell in each.step.scans:
            notes.append(f"{place} read as {judged.printed.text}; scan: {each.step.scans[cell]}")
        elif first == "not" and each.step.uncheckable.get(cell):
            groups.setdefault(f"not checkable: {each.step.uncheckable[cell]}", []).append(place)
        elif first == "hidden" and each.values and each.values.hidden is not None:
            there = f"{place} ({shortest(at(each.values.hidden, cell))})"
            groups.setdefault(ROADS[first], []).append(there)
        elif first in ROADS:
            groups.setdefault(ROADS[first], []).append(place)
    return notes + [f"{reason}: {', '.join(places)}" for reason, places in groups.items()]


def own(each: WorkedStep, cell: Cell) -> str:
    """What a sheet's own numbers would have given, where earlier slips make that another value."""
    if each.values is None:
        return ""
    exact, printed = (
        shortest(at(values, cell)) for values in (each.values.exact, each.values.printed)
    )
    return "" if exact == printed else f" ({printed} from the numbers printed before it)"


ROADS = {
    "printed": "rounded from the sheet's own printed numbers",
    "mended": "rounded from the sheet's own numbers, with a slip put right",
    "hidden": "compared through longer weights than were printed, which give",
}


def slip_text(slip: Slip) -> str:
    places = "".join(f"[{row},{column}]" for row, column in slip.cells)
    where = f" at {slip.step} {places}" if places else ""
    return (
        f"slip {slip.number}{where}: printed {', '.join(slip.wrote)}; "
        f"right {', '.join(slip.right)}. {slip.why}"
    )


def summary(worked: Worked) -> str:
    """The counts of a sheet, and for a reader's own sheet where the first slip is."""
    counts = worked.counts()
    parts = [f"{counts[verdict]} {WORDS[verdict]}" for verdict in VERDICTS if counts[verdict]]
    told = f"{counts.total()} values: {', '.join(parts)}" if parts else "no printed values"
    lines = [wrapped(told, "", "  ")]
    if any(each.how == NOT_RUN for each in worked.steps):
        config = worked.sheet.run["config"]
        lines.append(f"to see its numbers: python train.py --config {config}, then this again")
    return "\n".join([*lines, *first_slip(worked), *complaint_lines(worked)])


WORDS = {
    "agrees": "agree", "rounded": "agree after rounding", "errata_origin": "slips",
    "errata_propagated": "follow from slips", "ocr": "scan damage",
    "not_checkable": "not checkable", "unexplained": "wrong",
}  # fmt: skip


def first_slip(worked: Worked) -> list[str]:
    """The first number that nothing explains, and the later ones that merely follow from it."""
    for each in worked.steps:
        for cell, judged in each.judged.items():
            if judged.how != UNEXPLAINED or judged.exact is None:
                continue
            label = f"{each.step.name}{place_of(cell, each.step)}"
            followers = [
                f"{later.step.name}{place_of(place, later.step)}"
                for later in worked.steps
                for place, other in later.judged.items()
                if other.verdict == "errata_propagated" and label in other.causes
            ]
            lines = [
                f"first slip: step {each.step.name}, cell {place_of(cell, each.step)}: "
                f"printed {judged.printed.text}, right {shortest(judged.exact)}"
            ]
            if followers:
                lines.append(wrapped(f"merely follow from it: {', '.join(followers)}", "", "  "))
            return lines
    return []


def complaint_lines(worked: Worked) -> list[str]:
    return [f"error: {worked.sheet.name}: {complaint}" for complaint in worked.complaints]


def shortened(values: Tensor) -> list[list[str]]:
    """A matrix as text, its columns cut short where there are very many."""
    left_out = values.shape[1] - MOST_COLUMNS
    if left_out <= MOST_COLUMNS:
        return [[shortest(value) for value in row] for row in values.tolist()]
    rows = [[f"{value:.4f}" for value in row[:MOST_COLUMNS]] for row in values.tolist()]
    return [[*row, f"… {left_out} more"] for row in rows]


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows of text in columns."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def beside(left: list[str], right: list[str]) -> list[str]:
    width = max(map(len, left)) + 4
    height = max(len(left), len(right))
    left, right = left + [""] * (height - len(left)), right + [""] * (height - len(right))
    return [f"{a:{width}}{b}".rstrip() for a, b in zip(left, right, strict=True)]


def wrapped(text: str, first: str, later: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
