"""Print and plot the results of benchmarks/ancestors.py, and store them as JSON."""

import json
from bisect import bisect_left
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import format_quartiles, print_table
from minitransformer.errors import DataError
from minitransformer.explain.heatmaps import CELL_RAMP, PAPER_RAMP

GREY = PAPER_RAMP[1]
COLOURS = {"transformer": CELL_RAMP[1], "recurrent": CELL_RAMP[2], "no-attention": GREY}
STYLES = {"transformer": "o-", "recurrent": "s--", "no-attention": "^:"}  # readable in grey
WIDTHS = {"transformer": 2.8, "recurrent": 2.2, "no-attention": 1.7}  # to see overlapping lines
LABEL_GAP = 0.16  # between the centres of two labels, as a share of the axes' height


class Result(NamedTuple):
    """The size, the speeds and the scores of a model."""

    name: str
    label: str
    parameters: int
    tokens_per_second: list[float]  # target tokens in training, by round
    bleu: float | None
    chrf: float | None
    exact_match: float
    sentences_per_second: list[float]  # in decoding, by round
    by_length: list[float | None]  # None if the sentences are too short for the metric


class Panel(NamedTuple):
    """The results of all models on one corpus."""

    name: str
    unit: str  # of the lengths
    metric: str  # by length
    lengths: list[str]  # their labels
    positions: list[float]  # of the lengths on the x axis
    max_train_length: int | None  # where the test has longer sequences than training
    remarks: list[str]
    results: list[Result]


def buckets_by_length(lengths: list[int], count: int) -> list[range]:
    """Divide lengths into at most `count` ranges with about as many sentences each."""
    ordered = sorted(lengths)
    starts = sorted(
        {
            min(ordered, key=lambda start: abs(bisect_left(ordered, start) - wanted))
            for wanted in (len(ordered) * index / count for index in range(count))
        }
    )
    return [
        range(start, stop)
        for start, stop in zip(starts, [*starts[1:], ordered[-1] + 1], strict=True)
    ]


def format_bucket(bucket: range) -> str:
    """Format `range(4, 9)` as "4–8"."""
    return f"{bucket[0]}" if len(bucket) == 1 else f"{bucket[0]}–{bucket[-1]}"


def format_score(value: float | None, digits: int) -> str:
    """Round a score, or return a dash if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def table_row(result: Result) -> tuple[str, ...]:
    """Return the cells of a model's row of the first table."""
    return (
        result.label,
        f"{result.parameters:,}",
        format_quartiles(result.tokens_per_second, 0),
        format_score(result.bleu, 2),
        format_score(result.chrf, 2),
        f"{result.exact_match:.1%}",
        format_quartiles(result.sentences_per_second, 0),
    )


def print_panel(panel: Panel) -> None:
    """Print two Markdown tables: overall results of the models, and their scores by length."""
    print(f"\n{panel.name}\n")
    print_table(
        (
            "model", "parameters", "tokens/s in training", "BLEU", "chrF", "exact",
            "sentences/s in decoding",
        ),
        map(table_row, panel.results),
    )  # fmt: skip
    print()
    print_table(
        (f"{panel.metric} by {panel.unit}", *panel.lengths),
        (
            (result.label, *(format_score(value, 1) for value in result.by_length))
            for result in panel.results
        ),
    )
    for remark in panel.remarks:
        print(f"\n{remark}")


def read_panels(path: Path) -> list[Panel]:
    """Read a file that --json wrote."""
    try:
        panels: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["panels"]
        return [
            Panel(**panel | {"results": [Result(**each) for each in panel["results"]]})
            for panel in panels
        ]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is not a file that --json wrote") from None


def to_json(panels: list[Panel]) -> dict[str, Any]:
    """Return panels as JSON data, which `read_panels` reads."""
    return {
        "panels": [
            panel._asdict() | {"results": [each._asdict() for each in panel.results]}
            for panel in panels
        ]
    }


def spread_labels(heights: list[float]) -> list[float]:
    """Move ascending heights between 0 and 1 at least LABEL_GAP apart."""
    spread: list[float] = []
    for index, height in enumerate(heights):
        lowest = spread[-1] + LABEL_GAP if spread else 0.0
        highest = 1 - LABEL_GAP * (len(heights) - 1 - index)
        spread.append(min(max(height, lowest), highest))
    return spread


def plot(panels: list[Panel], path: str) -> None:
    """Plot the metric by length: one panel for each corpus, one line for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        plot_panel(axes, panel)
    figure.savefig(path, dpi=110, format="png")


def plot_panel(axes: Any, panel: Panel) -> None:
    """Plot a panel, with each label beside the end of its line."""
    values = [value or 0 for each in panel.results for value in each.by_length]
    top = 1.05 * max(*values, 1)
    ends = []
    for result in panel.results:
        line = [float("nan") if value is None else value for value in result.by_length]
        axes.plot(panel.positions, line, STYLES[result.name], **line_style(result))
        known = [value for value in result.by_length if value is not None] or [0.0]
        ends.append((known[-1] / top, sum(known), result))
    ends.sort(key=lambda end: end[:2])
    for height, (_, _, result) in zip(spread_labels([end[0] for end in ends]), ends, strict=True):
        axes.plot(
            1.05, height, STYLES[result.name][0], **line_style(result), clip_on=False,
            transform=axes.transAxes,
        )  # fmt: skip
        axes.annotate(
            result.label.replace(" with", "\nwith"), (1.08, height), xycoords="axes fraction",
            color=line_style(result)["color"], va="center",
        )  # fmt: skip
    if panel.max_train_length is not None:
        axes.axvline(panel.max_train_length, color=GREY, linewidth=0.8)
        axes.annotate(
            "longest\nin training", (panel.max_train_length, 0.5),
            xycoords=("data", "axes fraction"), xytext=(-4, 0), textcoords="offset points",
            ha="right", fontsize=9, color=GREY,
        )  # fmt: skip
    axes.set_ylim(0, top)
    axes.set_xticks(panel.positions, panel.lengths)
    axes.set_title(f"{panel.name}: {panel.metric}", fontsize=10)
    axes.set_xlabel(panel.unit)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def line_style(result: Result) -> dict[str, Any]:
    """Return the Matplotlib properties of a model's line."""
    width = WIDTHS[result.name]
    return {"color": COLOURS[result.name], "linewidth": width, "markersize": 3 + 1.5 * width}
