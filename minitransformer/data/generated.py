"""Toy tasks whose sentences are made on the spot: copy letters, reverse digits."""

from collections.abc import Iterator
from string import ascii_lowercase, digits
from typing import NamedTuple

from numpy.random import RandomState


class Task(NamedTuple):
    """Sequences of symbols, and what becomes of them."""

    symbols: str
    longest: int
    is_reversed: bool
    sizes: dict[str, int]

    def target(self, source: str) -> str:
        return source[::-1] if self.is_reversed else source  # one space between symbols both ways


TASKS = {
    "copy": Task(ascii_lowercase, 20, False, {"train": 10_000, "valid": 500, "test": 500}),
    "reverse": Task(digits, 10, True, {"train": 10_000, "valid": 1_000, "test": 1_000}),
}


def task_pairs(name: str, split: str) -> Iterator[tuple[str, str]]:
    """The pairs of a task's split, always the same ones; no source is in two splits."""
    task = TASKS[name]
    random = RandomState(1)  # its stream is frozen for good
    seen: set[str] = set()
    for each, size in task.sizes.items():
        found = 0
        while found < size:
            source = sequence(task, 1 + random.randint(task.longest), random)
            if source not in seen:
                seen.add(source)
                found += 1
                if each == split:
                    yield source, task.target(source)


def pairs_of_length(name: str, length: int, count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of one length, which may be longer than any that the task trains on."""
    random = RandomState(seed)
    sources = [sequence(TASKS[name], length, random) for _ in range(count)]
    return [(source, TASKS[name].target(source)) for source in sources]


def sequence(task: Task, length: int, random: RandomState) -> str:
    return " ".join(task.symbols[place] for place in random.randint(len(task.symbols), size=length))
