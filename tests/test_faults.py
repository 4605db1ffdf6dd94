"""Killed wherever it changes the disk, a run is never half saved and ends with the same bits."""

import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import minitransformer.run
import minitransformer.training.trainer
from minitransformer.errors import CheckpointError
from minitransformer.explain.tensorboard import EventFile
from minitransformer.run import Checkpoint, RunFolder
from minitransformer.storage import write_file
from minitransformer.training.optimizer import AdamW
from tests.faults import Fault
from tests.survival import (
    Job,
    Uninterrupted,
    check_newest,
    complaints,
    differences,
    run_in,
    sending,
    side_by_side,
    start,
    uninterrupted_in,
)

KILLED = -signal.SIGKILL
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="finds the names of open files in /proc"
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Uninterrupted:
    return uninterrupted_in(tmp_path_factory.mktemp("uninterrupted"))


def sample(whole: Uninterrupted) -> list[tuple[str, int]]:
    """Each way to change the disk once: not always its first time, nor always the same file."""
    by_kind: dict[str, list[int]] = {}
    for number, point in enumerate(whole.points, start=1):
        by_kind.setdefault(point.split()[0], []).append(number)
    chosen = [("kill", random.Random(kind).choice(by_kind[kind])) for kind in sorted(by_kind)]
    return [*chosen, ("tear", whole.call_index("write", "000005.part/model.safetensors"))]


def struck(folder: Path, expected: Uninterrupted, *faults: Fault) -> Job:
    """A run that each sitting but the last is killed in; the last one makes up for all."""
    folder.mkdir()
    for fault in faults:
        running = start(folder, fault)
        yield running, []
        assert running.finish().code == KILLED, fault
        check_newest(run_in(folder))
    running = start(folder)
    yield running, []
    finished = running.finish()
    assert finished.code == 0, faults
    assert complaints(finished) == [], faults
    assert differences(run_in(folder), expected.outcome) == [], faults
    shutil.rmtree(folder)


def test_a_run_changes_the_disk_in_all_the_ways_that_are_tried(uninterrupted):
    kinds = {point.split()[0] for point in uninterrupted.points}
    assert kinds >= {"mkdir", "open", "write", "fsync", "rename", "truncate", "remove", "rmdir"}
    touched = {point.split("/")[-1] for point in uninterrupted.points}
    assert touched >= {
        ".config.yaml.part", "source.tsv", "metrics.jsonl",
        "events.out.tfevents", "model.safetensors", "optimizer.safetensors", "state.json",
        ".last.part", ".best.part", "source.bytes", ".projector_config.pbtxt.part",
    }  # fmt: skip


def test_killed_at_each_kind_of_change_a_run_ends_with_the_same_bits(uninterrupted, tmp_path):
    side_by_side(
        struck(tmp_path / str(number), uninterrupted, Fault(how, number))
        for how, number in sample(uninterrupted)
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "tear", "power cut"])
def test_killed_at_every_change_a_run_ends_with_the_same_bits(uninterrupted, tmp_path, how):
    side_by_side(
        struck(tmp_path / str(number), uninterrupted, Fault(how, number))
        for number, point in enumerate(uninterrupted.points, start=1)
        # Where nothing is torn, tearing is killing; and no sync is forgotten by not coming to it.
        if how == "kill" or point.startswith("write" if how == "tear" else ("rename", "truncate"))
    )


@pytest.mark.slow
def test_killed_at_every_change_of_going_on_a_run_ends_with_the_same_bits(uninterrupted, tmp_path):
    """The second sitting finds half a checkpoint, rows and events to cut back; so does a third."""
    first = Fault("tear", uninterrupted.call_index("write", "000006.part/optimizer.safetensors"))
    (tmp_path / "noted").mkdir()
    start(tmp_path / "noted", first).finish()
    start(tmp_path / "noted", Fault(noted=tmp_path / "points")).finish()
    points = (tmp_path / "points").read_text().splitlines()
    saved = next(number for number, point in enumerate(points) if point.endswith(".last.part"))
    side_by_side(
        struck(tmp_path / str(number), uninterrupted, first, Fault("kill", number))
        for number in range(1, saved + 10)
    )


