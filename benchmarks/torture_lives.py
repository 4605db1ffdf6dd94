"""What befalls the runs that are tortured, one sitting after the other, and the count of it."""

import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from signal import SIGINT, SIGKILL, SIGTERM
from typing import Any

from benchmarks.torture_damage import DAMAGES, whole_steps
from benchmarks.torture_tally import RANDOM_KILL, Tally
from minitransformer.errors import CheckpointError
from tests.faults import PHASES, Delay, Fault, SizeLimit
from tests.processes import Running, wait_until_ended
from tests.survival import (
    LONGER,
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

WORLD_SIZES = (2, 3)
STOPPED = {128 + SIGINT, 128 + SIGTERM, -SIGINT, -SIGTERM}


class Lost(Exception):
    """A promise was broken."""


@dataclass
class Reference:
    """A run that nothing befell."""

    world_size: int
    changes: tuple[str, ...]
    outcome: dict[str, Any]
    points: list[str]  # at which it changed the disk
    seconds: float


def references(workspace: Path, share_of_several: float) -> dict[int, Reference]:
    """Runs of one process and of several, by their number, as far as they are needed."""
    (workspace / "first").mkdir()
    start(workspace / "first").finish()  # is slow: it loads torch
    found = {}
    for world_size in (1,) * (share_of_several < 1) + WORLD_SIZES * (share_of_several > 0):
        folder = workspace / f"reference-of-{world_size}"
        folder.mkdir()
        changes = (*LONGER, f"training.processes={world_size}")
        began = time.monotonic()
        result = start(folder, Fault(noted=folder / "points"), *changes).finish()
        assert result.code == 0, result.err
        seconds = time.monotonic() - began
        points = (folder / "points").read_text().splitlines()
        found[world_size] = Reference(world_size, changes, outcome(run_in(folder)), points, seconds)
        print(
            f"a run of {world_size} process{'es' * (world_size > 1)} takes {seconds:.2f} s "
            f"and changes the disk {len(points)} times"
        )
    return found


def lives(
    workspace: Path,
    seed: int,
    expected: dict[int, Reference],
    tally: Tally,
    seconds: float,
    share_of_several: float,
) -> Iterator[Job]:
    """One run after the other, until the time is over."""
    number, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        number += 1
        tally.tell(began)
        random = Random(f"{seed}-{number}")
        is_several = random.random() < share_of_several
        world_size = random.choice(WORLD_SIZES) if is_several else 1
        yield Life(workspace / f"run-{number}", random, expected[world_size], tally).live()


Sitting = Generator[tuple[Running, Moments], None, bool]  # tells whether the fault came about


class Life:
    """One run, struck in each sitting until it is let go to its end."""

    def __init__(self, folder: Path, random: Random, reference: Reference, tally: Tally) -> None:
        self.folder, self.random, self.tally = folder, random, tally
        self.reference = reference
        self.is_damaged = False

    @property
    def run(self) -> Path:
        return run_in(self.folder)

    @property
    def world_size(self) -> int:
        return self.reference.world_size

    def live(self) -> Job:
        self.folder.mkdir()
        kinds = SEVERAL_KINDS if self.world_size > 1 else ALONE_KINDS
        # Whatever comes of a fault, the plan for the later ones is the same.
        weights = [4 if kind == RANDOM_KILL else 1 for kind in kinds]
        scheduled_steps = self.random.choices(list(kinds), weights, k=self.random.randint(1, 6))
        seeds = [self.random.random() for _ in scheduled_steps]
        befell: list[str] = []
        try:
            for kind, seed in zip(scheduled_steps, seeds, strict=True):
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

    def rank_killed(self, *, rank_0: bool) -> Sitting:
        """Rank 0 or a worker is killed at a random moment, and no other process goes on."""
        killed: list[float] = []

        def kill(running: Running) -> None:
            number = running.process.pid
            if not rank_0:
                children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
                if not children:  # none has been started yet
                    return
                number = int(self.random.choice(children))
            with suppress(ProcessLookupError):
                os.kill(number, SIGKILL)
                killed.append(time.monotonic())

        codes = {-SIGKILL} if rank_0 else {1}
        has_failed = yield from self.sitting(self.start(), [(self.moment(), kill)], codes)
        if killed:
            self.wait_for_others(killed[0])
        return has_failed

    def rank_killed_at_a_phase(self) -> Sitting:
        phase, rank = self.random.choice(list(PHASES)), self.random.randrange(self.world_size)
        note = self.folder / "killed"
        note.unlink(missing_ok=True)
        running = self.start(PHASES[phase].kill(rank, note))
        has_failed = yield from self.sitting(running, [], {1} if rank else {-SIGKILL})
        if note.exists():  # else the run has not come to this phase any more
            self.wait_for_others(float(note.read_text()))
        return has_failed

    def wait_for_others(self, since: float) -> None:
        took = wait_until_ended(self.folder, since)
        self.tally.slowest_end = max(self.tally.slowest_end, took)


WRITES = ("write",)
KILLED = {-SIGKILL}
SEVERAL_KINDS: dict[str, Callable[[Life], Sitting]] = {
    "several processes: SIGKILL of a worker": lambda life: life.rank_killed(rank_0=False),
    "several processes: SIGKILL of rank 0": lambda life: life.rank_killed(rank_0=True),
    "several processes: SIGKILL at a phase": Life.rank_killed_at_a_phase,
    "several processes: a signal to rank 0": lambda life: life.signalled(1),
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
