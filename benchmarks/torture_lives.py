"""What befalls the runs that are tortured, one sitting after the other, and the count of it."""

import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from signal import SIGINT, SIGKILL, SIGTERM
from typing import Any

from benchmarks.torture_damage import DAMAGES, whole_steps
from benchmarks.torture_tally import RANDOM_KILL, Tally
from minitransformer.errors import CheckpointError
from tests.faults import Delay, Fault, SizeLimit
from tests.processes import Running
from tests.survival import (
    Job,
    Moments,
    check_newest,
    command,
    differences,
    outcome,
    run_in,
    sending,
    start,
)  # fmt: skip

ALONE = ("training.steps=24", "training.save_every=3", "evaluation.every=8")
TOGETHER = (*ALONE, "training.processes=2", "training.join_timeout=60")
STOPPED = {128 + SIGINT, 128 + SIGTERM, -SIGINT, -SIGTERM}


class Lost(Exception):
    """A promise was broken."""


@dataclass
class Reference:
    """A run that nothing befell."""

    changes: tuple[str, ...]
    outcome: dict[str, Any]
    points: list[str]  # at which it changed the disk
    seconds: float


def references(workspace: Path) -> dict[str, Reference]:
    found = {}
    for name, changes in (("alone", ALONE), ("together", TOGETHER)):
        for attempt in ("first", "reference"):  # the first one is slow: it loads torch
            folder = workspace / f"{attempt}-{name}"
            folder.mkdir()
            began = time.monotonic()
            result = start(folder, Fault(noted=folder / "points"), *changes).finish()
            assert result.code == 0, result.err
        points = (folder / "points").read_text().splitlines()
        seconds = time.monotonic() - began
        found[name] = Reference(changes, outcome(run_in(folder)), points, seconds)
        print(f"a run {name} takes {seconds:.2f} s and changes the disk {len(points)} times")
    return found


def lives(
    workspace: Path, seed: int, expected: dict[str, Reference], tally: Tally, seconds: float
) -> Iterator[Job]:
    """One run after the other, until the time is over."""
    number, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        number += 1
        tally.tell(began)
        yield Life(workspace / f"run-{number}", Random(f"{seed}-{number}"), expected, tally).live()


Sitting = Generator[tuple[Running, Moments], None, bool]  # tells whether the fault came about


