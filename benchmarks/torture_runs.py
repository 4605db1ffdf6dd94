"""Run the training command again and again, each time with a random fault, until it finishes."""

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

from benchmarks.torture_damage import DAMAGES, valid_steps
from benchmarks.torture_tally import RANDOM_KILL, Tally
from minitransformer.errors import CheckpointError
from tests.support.faults import PHASES, Delay, Fault, SizeLimit
from tests.support.processes import Running, wait_until_ended
from tests.support.survival import (
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


class LostRun(Exception):
    """A run did not survive its faults."""


@dataclass
class Reference:
    """An uninterrupted run."""

    world_size: int
    settings: tuple[str, ...]
    outcome: dict[str, Any]
    disk_changes: list[str]  # the kind and the path of each
    seconds: float


def reference_runs(workspace: Path, multi_process_share: float) -> dict[int, Reference]:
    """Train an uninterrupted run for each world size that occurs."""
    (workspace / "first").mkdir()
    start(workspace / "first").finish()  # a warm-up: the first one imports torch
    references = {}
    for world_size in (1,) * (multi_process_share < 1) + WORLD_SIZES * (multi_process_share > 0):
        folder = workspace / f"reference-of-{world_size}"
        folder.mkdir()
        settings = (*LONGER, f"training.processes={world_size}")
        start_time = time.monotonic()
        result = start(folder, Fault(noted=folder / "changes"), *settings).finish()
        assert result.code == 0, result.err
        seconds = time.monotonic() - start_time
        disk_changes = (folder / "changes").read_text().splitlines()
        references[world_size] = Reference(
            world_size, settings, outcome(run_in(folder)), disk_changes, seconds
        )
        print(
            f"a run of {world_size} process{'es' * (world_size > 1)} takes {seconds:.2f} s "
            f"and changes the disk {len(disk_changes)} times"
        )
    return references


def faulty_runs(
    workspace: Path,
    seed: int,
    references: dict[int, Reference],
    tally: Tally,
    seconds: float,
    multi_process_share: float,
) -> Iterator[Job]:
    """Yield the jobs of new runs until the time is over."""
    number, start_time = 0, time.monotonic()
    while time.monotonic() < start_time + seconds:
        number += 1
        tally.print_progress(start_time)
        random = Random(f"{seed}-{number}")
        is_multi_process = random.random() < multi_process_share
        world_size = random.choice(WORLD_SIZES) if is_multi_process else 1
        folder = workspace / f"run-{number}"
        yield FaultyRun(folder, random, references[world_size], tally).train()


Attempt = Generator[tuple[Running, Moments], None, bool]  # returns whether the fault took effect


class FaultyRun:
    """One run, started with a different fault each time and without any at the end."""

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

    def train(self) -> Job:
        """Start the run with up to six faults, then finish it, and record the result."""
        self.folder.mkdir()
        kinds = MULTI_PROCESS_FAULTS if self.world_size > 1 else SINGLE_PROCESS_FAULTS
        weights = [4 if kind == RANDOM_KILL else 1 for kind in kinds]
        planned = self.random.choices(list(kinds), weights, k=self.random.randint(1, 6))
        # A seed each, so that the effect of a fault does not change the later ones.
        seeds = [self.random.random() for _ in planned]
        faults: list[str] = []
        try:
            for kind, seed in zip(planned, seeds, strict=True):
                self.random = Random(seed)
                faults.append(kind)
                self.tally.tried[kind] += 1
                if not (yield from kinds[kind](self)):  # the run ended before
                    faults.pop()
                    self.tally.tried[kind] -= 1
            yield from self.finish()
        except (LostRun, AssertionError, CheckpointError) as error:
            self.tally.lost.update(faults)
            self.tally.losses.append(f"{self.folder} ({', '.join(faults)}): {error}")
            self.tally.kept += [self.folder, self.folder.with_name(f"{self.folder.name}-second")]
        else:
            shutil.rmtree(self.folder)
        self.tally.finished += 1

    def start(self, fault: Callable[[], None] | None = None) -> Running:
        """Start the training command, which sets up a fault in its process."""
        return start(self.folder, fault, *self.reference.settings)

    def finish(self) -> Job:
        """Train without a fault, and compare the result with the reference."""
        running = self.start()
        yield running, []
        finished = running.finish()
        if finished.code != 0:
            raise LostRun(f"ended with code {finished.code}: {finished.err}")
        if found := differences(self.run, self.reference.outcome):
            raise LostRun(f"differs in {', '.join(found)}")

    def attempt(self, running: Running, moments: Moments, codes: set[int]) -> Attempt:
        """Wait for the end of a process, which must have exit code 0 or one of these codes."""
        yield running, moments
        finished = running.finish()
        if finished.code not in {0, *codes}:
            raise LostRun(f"exit code {finished.code} after a fault: {finished.err}")
        if not self.is_damaged:
            check_newest(self.run)
        return finished.code != 0

    def random_time(self) -> float:
        """Return a number of seconds within the duration of an uninterrupted run."""
        return self.random.uniform(0, self.reference.seconds)

    def kill_at_random_time(self) -> Attempt:
        moments = [(self.random_time(), sending(SIGKILL))]
        return (yield from self.attempt(self.start(), moments, {-SIGKILL}))

    def fault_at_disk_change(self, how: str, kinds: tuple[str, ...], codes: set[int]) -> Attempt:
        """Let a fault happen at a random disk change of these kinds."""
        changes = self.reference.disk_changes
        numbers = [n for n, change in enumerate(changes, 1) if change.startswith(kinds)]
        # The smaller of two: a run that is resumed has fewer changes left.
        number = min(self.random.choice(numbers), self.random.choice(numbers))
        return (yield from self.attempt(self.start(Fault(how, number)), [], codes))

    def signal_at_random_time(self, times: int) -> Attempt:
        """Send SIGINT or SIGTERM, once or twice within a tenth of a second."""
        number, seconds = self.random.choice([SIGINT, SIGTERM]), self.random_time()
        gaps = [0, self.random.uniform(0, 0.1)][:times]
        moments = [(seconds + gap, sending(number)) for gap in gaps]
        return (yield from self.attempt(self.start(), moments, STOPPED))

    def signal_at_disk_change(self) -> Attempt:
        how = self.random.choice(["SIGINT", "SIGTERM", "SIGINT twice", "SIGTERM twice"])
        return (yield from self.fault_at_disk_change(how, ("",), STOPPED))

    def limit_file_size(self) -> Attempt:
        limit = SizeLimit(self.random.randint(6_000, 150_000))
        return (yield from self.attempt(self.start(limit), [], {1}))

    def damage_checkpoint(self) -> Attempt:
        """Kill the run, then damage its newest checkpoint."""
        yield from self.kill_at_random_time()
        if len(valid_steps(self.run)) < 2:
            return False
        self.is_damaged = True
        self.random.choice(DAMAGES)(self.run, self.random)
        return True

    def start_twice(self) -> Attempt:
        """Start two processes in one run folder: one must train, the other must refuse to."""
        second_folder = self.folder.with_name(f"{self.folder.name}-second")
        second_folder.mkdir(exist_ok=True)
        first = self.start()
        delay = Delay(self.random.uniform(0, 0.7 * self.reference.seconds))
        arguments = (*command(*self.reference.settings), "--run", self.run)
        second = Running(*arguments, folder=second_folder, sabotage=delay)
        yield second, []
        yield first, []
        ends = sorted([first.finish(), second.finish()])
        if ends[0].code != 0 or ends[1].code not in (0, 1):
            raise LostRun(f"two at once: codes {ends[0].code} and {ends[1].code}: {ends[1].err}")
        if ends[1].code == 1 and "is being trained by" not in ends[1].err:
            raise LostRun(f"two at once: {ends[1].err}")
        shutil.rmtree(second_folder)
        return ends[1].code == 1

    def kill_rank(self, *, rank_0: bool) -> Attempt:
        """Kill rank 0 or a worker at a random time, and wait for the end of all others."""
        killed: list[float] = []

        def kill(running: Running) -> None:
            pid = running.process.pid
            if not rank_0:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                if not children:  # no worker has been started yet
                    return
                pid = int(self.random.choice(children))
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
                killed.append(time.monotonic())

        codes = {-SIGKILL} if rank_0 else {1}
        has_failed = yield from self.attempt(self.start(), [(self.random_time(), kill)], codes)
        if killed:
            self.wait_for_all_ranks(killed[0])
        return has_failed

    def kill_rank_at_phase(self) -> Attempt:
        """Kill a random rank in one of the phases of a distributed run."""
        phase, rank = self.random.choice(list(PHASES)), self.random.randrange(self.world_size)
        note = self.folder / "killed"
        note.unlink(missing_ok=True)
        running = self.start(PHASES[phase].kill(rank, note))
        has_failed = yield from self.attempt(running, [], {1} if rank else {-SIGKILL})
        if note.exists():  # else the run ended before this phase
            self.wait_for_all_ranks(float(note.read_text()))
        return has_failed

    def wait_for_all_ranks(self, killed_at: float) -> None:
        """Wait until no process of the run is left, and record how long that took."""
        seconds = wait_until_ended(self.folder, killed_at)
        self.tally.slowest_end = max(self.tally.slowest_end, seconds)


WRITES = ("write",)
KILLED = {-SIGKILL}
MULTI_PROCESS_FAULTS: dict[str, Callable[[FaultyRun], Attempt]] = {
    "several processes: SIGKILL of a worker": lambda run: run.kill_rank(rank_0=False),
    "several processes: SIGKILL of rank 0": lambda run: run.kill_rank(rank_0=True),
    "several processes: SIGKILL at a phase": FaultyRun.kill_rank_at_phase,
    "several processes: a signal to rank 0": lambda run: run.signal_at_random_time(1),
}
SINGLE_PROCESS_FAULTS: dict[str, Callable[[FaultyRun], Attempt]] = {
    RANDOM_KILL: FaultyRun.kill_at_random_time,
    "SIGKILL at a change of the disk": lambda run: run.fault_at_disk_change("kill", ("",), KILLED),
    "SIGKILL after half a write": lambda run: run.fault_at_disk_change("tear", WRITES, KILLED),
    "power cut (what was not synced is gone)": lambda run: run.fault_at_disk_change(
        "power cut", ("",), KILLED
    ),
    "SIGINT or SIGTERM": lambda run: run.signal_at_random_time(1),
    "SIGINT or SIGTERM twice": lambda run: run.signal_at_random_time(2),
    "SIGINT or SIGTERM at a change of the disk": FaultyRun.signal_at_disk_change,
    "disk full from a write on": lambda run: run.fault_at_disk_change("disk full", WRITES, {1}),
    "files limited in size": FaultyRun.limit_file_size,
    "damage to the newest checkpoint": FaultyRun.damage_checkpoint,
    "two trainings in one folder": FaultyRun.start_twice,
}
