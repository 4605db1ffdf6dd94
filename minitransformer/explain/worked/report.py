"""A worked sheet as text: printed values beside ours, slips marked, in 80 columns."""

from collections import Counter

from minitransformer.explain.paragraphs import WIDTH, wrapped
from minitransformer.explain.worked.chains import at
from minitransformer.explain.worked.engine import NOT_RUN, VERDICTS, Worked, WorkedStep
from minitransformer.explain.worked.judging import UNEXPLAINED, place_of
from minitransformer.explain.worked.layout import aligned, beside, shortened
from minitransformer.explain.worked.numbers import shortest
from minitransformer.explain.worked.sheet import Cell, Sheet, Slip, Step
from minitransformer.explain.worked.summary import complaint_lines, summary
from minitransformer.explain.worked.verdict import Judged, slip_order

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
