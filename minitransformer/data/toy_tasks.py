"""Toy tasks whose sentences are generated: copy letters, reverse digits, name digits."""

from collections.abc import Callable, Iterator
from string import ascii_lowercase, digits
from typing import NamedTuple

from numpy.random import RandomState


class Task(NamedTuple):
    """Random sequences of symbols, and how a target is made from one."""

    symbols: str
    max_length: int
    alignment: Callable[[int], list[int]]  # by length, the source index of each target index
    sizes: dict[str, int]
    names: tuple[str, ...] = ()  # of the symbols in the target, if they differ

    def target(self, source: str) -> str:
        symbols = source.split(" ")
        names = dict(zip(self.symbols, self.names or self.symbols, strict=True))
        return " ".join(names[symbols[index]] for index in self.alignment(len(symbols)))


def in_order(length: int) -> list[int]:
    return list(range(length))


def backwards(length: int) -> list[int]:
    return list(range(length))[::-1]


def neighbours_swapped(length: int) -> list[int]:
    """5 -> [1, 0, 3, 2, 4]: the last of an odd number stays."""
    return [min(index ^ 1, length - 1) for index in range(length)]


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
    """Yield the pairs of a task's split, always the same ones; no source is in two splits."""
    task = TASKS[name]
    random = RandomState(1)  # not Generator: NumPy promises never to change these numbers
    seen: set[str] = set()
    for current_split, size in task.sizes.items():
        found = 0
        while found < size:
            source = sequence(task, 1 + random.randint(task.max_length), random)
            if source not in seen:
                seen.add(source)
                found += 1
                if current_split == split:
                    yield source, task.target(source)


def pairs_of_length(name: str, length: int, count: int, seed: int) -> list[tuple[str, str]]:
    """Return pairs of one length, which may exceed the task's max_length."""
    random = RandomState(seed)
    sources = [sequence(TASKS[name], length, random) for _ in range(count)]
    return [(source, TASKS[name].target(source)) for source in sources]


def sequence(task: Task, length: int, random: RandomState) -> str:
    return " ".join(task.symbols[index] for index in random.randint(len(task.symbols), size=length))
