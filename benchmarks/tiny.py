"""Measure what the tiny configs learn, and their times: python -m benchmarks.tiny [--seeds 5]

Each row is trained by train.py, in a temporary folder.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from tests.support.overrides import overrides

ROOT = Path(__file__).parent.parent
TRANSFORMERS = ("tiny.yaml", "tiny-bn.yaml")  # those of the table of lessons
CONFIGS = (*TRANSFORMERS, "tiny-rnn.yaml")
LESSON = {
    "as it ships": (),
    "36 pairs instead of all": ("data.limit=36",),
    "embeddings start as N(0, 1)": ("model.embedding_std=1.0",),
    "N(0, 1), and times √d_model": ("model.embedding_std=1.0", "model.scale_embeddings=true"),
    "no weight decay": ("training.weight_decay=0",),
}


class TrainingRun(NamedTuple):
    """The exact-match rates of a finished run, its times and its size."""

    train_exact: float
    valid_exact: float
    step_seconds: float  # of all optimizer steps
    total_seconds: float
    parameters: str


def train(config: str, seed: int, settings: tuple[str, ...], folder: str) -> TrainingRun:
    """Train a config with one seed."""
    run = Path(folder) / f"run-{time.monotonic_ns()}"
    changes = [f"training.seed={seed}", *settings]
    start_time = time.perf_counter()
    result = subprocess.run(
        [
            sys.executable, ROOT / "train.py", "--config", config, "--run", run,
            *overrides(*changes),
        ],
        capture_output=True, text=True, encoding="utf-8", check=True,
    )  # fmt: skip
    total_seconds = time.perf_counter() - start_time
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = {row["split"]: row["exact_match"] for row in map(json.loads, rows[-2:])}
    steps = re.search(r"steps took ([\d.]+) s", result.stdout)
    parameters = re.search(r"parameters  ([\d,]+)", result.stdout)
    assert steps
    assert parameters
    return TrainingRun(last["train"], last["valid"], float(steps[1]), total_seconds, parameters[1])


def import_torch_seconds() -> float:
    """Return the seconds that a Python process takes that only imports torch."""
    start_time = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start_time


def format_percent_range(values: list[float]) -> str:
    """Format rates as their mean and range in percent."""
    return f"{mean(values):.1%} ({min(values):.1%} to {max(values):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(1, parser.parse_args().seeds + 1)
    import_torch_seconds()  # the first import reads from a cold disk
    with tempfile.TemporaryDirectory() as folder:
        print("| config | parameters | training pairs exact | held-out exact, mean (range) "
              "| optimizer steps "
              "| start-up and evaluation, as a multiple of `import torch` |")  # fmt: skip
        print("|---|---|---|---|---|---|")
        default_runs = {}
        for config in CONFIGS:
            runs, imports = [], []
            for seed in seeds:
                imports.append(import_torch_seconds())
                runs.append(train(config, seed, (), folder))
            default_runs[config] = runs
            rest = median((run.total_seconds - run.step_seconds) / median(imports) for run in runs)
            print(
                f"| `{config}` | {runs[0].parameters} | {min(run.train_exact for run in runs):.1%} "
                f"| {format_percent_range([run.valid_exact for run in runs])} "
                f"| {median(run.step_seconds for run in runs):.1f} s | {rest:.1f} |",
                flush=True,
            )
        columns = [f"`{config}`: training pairs | held-out" for config in TRANSFORMERS]
        print(f"\n| lesson | {' | '.join(columns)} |")
        print("|---|" + "---|---|" * len(TRANSFORMERS))
        for name, settings in LESSON.items():
            cells = []
            for config in TRANSFORMERS:
                runs = (
                    [train(config, seed, settings, folder) for seed in seeds]
                    if settings
                    else default_runs[config]
                )
                cells += [f"{mean(run.train_exact for run in runs):.1%}",
                          format_percent_range([run.valid_exact for run in runs])]  # fmt: skip
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
