"""How copying and reversing go beyond the lengths trained on: python -m benchmarks.lengths

Trains copy.yaml and reverse.yaml with every position encoding by the command that a user types, and
then translates 200 new sequences of each length up to one and a half times the longest.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from minitransformer import Translator
from minitransformer.data.toy_tasks import TASKS, pairs_of_length

ROOT = Path(__file__).parent.parent
COMPARED = ("copy", "reverse")
POSITIONS = ("sinusoidal", "learned", "rotary", "none")
PAIRS = 200  # of each length


class Result(NamedTuple):
    task: str
    position: str
    test: float
    minutes: float
    by_length: dict[int, float]


def train_and_measure(task: str, position: str, folder: Path, settings: list[str]) -> Result:
    run = folder / f"{task}-{position}"
    changes = [f"model.positional_encoding={position}", *settings]
    command(
        ROOT / "train.py", "--config", f"{task}.yaml", "--run", run,
        *(argument for change in changes for argument in ("--set", change)),
    )  # fmt: skip
    test = re.search(r"exact_match +([\d.]+)", command("-m", "minitransformer.evaluate", run))
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = re.search(r'"seconds": ([\d.]+)', rows[-1])
    assert test
    assert seconds
    by_length = exact_by_length(Translator.load(run), task)
    return Result(task, position, float(test[1]), float(seconds[1]) / 60, by_length)


def exact_by_length(translator: Translator, task: str) -> dict[int, float]:
    """The share of new sequences that come out exactly, up to half as long again as trained on."""
    by_length = {}
    for length in range(1, TASKS[task].max_length * 3 // 2 + 1):
        pairs = pairs_of_length(task, length, PAIRS, seed=length)
        translations = translator.translate([source for source, _ in pairs])
        right = [each.text == pair[1] for each, pair in zip(translations, pairs, strict=True)]
        by_length[length] = sum(right) / len(right)
    return by_length


def command(*arguments: object) -> str:
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, encoding="utf-8", check=True,
    )  # fmt: skip
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="where to keep the runs (default: nowhere)")
    parser.add_argument("--data", type=Path, help="a folder with TASK/{train,valid,test}.tsv "
                        "to take instead of generated pairs")  # fmt: skip
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        asked = [
            (task, position, options.runs or Path(folder), files(options.data, task))
            for task in COMPARED
            for position in POSITIONS
        ]
        results = list(pool.map(lambda each: train_and_measure(*each), asked))
    for task in COMPARED:
        longest = TASKS[task].max_length
        beyond = range(longest + 1, longest * 3 // 2 + 1)
        print(f"\n| {task}: position | test exact | minutes | 1 to {longest} | "
              + " | ".join(map(str, beyond)) + " |")  # fmt: skip
        print("|---|" + "---|" * (3 + len(beyond)))
        for result in (each for each in results if each.task == task):
            seen = [result.by_length[length] for length in range(1, longest + 1)]
            cells = [f"{result.by_length[length]:.0%}" for length in beyond]
            print(
                f"| {result.position} | {result.test:.1%} | {result.minutes:.1f} "
                f"| {sum(seen) / len(seen):.1%} | " + " | ".join(cells) + " |"
            )


def files(data: Path | None, task: str) -> list[str]:
    if data is None:
        return []
    names = {"source": "train", "valid": "valid", "test": "test"}
    return [f"data.{key}={data / task / name}.tsv" for key, name in names.items()]


if __name__ == "__main__":
    main()