class Life:
    """One run, struck in each sitting until it is let go to its end."""

    def __init__(
        self, folder: Path, random: Random, expected: dict[str, Reference], tally: Tally
    ) -> None:
        self.folder, self.random, self.tally = folder, random, tally
        self.is_together = random.random() < 0.03  # companions load torch anew: they take long
        self.reference = expected["together" if self.is_together else "alone"]
        self.is_damaged = False

    @property
    def run(self) -> Path:
        return run_in(self.folder)

    def live(self) -> Job:
        self.folder.mkdir()
        kinds = TOGETHER_KINDS if self.is_together else ALONE_KINDS
        # Whatever comes of a fault, the plan for the later ones is the same.
        weights = [4 if kind == RANDOM_KILL else 1 for kind in kinds]
        planned = self.random.choices(list(kinds), weights, k=self.random.randint(1, 6))
        seeds = [self.random.random() for _ in planned]
        befell: list[str] = []
        try:
            for kind, seed in zip(planned, seeds, strict=True):
                self.random = Random(seed)
                befell.append(kind)
                self.tally.tried[kind] += 1
                if not (yield from kinds[kind](self)):  # the run was faster
                    befell.pop()
                    self.tally.tried[kind] -= 1
            yield from self.come_to_an_end()
        except (Lost, AssertionError, CheckpointError) as error:
            self.tally.lost.update(befell)
            self.tally.losses.append(f"{self.folder} ({', '.join(befell)}): {error}")
            self.tally.kept += [self.folder, self.folder.with_name(f"{self.folder.name}-second")]
        else:
            shutil.rmtree(self.folder)
        self.tally.finished += 1

    def start(self, fault: Callable[[], None] | None = None) -> Running:
        return start(self.folder, fault, *self.reference.changes)

    def come_to_an_end(self) -> Job:
        running = self.start()
        yield running, []
        finished = running.finish()
        if finished.code != 0:
            raise Lost(f"ended with code {finished.code}: {finished.err}")
        if found := differences(self.run, self.reference.outcome):
            raise Lost(f"differs in {', '.join(found)}")

    def sitting(self, running: Running, moments: Moments, codes: set[int]) -> Sitting:
        """One start of the command, which may come to its end or to one of these codes."""
        yield running, moments
        finished = running.finish()
        if finished.code not in {0, *codes}:
            raise Lost(f"a sitting ended with code {finished.code}: {finished.err}")
        if not self.is_damaged:
            check_newest(self.run)
        return finished.code != 0

    def moment(self) -> float:
        return self.random.uniform(0, self.reference.seconds)

    def killed_at_random(self) -> Sitting:
        moments = [(self.moment(), sending(SIGKILL))]
        return (yield from self.sitting(self.start(), moments, {-SIGKILL}))

    def at_a_point(self, how: str, kinds: tuple[str, ...], codes: set[int]) -> Sitting:
        points = self.reference.points
        numbers = [n for n, point in enumerate(points, 1) if point.startswith(kinds)]
        # A later sitting has fewer points: rather one of the first ones.
        number = min(self.random.choice(numbers), self.random.choice(numbers))
        return (yield from self.sitting(self.start(Fault(how, number)), [], codes))

    def signalled(self, times: int) -> Sitting:
        number, moment = self.random.choice([SIGINT, SIGTERM]), self.moment()
        gaps = [0, self.random.uniform(0, 0.1)][:times]
        moments = [(moment + gap, sending(number)) for gap in gaps]
        return (yield from self.sitting(self.start(), moments, STOPPED))

    def signalled_at_a_point(self) -> Sitting:
        how = self.random.choice(["SIGINT", "SIGTERM", "SIGINT twice", "SIGTERM twice"])
        return (yield from self.at_a_point(how, ("",), STOPPED))

    def limited(self) -> Sitting:
        limit = SizeLimit(self.random.randint(6_000, 150_000))
        return (yield from self.sitting(self.start(limit), [], {1}))

    def damaged(self) -> Sitting:
        """Killed, and one file of the newest checkpoint is no longer what it was."""
        yield from self.killed_at_random()
        if len(whole_steps(self.run)) < 2:
            return False
        self.is_damaged = True
        DAMAGES[self.random.choice(list(DAMAGES))](self.run, self.random)
        return True

    def started_twice(self) -> Sitting:
        """Two at once in one folder: one of them trains, the other one refuses."""
        beside = self.folder.with_name(f"{self.folder.name}-second")
        beside.mkdir(exist_ok=True)
        first = self.start()
        delay = Delay(self.random.uniform(0, 0.7 * self.reference.seconds))
        same = (*command(*self.reference.changes), "--run", self.run)
        second = Running(*same, folder=beside, sabotage=delay)
        yield second, []
        yield first, []
        ends = sorted([first.finish(), second.finish()])
        if ends[0].code != 0 or ends[1].code not in (0, 1):
            raise Lost(f"two at once ended with {ends[0].code} and {ends[1].code}: {ends[1].err}")
        if ends[1].code == 1 and "is being trained by" not in ends[1].err:
            raise Lost(f"two at once: {ends[1].err}")
        shutil.rmtree(beside)
        return ends[1].code == 1

    def companion_killed(self) -> Sitting:
        def kill_companion(running: Running) -> None:
            children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
            for number in children.read_text().split()[:1]:
                os.kill(int(number), SIGKILL)

        moments: Moments = [(self.moment(), kill_companion)]
        return (yield from self.sitting(self.start(), moments, {1}))


WRITES = ("write",)
KILLED = {-SIGKILL}
TOGETHER_KINDS: dict[str, Callable[[Life], Sitting]] = {
    "SIGKILL of a companion": Life.companion_killed,
    "SIGKILL of the first of two processes": Life.killed_at_random,
    "a signal to the first of two processes": lambda life: life.signalled(1),
}
ALONE_KINDS: dict[str, Callable[[Life], Sitting]] = {
    RANDOM_KILL: Life.killed_at_random,
    "SIGKILL at a change of the disk": lambda life: life.at_a_point("kill", ("",), KILLED),
    "SIGKILL after half a write": lambda life: life.at_a_point("tear", WRITES, KILLED),
    "power cut (what was not synced is gone)": lambda life: life.at_a_point(
        "power cut", ("",), KILLED
    ),
    "SIGINT or SIGTERM": lambda life: life.signalled(1),
    "SIGINT or SIGTERM twice": lambda life: life.signalled(2),
    "SIGINT or SIGTERM at a change of the disk": Life.signalled_at_a_point,
    "disk full from a write on": lambda life: life.at_a_point("disk full", WRITES, {1}),
    "files limited in size": Life.limited,
    "damage to the newest checkpoint": Life.damaged,
    "two trainings in one folder": Life.started_twice,
}
