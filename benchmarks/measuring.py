"""What the speed benchmarks share: contestants in turns, paired ratios, tables and JSON."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch


def interleaved(contestants: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """What each contestant does in a second, round by round; it returns how much it did."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    names, random = list(contestants), Random(1)
    for _ in range(rounds):
        random.shuffle(names)  # nobody always goes first, or after the same one
        for name in names:
            began = time.perf_counter()
            done = contestants[name]()
            rates[name].append(done / (time.perf_counter() - began))
    return rates


def ratios(rates: dict[str, list[float]], name: str, against: str) -> list[float]:
    """How many times faster `name` was than `against`, in each round."""
    return [ours / theirs for ours, theirs in zip(rates[name], rates[against], strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first, the median and the third; of a single value that value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, median, third


def with_quartiles(values: Sequence[float], digits: int) -> str:
    """`[1, 2, 3, 4, 5]` -> "3.0 (2.0 to 4.0)" for one digit."""
    first, median, third = (f"{value:,.{digits}f}" for value in quartiles(values))
    return f"{median} ({first} to {third})"


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """As Markdown."""
    for cells in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def machine() -> dict[str, Any]:
    """What a speed depends on besides the code."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_json(path: str | Path, data: dict[str, Any]) -> None:
    """Together with what is known of the machine."""
    text = json.dumps({"machine": machine(), **data}, indent=2, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")
