"""Toy tasks whose sentences are made on the spot: copy letters, reverse digits, name digits."""

from collections.abc import Callable, Iterator
from string import ascii_lowercase, digits
from typing import NamedTuple

from numpy.random import RandomState


class Task(NamedTuple):
    """Sequences of symbols, and what becomes of them."""

    symbols: str
    longest: int
    alignment: Callable[[int], list[int]]  # by length, the source place of each target place
    sizes: dict[str, int]
    names: tuple[str, ...] = ()  # of the symbols in the target, where they are others

    def target(self, source: str) -> str:
        symbols = source.split(" ")
        names = dict(zip(self.symbols, self.names or self.symbols, strict=True))
        return " ".join(names[symbols[place]] for place in self.alignment(len(symbols)))


def in_order(length: int) -> list[int]:
    return list(range(length))


def backwards(length: int) -> list[int]:
    return list(range(length))[::-1]


def neighbours_swapped(length: int) -> list[int]:
    """5 -> [1, 0, 3, 2, 4]: the last of an odd number stays."""
    return [min(place ^ 1, length - 1) for place in range(length)]


NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TASKS = {
    "copy": Task(ascii_lowercase, 20, in_order, {"train": 10_000, "valid": 500, "test": 500}),
    "reverse": Task(digits, 10, backwards, {"train": 10_000, "valid": 1_000, "test": 1_000}),
    "substitute": Task(
        digits, 10, neighbours_swapped, {"train": 10_000, "valid": 1_000, "test": 1_000},
        NUMBER_WORDS,
    ),
}  # fmt: skip


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
