"""What benchmarks/ancestors.py found: tables, a picture, and JSON to draw it from again."""

import json
from bisect import bisect_left
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import print_table, with_quartiles
from minitransformer.errors import DataError
from minitransformer.explain.heatmaps import CELL_RAMP, PAPER_RAMP

GREY = PAPER_RAMP[1]
COLOURS = {"transformer": CELL_RAMP[1], "recurrent": CELL_RAMP[2], "no-attention": GREY}
STYLES = {"transformer": "o-", "recurrent": "s--", "no-attention": "^:"}  # to print without them
WIDTHS = {"transformer": 2.8, "recurrent": 2.2, "no-attention": 1.7}  # to see one on another
LABEL_GAP = 0.16  # between the middles of two labels, as a share of the height


class Result(NamedTuple):
    """One model: its size, what its training took, and what it translates like."""

    name: str
    label: str
    parameters: int
    tokens_per_second: list[float]  # of the target, in training, round by round
    bleu: float | None
    chrf: float | None
    exact_match: float
    sentences_per_second: list[float]  # in decoding, round by round
    by_length: list[float | None]  # None: sentences too short for the metric


class Panel(NamedTuple):
    """All models on one corpus."""

    name: str
    unit: str  # of the lengths
    metric: str  # by length
    lengths: list[str]
    places: list[float]  # of the lengths on an axis
    longest: int | None  # that training had, where the test goes beyond
    remarks: list[str]
    results: list[Result]


def buckets_by_length(lengths: list[int], count: int) -> list[range]:
    """At most so many spans of lengths with about as many sentences in each.

    All sentences of one length are in one bucket.
    """
    ordered = sorted(lengths)
    starts = sorted(
        {
            min(ordered, key=lambda start: abs(bisect_left(ordered, start) - wanted))
            for wanted in (len(ordered) * number / count for number in range(count))
        }
    )
    return [
        range(start, stop)
        for start, stop in zip(starts, [*starts[1:], ordered[-1] + 1], strict=True)
    ]


def span(bucket: range) -> str:
    """`range(4, 9)` -> "4–8"."""
    return f"{bucket[0]}" if len(bucket) == 1 else f"{bucket[0]}–{bucket[-1]}"


def rounded(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def cells(result: Result) -> tuple[str, ...]:
    """A model's row of the first table."""
    return (
        result.label,
        f"{result.parameters:,}",
        with_quartiles(result.tokens_per_second, 0),
        rounded(result.bleu, 2),
        rounded(result.chrf, 2),
        f"{result.exact_match:.1%}",
        with_quartiles(result.sentences_per_second, 0),
    )


def print_panel(panel: Panel) -> None:
    """As Markdown: a table of the models, and one of what they do with each length."""
    print(f"\n{panel.name}\n")
    print_table(
        (
            "model", "parameters", "tokens/s in training", "BLEU", "chrF", "exact",
            "sentences/s in decoding",
        ),
        map(cells, panel.results),
    )  # fmt: skip
    print()
    print_table(
        (f"{panel.metric} by {panel.unit}", *panel.lengths),
        ((each.label, *(rounded(value, 1) for value in each.by_length)) for each in panel.results),
    )
    for remark in panel.remarks:
        print(f"\n{remark}")


def read_panels(path: Path) -> list[Panel]:
    """What --json wrote."""
    try:
        panels: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["panels"]
        return [
            Panel(**panel | {"results": [Result(**each) for each in panel["results"]]})
            for panel in panels
        ]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is not a file that --json wrote") from None


def as_json(panels: list[Panel]) -> dict[str, Any]:
    return {
        "panels": [
            panel._asdict() | {"results": [each._asdict() for each in panel.results]}
            for panel in panels
        ]
    }


def spread(heights: list[float]) -> list[float]:
    """Heights from 0 to 1, the lowest first, moved until labels beside them have room."""
    placed: list[float] = []
    for number, height in enumerate(heights):
        lowest = placed[-1] + LABEL_GAP if placed else 0.0
        highest = 1 - LABEL_GAP * (len(heights) - 1 - number)
        placed.append(min(max(height, lowest), highest))
    return placed


def draw(panels: list[Panel], path: str) -> None:
    """A picture with a panel for each corpus and a line for each model, labelled where it ends."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_panel(axes, panel)
    figure.savefig(path, dpi=110, format="png")


def draw_panel(axes: Any, panel: Panel) -> None:
    values = [value or 0 for each in panel.results for value in each.by_length]
    top = 1.05 * max(*values, 1)
    ends = []
    for result in panel.results:
        line = [float("nan") if value is None else value for value in result.by_length]
        axes.plot(panel.places, line, STYLES[result.name], **look(result))
        known = [value for value in result.by_length if value is not None] or [0.0]
        ends.append((known[-1] / top, sum(known), result))
    ends.sort(key=lambda end: end[:2])
    for height, (_, _, result) in zip(spread([end[0] for end in ends]), ends, strict=True):
        axes.plot(
            1.05, height, STYLES[result.name][0], **look(result), clip_on=False,
            transform=axes.transAxes,
        )  # fmt: skip
        axes.annotate(
            result.label.replace(" with", "\nwith"), (1.08, height), xycoords="axes fraction",
            color=look(result)["color"], va="center",
        )  # fmt: skip
    if panel.longest is not None:
        axes.axvline(panel.longest, color=GREY, linewidth=0.8)
        axes.annotate(
            "longest\nin training", (panel.longest, 0.5), xycoords=("data", "axes fraction"),
            xytext=(-4, 0), textcoords="offset points", ha="right", fontsize=9,
            color=GREY,
        )  # fmt: skip
    axes.set_ylim(0, top)
    axes.set_xticks(panel.places, panel.lengths)
    axes.set_title(f"{panel.name}: {panel.metric}", fontsize=10)
    axes.set_xlabel(panel.unit)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def look(result: Result) -> dict[str, Any]:
    width = WIDTHS[result.name]
    return {"color": COLOURS[result.name], "linewidth": width, "markersize": 3 + 1.5 * width}
