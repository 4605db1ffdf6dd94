"""Test copying and reversing beyond the lengths of training: python -m benchmarks.lengths

Trains copy.yaml and reverse.yaml with every positional encoding by train.py, and then translates
200 new sequences of each length, up to one and a half times the longest in training.
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
from tests.support.overrides import overrides

ROOT = Path(__file__).parent.parent
TASK_NAMES = ("copy", "reverse")
ENCODINGS = ("sinusoidal", "learned", "rotary", "none")
PAIRS_PER_LENGTH = 200


class Result(NamedTuple):
    task: str
    encoding: str
    test_exact: float
    minutes: float
    exact_by_length: dict[int, float]


def train_and_test(task: str, encoding: str, folder: Path, settings: list[str]) -> Result:
    """Train a task with a positional encoding, and measure its exact matches."""
    run = folder / f"{task}-{encoding}"
    changes = [f"model.positional_encoding={encoding}", *settings]
    run_python(
        ROOT / "train.py", "--config", f"{task}.yaml", "--run", run,
        *overrides(*changes),
    )  # fmt: skip
    test = re.search(
        r"exact_match +([\d.]+)", run_python("-m", "minitransformer", "evaluate", "--run", run)
    )
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = re.search(r'"seconds": ([\d.]+)', rows[-1])
    assert test
    assert seconds
    by_length = exact_by_length(Translator.load(run), task)
    return Result(task, encoding, float(test[1]), float(seconds[1]) / 60, by_length)


def exact_by_length(translator: Translator, task: str) -> dict[int, float]:
    """Return the share of exact translations of new sequences of each length."""
    by_length = {}
    for length in range(1, TASKS[task].max_length * 3 // 2 + 1):
        pairs = pairs_of_length(task, length, PAIRS_PER_LENGTH, seed=length)
        translations = translator.translate([source for source, _ in pairs])
        is_exact = [each.text == pair[1] for each, pair in zip(translations, pairs, strict=True)]
        by_length[length] = sum(is_exact) / len(is_exact)
    return by_length


def run_python(*arguments: object) -> str:
    """Run Python with these arguments, and return its output."""
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, encoding="utf-8", check=True,
    )  # fmt: skip
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="keep the runs in this folder")
    parser.add_argument("--data", type=Path, help="a folder with TASK/{train,valid,test}.tsv "
                        "to use instead of generated pairs")  # fmt: skip
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        jobs = [
            (task, encoding, options.runs or Path(folder), data_settings(options.data, task))
            for task in TASK_NAMES
            for encoding in ENCODINGS
        ]
        results = list(pool.map(lambda job: train_and_test(*job), jobs))
    for task in TASK_NAMES:
        longest = TASKS[task].max_length
        beyond = range(longest + 1, longest * 3 // 2 + 1)
        print(f"\n| {task}: position | test exact | minutes | 1 to {longest} | "
              + " | ".join(map(str, beyond)) + " |")  # fmt: skip
        print("|---|" + "---|" * (3 + len(beyond)))
        for result in (each for each in results if each.task == task):
            within = [result.exact_by_length[length] for length in range(1, longest + 1)]
            cells = [f"{result.exact_by_length[length]:.0%}" for length in beyond]
            print(
                f"| {result.encoding} | {result.test_exact:.1%} | {result.minutes:.1f} "
                f"| {sum(within) / len(within):.1%} | " + " | ".join(cells) + " |"
            )


def data_settings(data: Path | None, task: str) -> list[str]:
    """Return the settings that take a task's pairs from a folder, if one is given."""
    if data is None:
        return []
    return [f"data.{split}={data / task / split}.tsv" for split in ("train", "valid", "test")]


if __name__ == "__main__":
    main()
