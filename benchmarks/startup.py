"""Measure how long commands take to start: python -m benchmarks.startup [--rounds 7]

Runs whole commands, in interleaved rounds, and prints seconds and multiples of `import torch`. The
time of a training run is without its optimizer steps.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from benchmarks.measuring import print_table, quartiles, write_json

ROOT = Path(__file__).parent.parent
TORCH = "import torch"
MISSPELT_SETTING = "training.step=5"


def python_commands(folder: str) -> dict[str, list[str]]:
    """Return the arguments of Python for each command, whose runs are in a folder."""
    run = f"{folder}/tiny"
    train = [str(ROOT / "train.py"), "--config", "tiny.yaml"]
    translate = [str(ROOT / "translate.py"), "--run", run]
    return {
        TORCH: ["-c", "import torch"],
        "train.py --help": [*train[:1], "--help"],
        "train.py with a mistake in it": [*train, "--set", MISSPELT_SETTING],
        "translate.py, one sentence": [*translate, "Let's go"],
        "train.py --config tiny.yaml": [*train, "--run", f"{folder}/again", "--fresh"],
        "the same without TensorBoard": [
            *train, "--run", f"{folder}/plain", "--fresh", "--set", "logging.tensorboard=false",
        ],
    }  # fmt: skip


def measure_seconds(arguments: list[str]) -> float:
    """Return the seconds that a command takes, without its optimizer steps."""
    start_time = time.perf_counter()
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, encoding="utf-8", check=False
    )
    seconds = time.perf_counter() - start_time
    assert result.returncode == (2 if MISSPELT_SETTING in arguments else 0), result.stderr
    steps = re.search(r"steps took ([\d.]+) s", result.stdout)
    return seconds - (float(steps[1]) if steps else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="write all numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = python_commands(folder)
        train = [str(ROOT / "train.py"), "--config", "tiny.yaml", "--run", f"{folder}/tiny"]
        measure_seconds(train)  # a warm-up, and the run that translate.py loads
        results: dict[str, list[float]] = {name: [] for name in commands}
        names, random = list(commands), Random(1)
        for _ in range(options.rounds):
            random.shuffle(names)
            for name in names:
                results[name].append(measure_seconds(commands[name]))
    rows = []
    for name, times in results.items():
        multiples = [each / torch for each, torch in zip(times, results[TORCH], strict=True)]
        first, median, third = quartiles(multiples)
        rows.append(
            (
                f"`{name}`" if name == TORCH or name.endswith((".yaml", "--help")) else name,
                f"{quartiles(times)[1]:.2f} s",
                f"{median:.2f} ({first:.2f} to {third:.2f})",
            )
        )
    print_table(("", "seconds", "as a multiple of `import torch`"), rows)
    if options.json:
        write_json(options.json, {"seconds": results})


if __name__ == "__main__":
    main()
