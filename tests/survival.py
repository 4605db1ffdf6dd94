"""A short run, what must be the same at its end whatever happened, and many such runs."""

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from multiprocessing.connection import wait
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from minitransformer.run import RunFolder
from minitransformer.storage import read_json_with_checksum
from tests.events import everything_without_clock
from tests.faults import Fault, Sabotage
from tests.processes import Finished, Running
from tests.small_runs import final_hashes
from tests.test_trainer import without_clock

SHORT = (
    "data.limit=24",
    "model.d_model=16",
    "model.dropout=0.1",
    "model.self_attention_dropout=0.1",
    "model.cross_attention_dropout=0.1",
    "model.activation_dropout=0.1",
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
CLOCK = ("seconds", "metrics_bytes", "event_bytes")  # a clock's digits are of different lengths

PATIENCE = 120  # seconds that a process may take

Moments = list[tuple[float, Callable[[Running], None]]]  # seconds from a start, and what is done
Job = Generator[tuple[Running, Moments], None, None]


def command(*changes: str) -> tuple[str, ...]:
    settings = (argument for change in (*SHORT, *changes) for argument in ("--set", change))
    return ("train.py", "--config", "tiny.yaml", *settings)


def run_in(folder: Path) -> Path:
    return folder / "runs" / "tiny"


def sending(number: int) -> Callable[[Running], None]:
    def deed(running: Running) -> None:
        with suppress(ProcessLookupError):  # it ended a moment before
            running.signal(number)

    return deed


def start(folder: Path, fault: Sabotage | None = None, *changes: str) -> Running:
    return Running(*command(*changes), folder=folder, sabotage=fault)


def outcome(run: Path) -> dict[str, Any]:
    """Return everything that a run leaves except for times."""
    last = (run / "checkpoints/last").read_text().strip()
    content = (run / "checkpoints" / last / "state.json").read_bytes()
    state = read_json_with_checksum(content, last)["state"]
    return {
        "tensors": final_hashes(run),
        "state": {key: value for key, value in state.items() if key not in CLOCK},
        "metrics": without_clock(run / "metrics.jsonl"),
        "TensorBoard": everything_without_clock(run),
        "best": (run / "checkpoints/best").read_text(),
        "files": sorted(str(path.relative_to(run)) for path in run.rglob("*")),
    }


def differences(run: Path, expected: dict[str, Any]) -> list[str]:
    """Return the names of what differs from the expected outcome."""
    found = outcome(run)
    return [name for name in expected if found[name] != expected[name]]


def check_newest(run: Path) -> None:
    """Raise CheckpointError if there are checkpoints and the newest is damaged."""
    folder = RunFolder(run)
    if folder.has_started:
        folder.load(folder.steps()[0], for_training=True)


def complaints(finished: Finished) -> list[str]:
    """What a run has to say of its folder; warnings are about what so short a run has learnt."""
    lines = [*finished.out.splitlines(), *finished.err.splitlines()]
    return [line for line in lines if line.startswith(("error:", "note:"))]


class Uninterrupted(NamedTuple):
    """A run without faults."""

    outcome: dict[str, Any]
    points: list[str]  # the kind and the path of each change of the disk

    def call_index(self, kind: str, file: str) -> int:
        """The number of the last point of a kind at a file."""
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
    """Run jobs so many at a time; a job yields each process that it wants to see the end of."""
    waiting = iter(jobs)
    going: dict[int, tuple[Job, Running, Moments, float]] = {}

    def go_on(job: Job | None) -> None:
        while job or (job := next(waiting, None)):
            if step := next(job, None):
                running, moments = step
                now = time.monotonic()
                due = sorted(((now + after, deed) for after, deed in moments), key=itemgetter(0))
                going[running.process.sentinel] = (job, running, due, now)
                return
            job = None

    for _ in range(at_once):
        go_on(None)
    while going:
        now = time.monotonic()
        due = [moments[0][0] - now for _, _, moments, _ in going.values() if moments]
        ended = wait(list(going), max(0.0, min([0.5, *due])))
        if is_over():  # by a Ctrl-C that may have reached the processes, too
            break
        for _, running, moments, _ in going.values():
            while moments and moments[0][0] <= time.monotonic():
                deed = moments.pop(0)[1]
                if running.process.is_alive():
                    deed(running)
        for sentinel in ended:
            job, running, _, _ = going.pop(sentinel)
            running.process.join()
            go_on(job)
        for sentinel, (job, running, _, since) in list(going.items()):
            if time.monotonic() > since + PATIENCE:
                del going[sentinel]
                running.process.kill()
                running.process.join()
                with suppress(StopIteration):  # a job may take it as a loss and be done
                    job.throw(AssertionError("a process did not end"))
                go_on(None)
    for _, running, _, _ in going.values():
        running.process.kill()
        running.process.join()