@pytest.mark.slow
def test_killed_at_twenty_random_moments_a_run_ends_with_the_same_bits(uninterrupted, tmp_path):
    moments = random.Random(16)
    kills = []
    began = time.monotonic()
    start(tmp_path).finish()
    length = time.monotonic() - began  # of a whole run, on this machine as it is now

    def many_sittings(folder: Path) -> Job:
        folder.mkdir()
        code, sittings = KILLED, 0
        while code == KILLED:
            sittings += 1  # each may last longer, so that some come to a save on a busy machine
            moment = moments.uniform(0.05, 0.4 + 0.1 * sittings) * length
            running = start(folder)
            yield running, [(moment, sending(signal.SIGKILL))]
            code = running.finish().code
            check_newest(run_in(folder))
            if code == KILLED:
                kills.append(folder)
        assert code == 0
        assert differences(run_in(folder), uninterrupted.outcome) == []

    number = 0
    while len(kills) < 20:
        number += 1
        side_by_side(many_sittings(tmp_path / f"{number}-{side}") for side in "ab")


def write_in_place() -> None:
    """Checkpoints are written where they are read."""

    def write_folder(path: Path, files: dict[str, bytes]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_file(path / name, content)

    minitransformer.run.replace_folder = write_folder


def keep_late_rows() -> None:
    """metrics.jsonl is not cut back."""
    minitransformer.training.trainer.truncate_rows = lambda path, length: None


def keep_late_events() -> None:
    """The event file is not cut back."""
    genuine = EventFile.__init__
    EventFile.__init__ = lambda self, path, length: genuine(  # type: ignore[method-assign]
        self, path, path.stat().st_size if path.exists() else 0
    )


def forget_the_optimizer() -> None:
    """Resuming takes the weights alone."""
    AdamW.load = lambda self, memory: None  # type: ignore[method-assign]


def seed_only_once() -> None:
    """Dropout is not seeded by the step's number."""
    seeds = iter([torch.manual_seed])
    torch.manual_seed = lambda seed: next(seeds, lambda _: None)(seed)


def forget_the_pointers() -> None:
    """What follows a save is not made up for, as if the newest checkpoint were damaged."""
    genuine = RunFolder.load_newest

    def load_newest(self, complaints: list[str], *, for_training: bool) -> Checkpoint:
        complaints.append("a complaint")
        return genuine(self, complaints, for_training=for_training)

    RunFolder.load_newest = load_newest  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("broken", "point", "noticed"),
    [
        (write_in_place, "write step-000004/optimizer.safetensors", "half"),
        (forget_the_pointers, "open checkpoints/.best.part", "best"),
        (seed_only_once, "mkdir checkpoints/.step-000006.part", "tensors"),
        pytest.param(
            forget_the_optimizer, "mkdir checkpoints/.step-000006.part", "tensors",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            keep_late_rows, "mkdir checkpoints/.step-000005.part", "metrics",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            keep_late_events, "mkdir checkpoints/.step-000004.part", "TensorBoard",
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_a_broken_promise_is_noticed(tmp_path, broken: Callable[[], None], point, noticed):
    whole = uninterrupted_in(tmp_path, broken=broken)
    (tmp_path / "parts").mkdir()
    fault = Fault("tear", whole.call_index(*point.split()), broken=broken)
    assert start(tmp_path / "parts", fault).finish().code == KILLED
    run, found = run_in(tmp_path / "parts"), []
    try:
        check_newest(run)
    except CheckpointError:
        found.append("half")
    assert start(tmp_path / "parts", Fault(broken=broken)).finish().code == 0
    assert noticed in [*found, *differences(run, whole.outcome)]
