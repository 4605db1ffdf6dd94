"""Measure how time and memory scale: python -m benchmarks.growth [--plot growth.png]

Measures training steps of the 4+4×128 model over the tokens of a batch, the length of its sentences
and the vocabulary, and loading over the number of pairs; each point in a process of its own. An
exponent of 1 means linear growth; it is fitted on a log-log scale to the larger half of the points,
where constant costs no longer matter.
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
DEFAULTS = {"tokens a batch": 4096, "tokens a sentence": 16, "vocabulary": 8000}
STEPS = 5


class Measurement(NamedTuple):
    seconds: float
    bytes: float


def measure_training_step(kind: str, value: int) -> Measurement:
    """Return the median time of a step, and its memory beyond the model and its optimizer."""
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
    tokens, length, vocab_size = (DEFAULTS | {kind: value}).values()
    model = build_model(model_config(SIZES["4+4×128"]), vocab_size, vocab_size, PAD_ID)
    optimizer = AdamW(model, TRAINING)
    training_loss = TrainingLoss(model, TRAINING)

    def step(rows: int) -> float:
        target = torch.randint(len(SPECIALS), vocab_size, (rows, length))
        start_time = time.perf_counter()
        batch = Batch(target, shifted(target, BOS_ID), target)
        (training_loss(*batch).objective / batch.num_target_tokens).backward()
        optimizer.step(TRAINING.learning_rate)
        return time.perf_counter() - start_time

    step(1)  # allocates the optimizer's state
    before = large_corpus.current_bytes()
    seconds = sorted(step(max(1, tokens // length)) for _ in range(STEPS))
    return Measurement(seconds[STEPS // 2], large_corpus.peak_bytes() - before)


def measure_loading(pairs: int) -> Measurement:
    """Return the time and memory of reading, filtering and encoding a corpus, and of an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.tsv"
        large_corpus.generate(path, pairs)
        start_time = time.perf_counter()
        loaded = large_corpus.load(str(path), str(Path(folder) / "cache"), "words")
        return Measurement(time.perf_counter() - start_time, loaded["peak"])


def measure_in_subprocess(kind: str, value: int) -> Measurement:
    """Measure a point in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.growth", "--point", kind, str(value)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Measurement(*json.loads(result.stdout))


def exponent(values: tuple[int, ...], amounts: list[float]) -> float:
    """Return the slope of the larger half of the points on a log-log scale."""
    half = len(values) // 2
    slope, _ = numpy.polyfit(numpy.log(values[half:]), numpy.log(amounts[half:]), 1)
    return float(slope)


def plot(measurements: dict[str, list[Measurement]], path: str) -> None:
    """Plot time and memory with their exponents, on a log-log scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    grid = figure.subplots(2, len(POINTS), sharex="col")
    for column, (kind, points) in zip(grid.T, measurements.items(), strict=True):
        for axes, name, index, unit in zip(column, ("s", "MB"), (0, 1), (1, 1e6), strict=True):
            amounts = [point[index] / unit for point in points]
            axes.loglog(POINTS[kind], amounts, "o-")
            axes.set_ylim(min(amounts) / 3, max(amounts) * 3)  # noise in constant costs looks flat
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
    parser.add_argument("--plot", help="write a plot to this file, such as growth.png")
    parser.add_argument("--json", help="write all numbers to this file")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        kind, value = options.point[0], int(options.point[1])
        is_loading = kind == "pairs"
        point = measure_loading(value) if is_loading else measure_training_step(kind, value)
        print(json.dumps(point))
        return
    measurements: dict[str, list[Measurement]] = {}
    rows = []
    for kind, values in POINTS.items():
        points = measurements[kind] = [measure_in_subprocess(kind, value) for value in values]
        times, sizes = ([point[index] for point in points] for index in range(2))
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
        plot(measurements, options.plot)
    if options.json:
        write_json(options.json, {"points": POINTS, "seconds and bytes": measurements})


if __name__ == "__main__":
    main()
