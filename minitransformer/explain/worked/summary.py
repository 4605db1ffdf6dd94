"""What a worked sheet comes to: counts, the first slip, what follows from it, and hints."""

import dataclasses
from collections.abc import Iterator

from minitransformer.explain.paragraphs import wrapped
from minitransformer.explain.worked.engine import NOT_RUN, VERDICTS, Worked, work_through
from minitransformer.explain.worked.judging import UNEXPLAINED, place_of
from minitransformer.explain.worked.layout import counted
from minitransformer.explain.worked.numbers import shortest
from minitransformer.explain.worked.verdict import Judged

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
