"""What the tiny configs reach and cost: python -m benchmarks.tiny [--seeds 5]

Each row trains by the command that a user types, in a folder that is thrown away afterwards.
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

ROOT = Path(__file__).parent.parent
TRANSFORMERS = ("tiny.yaml", "tiny-bn.yaml")  # that the lesson is about
CONFIGS = (*TRANSFORMERS, "tiny-rnn.yaml")
LESSON = {
    "as it ships": (),
    "36 pairs instead of all": ("data.limit=36",),
    "embeddings start as N(0, 1)": ("model.embedding_std=1.0",),
    "N(0, 1), and times √d_model": ("model.embedding_std=1.0", "model.scale_embeddings=true"),
    "no weight decay": ("training.weight_decay=0",),
}


class Trained(NamedTuple):
    train: float
    valid: float
    stepping: float
    wall: float
    parameters: str


def train(config: str, seed: int, settings: tuple[str, ...], folder: str) -> Trained:
    run = Path(folder) / f"run-{time.monotonic_ns()}"
    changes = [f"training.seed={seed}", *settings]
    began = time.perf_counter()
    result = subprocess.run(
        [
            sys.executable, ROOT / "train.py", "--config", config, "--run", run,
            *(argument for change in changes for argument in ("--set", change)),
        ],
        capture_output=True, text=True, encoding="utf-8", check=True,
    )  # fmt: skip
    wall = time.perf_counter() - began
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = {row["split"]: row["exact_match"] for row in map(json.loads, rows[-2:])}
    stepping = re.search(r"steps took ([\d.]+) s", result.stdout)
    parameters = re.search(r"parameters  ([\d,]+)", result.stdout)
    assert stepping
    assert parameters
    return Trained(last["train"], last["valid"], float(stepping[1]), wall, parameters[1])


def import_torch() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def summary(values: list[float]) -> str:
    return f"{mean(values):.1%} ({min(values):.1%} to {max(values):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(1, parser.parse_args().seeds + 1)
    import_torch()  # the first import of the day reads from a cold disk
    with tempfile.TemporaryDirectory() as folder:
        print("| config | parameters | training pairs exact | held-out exact, mean (range) "
              "| stepping | all the rest, in `import torch` |")  # fmt: skip
        print("|---|---|---|---|---|---|")
        shipped = {}
        for config in CONFIGS:
            runs, imports = [], []
            for seed in seeds:
                imports.append(import_torch())
                runs.append(train(config, seed, (), folder))
            shipped[config] = runs
            rest = median((run.wall - run.stepping) / median(imports) for run in runs)
            print(
                f"| `{config}` | {runs[0].parameters} | {min(run.train for run in runs):.1%} "
                f"| {summary([run.valid for run in runs])} "
                f"| {median(run.stepping for run in runs):.1f} s | {rest:.1f} |",
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
                    else shipped[config]
                )
                cells += [f"{mean(run.train for run in runs):.1%}",
                          summary([run.valid for run in runs])]  # fmt: skip
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
