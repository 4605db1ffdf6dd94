"""Measure speeds in interleaved rounds, and write them as Markdown tables and JSON."""

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


def interleaved_rates(
    workloads: dict[str, Callable[[], int]], rounds: int
) -> dict[str, list[float]]:
    """Return the units per second of each workload in each round; a workload returns its units."""
    rates: dict[str, list[float]] = {name: [] for name in workloads}
    names, random = list(workloads), Random(1)
    for _ in range(rounds):
        random.shuffle(names)  # so that no order favours one of them
        for name in names:
            start_time = time.perf_counter()
            units = workloads[name]()
            rates[name].append(units / (time.perf_counter() - start_time))
    return rates


def speedups(rates: dict[str, list[float]], name: str, baseline: str) -> list[float]:
    """Return how many times as fast as the baseline a workload was in each round."""
    return [rate / other for rate, other in zip(rates[name], rates[baseline], strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third; a single value is all three."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, median, third


def format_quartiles(values: Sequence[float], digits: int) -> str:
    """Format `[1, 2, 3, 4, 5]` as "3.0 (2.0 to 4.0)" with one digit."""
    first, median, third = (f"{value:,.{digits}f}" for value in quartiles(values))
    return f"{median} ({first} to {third})"


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table."""
    for cells in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def processor_name() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def machine_info() -> dict[str, Any]:
    """Return the hardware and the versions that a speed depends on."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_json(path: str | Path, data: dict[str, Any]) -> None:
    """Write data together with a description of the machine."""
    text = json.dumps({"machine": machine_info(), **data}, indent=2, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")
