"""Where two files that should run side by side stop doing so, judged by the lengths of lines."""

import numpy
from numpy.typing import NDArray

Floats = NDArray[numpy.float64]
MOST_GAPS = 50  # more missing lines than this are looked for as one gap


def first_mismatch(sources: list[int], targets: list[int]) -> int:
    """The place, from 0, after which lines fit better when the longer file skips some.

    Lines match well when their lengths have the usual ratio. With k lines too many, the best
    path has k skips; the first of them is where to look. best[place] is the least cost of
    matching the first `place` lines of the shorter file with j lines skipped so far.
    """
    short, long = sorted((sources, targets), key=len)
    if not short:
        return 0
    rates = [numpy.log1p(numpy.array(lengths, dtype=float)) for lengths in (short, long)]
    usual = float(numpy.median(rates[1]) - numpy.median(rates[0]))
    missing = len(long) - len(short)
    skips = range(1, missing + 1) if missing <= MOST_GAPS else (missing,)
    best = numpy.append(0.0, cost(rates, usual, 0).cumsum())
    first = numpy.arange(len(best))  # where the best path made its first skip
    for skip in skips:
        total = numpy.append(0.0, cost(rates, usual, skip).cumsum())
        gain = best - total
        lowest = numpy.minimum.accumulate(gain)
        is_new = numpy.append(True, gain[1:] < lowest[:-1])
        came_from = numpy.maximum.accumulate(numpy.where(is_new, numpy.arange(len(gain)), 0))
        best, first = total + lowest, first[came_from] if skip != skips[0] else came_from
    return int(first[-1])


def cost(rates: list[Floats], usual: float, skip: int) -> Floats:
    """How badly each line of the shorter file fits the one `skip` lines further down."""
    costs: Floats = numpy.abs(rates[1][skip : skip + len(rates[0])] - rates[0] - usual)
    return costs
