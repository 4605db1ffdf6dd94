"""Where two files that should run side by side stop doing so, judged by what lines share."""

import zlib

import numpy
from numpy.typing import NDArray

Floats = NDArray[numpy.float64]
MOST_GAPS = 50  # more missing lines than this are looked for as one gap
CLEAR_GAIN = 3.0  # a path that fits no better than any other says nothing


def first_mismatch(sources: list[str], targets: list[str]) -> int | None:
    """The place, from 0, after which lines fit better when the longer file skips some.

    With k lines too many, the best path through both files has k skips; the first of them is where
    to look. best[place] is the least cost of matching the first `place` lines of the shorter file
    with j lines skipped so far. None when the lines are too much alike to tell.
    """
    short, long = sorted((sources, targets), key=len)
    missing = len(long) - len(short)
    if not short:
        return 0
    features = features_of(short, long), features_of(long, short)
    skips = range(1, missing + 1) if missing <= MOST_GAPS else (missing,)
    best = numpy.append(0.0, cost(*features, 0).cumsum())
    unskipped = float(best[-1])
    first = numpy.arange(len(best))  # where the best path made its first skip
    for skip in skips:
        total = numpy.append(0.0, cost(*features, skip).cumsum())
        gain = best - total
        lowest = numpy.minimum.accumulate(gain)
        is_new = numpy.append(True, gain[1:] < lowest[:-1])
        came_from = numpy.maximum.accumulate(numpy.where(is_new, numpy.arange(len(gain)), 0))
        best, first = total + lowest, first[came_from] if skip != skips[0] else came_from
    worst = max(unskipped, float(total[-1]))  # all skips at the end, or all at the beginning
    return int(first[-1]) if worst - float(best[-1]) > CLEAR_GAIN else None


def features_of(lines: list[str], others: list[str]) -> list[Floats]:
    """For each line its length against the usual one, its last sign, and a word of both files."""
    lengths = numpy.log1p(numpy.array([len(line) for line in lines], dtype=float))
    shared = {word for line in others for word in line.split()}
    common = [min((w for w in line.split() if w in shared), default="", key=code) for line in lines]
    ends = [line[-1:] if line[-1:] in "?!" else "" for line in lines]
    return [
        lengths - numpy.median(lengths),
        numpy.array([code(end) for end in ends], dtype=float),
        numpy.array([code(word) for word in common], dtype=float),
    ]


def code(text: str) -> int:
    """A number that stands for a text, the same on every machine; 0 for none."""
    return zlib.crc32(text.encode("utf-8", errors="surrogatepass"))


def cost(short: list[Floats], long: list[Floats], skip: int) -> Floats:
    """How badly each line of the shorter file fits the one `skip` lines further down."""
    beside = [feature[skip : skip + len(short[0])] for feature in long]
    costs: Floats = numpy.abs(beside[0] - short[0])
    for ours, theirs in zip(short[1:], beside[1:], strict=True):
        costs = costs + (ours != theirs)
    return costs
