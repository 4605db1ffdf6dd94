"""How time and memory grow: python -m benchmarks.growth [--plot growth.png]

Each point is measured in a process of its own: training steps of the 4+4×128 model against the
tokens of a batch, the length of its sentences and the vocabulary, and loading against the number
of pairs. An exponent of 1 means twice as much for twice as much; it is fitted to the logarithms of
the larger half, where what does not grow no longer counts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy

from benchmarks import large_corpus
from benchmarks.measuring import print_table, write_json

POINTS = {
    "tokens a batch": (500, 1000, 2000, 4000, 8000, 16000),
    "tokens a sentence": (8, 16, 32, 64, 128, 256),
    "vocabulary": (1000, 2000, 4000, 8000, 16000, 32000),
    "pairs": (4000, 8000, 16000, 32000, 64000, 128000),
}
USUAL = {"tokens a batch": 4096, "tokens a sentence": 16, "vocabulary": 8000}
STEPS = 5


class Measured(NamedTuple):
    seconds: float
    bytes: float


def training_step(kind: str, value: int) -> Measured:
    """The median time of a step, and what it needs beyond the model and its optimizer."""
    import torch

    from benchmarks.ours import TRAINING, model_config
    from benchmarks.workload import SIZES
    from minitransformer.data.batching import Batch, shifted
    from minitransformer.data.tokenizer import BOS_ID, PAD_ID, SPECIALS
    from minitransformer.model.base import build_model
    from minitransformer.model.loss import TrainingLoss
    from minitransformer.training.optimizer import AdamW

    torch.set_num_threads(1)
    torch.manual_seed(1)
    tokens, length, vocabulary = (USUAL | {kind: value}).values()
    model = build_model(model_config(SIZES["4+4×128"]), vocabulary, vocabulary, PAD_ID)
    optimizer = AdamW(model, TRAINING)
    training_loss = TrainingLoss(model, TRAINING)

    def step(rows: int) -> float:
        target = torch.randint(len(SPECIALS), vocabulary, (rows, length))
        began = time.perf_counter()
        batch = Batch(target, shifted(target, BOS_ID), target)
        (training_loss(*batch).objective / batch.num_target_tokens).backward()
        optimizer.step(TRAINING.learning_rate)
        return time.perf_counter() - began

    step(1)  # the optimizer makes its memory at its first step
    before = large_corpus.current_bytes()
    seconds = sorted(step(max(1, tokens // length)) for _ in range(STEPS))
    return Measured(seconds[STEPS // 2], large_corpus.peak_bytes() - before)


def loading(pairs: int) -> Measured:
    """Reading, judging and numbering a corpus, and making an epoch's batches."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.tsv"
        large_corpus.generate(path, pairs)
        began = time.perf_counter()
        found = large_corpus.load(str(path), str(Path(folder) / "cache"), "words")
        return Measured(time.perf_counter() - began, found["peak"])


def in_a_process(kind: str, value: int) -> Measured:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.growth", "--point", kind, str(value)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Measured(*json.loads(result.stdout))


def exponent(values: tuple[int, ...], amounts: list[float]) -> float:
    """The slope of the larger half in logarithms."""
    half = len(values) // 2
    slope, _ = numpy.polyfit(numpy.log(values[half:]), numpy.log(amounts[half:]), 1)
    return float(slope)


def draw(found: dict[str, list[Measured]], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    grid = figure.subplots(2, len(POINTS), sharex="col")
    for column, (kind, points) in zip(grid.T, found.items(), strict=True):
        for axes, name, part, unit in zip(column, ("s", "MB"), (0, 1), (1, 1e6), strict=True):
            amounts = [point[part] / unit for point in points]
            axes.loglog(POINTS[kind], amounts, "o-")
            axes.set_ylim(min(amounts) / 3, max(amounts) * 3)  # so that what is flat looks flat
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
            axes.set_title(f"exponent {exponent(POINTS[kind], amounts):.2f}", fontsize=9)
            axes.set_ylabel(name)
            axes.grid(alpha=0.3)
        column[1].set_xlabel(kind)
        column[1].xaxis.set_major_formatter("{x:g}")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", help="a picture of it, such as growth.png")
    parser.add_argument("--json", help="a file for all numbers")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        kind, value = options.point[0], int(options.point[1])
        print(json.dumps(loading(value) if kind == "pairs" else training_step(kind, value)))
        return
    found: dict[str, list[Measured]] = {}
    rows = []
    for kind, values in POINTS.items():
        points = found[kind] = [in_a_process(kind, value) for value in values]
        times, sizes = ([point[part] for point in points] for part in range(2))
        rows.append(
            (
                kind, f"{values[0]:,} to {values[-1]:,}",
                f"{times[0]:.2f} to {times[-1]:.2f} s", f"{exponent(values, times):.2f}",
                f"{sizes[0] / 1e6:,.0f} to {sizes[-1] / 1e6:,.0f} MB",
                f"{exponent(values, sizes):.2f}",
            )
        )  # fmt: skip
    print_table(("", "from, to", "time", "exponent", "memory", "exponent"), rows)
    if options.plot:
        draw(found, options.plot)
    if options.json:
        write_json(options.json, {"points": POINTS, "seconds and bytes": found})


if __name__ == "__main__":
    main()
