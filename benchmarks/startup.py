"""What it costs to begin: python -m benchmarks.startup [--rounds 7]

Whole commands in processes of their own, in turns, in seconds and in units of `import torch`. Of a
training run, the optimizer's steps are taken off: what is left is all that is not learning.
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
MISTAKE = "training.step=5"


def commands(folder: str) -> dict[str, list[str]]:
    run = f"{folder}/tiny"
    train = [str(ROOT / "train.py"), "--config", "tiny.yaml"]
    translate = [str(ROOT / "translate.py"), "--run", run]
    return {
        TORCH: ["-c", "import torch"],
        "train.py --help": [*train[:1], "--help"],
        "train.py with a mistake in it": [*train, "--set", MISTAKE],
        "translate.py, one sentence": [*translate, "Let's go"],
        "train.py --config tiny.yaml": [*train, "--run", f"{folder}/again", "--fresh"],
        "the same without TensorBoard": [
            *train, "--run", f"{folder}/plain", "--fresh", "--set", "logging.tensorboard=false",
        ],
    }  # fmt: skip


def seconds(arguments: list[str]) -> float:
    """Of a command, without the steps that it took."""
    began = time.perf_counter()
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, encoding="utf-8", check=False
    )
    taken = time.perf_counter() - began
    assert result.returncode == (2 if MISTAKE in arguments else 0), result.stderr
    steps = re.search(r"steps took ([\d.]+) s", result.stdout)
    return taken - (float(steps[1]) if steps else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="a file for all numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asked = commands(folder)
        seconds([str(ROOT / "train.py"), "--config", "tiny.yaml", "--run", f"{folder}/tiny"])
        found: dict[str, list[float]] = {name: [] for name in asked}
        names, random = list(asked), Random(1)
        for _ in range(options.rounds):
            random.shuffle(names)
            for name in names:
                found[name].append(seconds(asked[name]))
    rows = []
    for name, times in found.items():
        units = [taken / torch for taken, torch in zip(times, found[TORCH], strict=True)]
        first, median, third = quartiles(units)
        rows.append(
            (
                f"`{name}`" if name == TORCH or name.endswith((".yaml", "--help")) else name,
                f"{quartiles(times)[1]:.2f} s",
                f"{median:.2f} ({first:.2f} to {third:.2f})",
            )
        )
    print_table(("", "seconds", "in `import torch`"), rows)
    if options.json:
        write_json(options.json, {"seconds": found})


if __name__ == "__main__":
    main()
