"""Short training runs that are interrupted and resumed, and how they must end."""

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from multiprocessing.connection import wait
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from minitransformer.run import RunFolder
from minitransformer.storage import read_json_with_checksum
from tests.support.events import everything_without_clock
from tests.support.faults import Fault, Sabotage
from tests.support.processes import Finished, Running, train_command
from tests.support.run_results import final_hashes, metrics_without_clock
from tests.support.small_runs import DROPOUT

SHORT = (
    "data.limit=24",
    "model.d_model=16",
    *DROPOUT,
    "training.steps=9",
    "training.batch_tokens=60",
    "training.save_every=2",
    "evaluation.every=5",
    "evaluation.train_pairs=4",
    "evaluation.samples=1",
    "evaluation.best_metric=loss",
    "logging.examples=1",
)
LONGER = ("training.steps=24", "training.save_every=3", "evaluation.every=8")
# Long enough to be interrupted after its first checkpoint.
INTERRUPTIBLE = train_command(
    "model.d_model=32",
    *DROPOUT,
    "training.steps=100",
    "training.batch_tokens=300",
    "training.save_every=7",
    "evaluation.every=50",
    "model.max_length=20",
)
CLOCK = ("seconds", "metrics_bytes", "event_bytes")  # depend on the wall clock

PROCESS_TIMEOUT = 120  # seconds

Moments = list[tuple[float, Callable[[Running], None]]]  # actions, by seconds after the start
Job = Generator[tuple[Running, Moments], None, None]


def command(*changes: str) -> tuple[str, ...]:
    return train_command(*SHORT, *changes)


def run_in(folder: Path) -> Path:
    return folder / "runs" / "tiny"


def sending(number: int) -> Callable[[Running], None]:
    def action(running: Running) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            running.signal(number)

    return action


def start(folder: Path, fault: Sabotage | None = None, *changes: str) -> Running:
    return Running(*command(*changes), folder=folder, sabotage=fault)


def outcome(run: Path) -> dict[str, Any]:
    """Return everything that a run writes, except times."""
    last = (run / "checkpoints/last").read_text().strip()
    content = (run / "checkpoints" / last / "state.json").read_bytes()
    state = read_json_with_checksum(content, last)["state"]
    return {
        "tensors": final_hashes(run),
        "state": {key: value for key, value in state.items() if key not in CLOCK},
        "metrics": metrics_without_clock(run),
        "TensorBoard": everything_without_clock(run),
        "best": (run / "checkpoints/best").read_text(),
        "files": sorted(str(path.relative_to(run)) for path in run.rglob("*")),
    }


def differences(run: Path, expected: dict[str, Any]) -> list[str]:
    """Return the names of what differs from the expected outcome."""
    found = outcome(run)
    return [name for name in expected if found[name] != expected[name]]


def assert_same(run: Path, expected: Path) -> None:
    assert final_hashes(run) == final_hashes(expected)
    assert metrics_without_clock(run) == metrics_without_clock(expected)
    assert everything_without_clock(run) == everything_without_clock(expected)


def check_newest(run: Path) -> None:
    """Raise CheckpointError if there are checkpoints and the newest is damaged."""
    folder = RunFolder(run)
    if folder.has_started:
        folder.load(folder.steps()[0], for_training=True)


def errors_and_notes(finished: Finished) -> list[str]:
    """Return a run's error and note lines, without the warnings that short runs may print."""
    lines = [*finished.out.splitlines(), *finished.err.splitlines()]
    return [line for line in lines if line.startswith(("error:", "note:"))]


class Uninterrupted(NamedTuple):
    """The results of a run without faults."""

    outcome: dict[str, Any]
    points: list[str]  # kind and path of each change to the disk

    def call_index(self, kind: str, file: str) -> int:
        """Return the index, counted from 1, of the last change of a kind to a file."""
        return max(
            number for number, point in enumerate(self.points, start=1)
            if point.startswith(f"{kind} ") and point.endswith(file)
        )  # fmt: skip


def uninterrupted_in(folder: Path, *changes: str, broken: Sabotage | None = None) -> Uninterrupted:
    fault = Fault(noted=folder / "points", broken=broken)
    assert start(folder, fault, *changes).finish().code == 0
    points = (folder / "points").read_text().splitlines()
    return Uninterrupted(outcome(run_in(folder)), points)


def side_by_side(
    jobs: Iterable[Job], at_once: int = 2, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Run `at_once` jobs in parallel; a job yields each process whose end it waits for."""
    waiting = iter(jobs)
    active: dict[int, tuple[Job, Running, Moments, float]] = {}

    def advance(job: Job | None) -> None:
        while job or (job := next(waiting, None)):
            if step := next(job, None):
                running, moments = step
                now = time.monotonic()
                due = sorted(
                    ((now + after, action) for after, action in moments), key=itemgetter(0)
                )
                active[running.process.sentinel] = (job, running, due, now)
                return
            job = None

    for _ in range(at_once):
        advance(None)
    while active:
        now = time.monotonic()
        due = [moments[0][0] - now for _, _, moments, _ in active.values() if moments]
        ended = wait(list(active), max(0.0, min([0.5, *due])))
        if is_over():  # by Ctrl-C, which may have reached the processes, too
            break
        for _, running, moments, _ in active.values():
            while moments and moments[0][0] <= time.monotonic():
                action = moments.pop(0)[1]
                if running.process.is_alive():
                    action(running)
        for sentinel in ended:
            job, running, _, _ = active.pop(sentinel)
            running.process.join()
            advance(job)
        for sentinel, (job, running, _, since) in list(active.items()):
            if time.monotonic() > since + PROCESS_TIMEOUT:
                del active[sentinel]
                running.process.kill()
                running.process.join()
                with suppress(StopIteration):  # a job may handle the error and end
                    job.throw(AssertionError("a process did not end"))
                advance(None)
    for _, running, _, _ in active.values():
        running.process.kill()
        running.process.join()
