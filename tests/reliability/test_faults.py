"""A run killed at any disk change is never half saved and, resumed, ends with the same bits."""

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
from tests.support.faults import Fault
from tests.support.survival import (
    Job,
    Uninterrupted,
    check_newest,
    differences,
    errors_and_notes,
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


def sample_faults(reference: Uninterrupted) -> list[tuple[str, int]]:
    """Choose a random change of each kind to be killed at, and one write to be torn."""
    by_kind: dict[str, list[int]] = {}
    for number, point in enumerate(reference.points, start=1):
        by_kind.setdefault(point.split()[0], []).append(number)
    chosen = [("kill", random.Random(kind).choice(by_kind[kind])) for kind in sorted(by_kind)]
    return [*chosen, ("tear", reference.call_index("write", "000005.part/model.safetensors"))]


def kill_and_resume(folder: Path, expected: Uninterrupted, *faults: Fault) -> Job:
    """Kill a run with each fault in turn, then resume it and compare its outcome."""
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
    assert errors_and_notes(finished) == [], faults
    assert differences(run_in(folder), expected.outcome) == [], faults
    shutil.rmtree(folder)


def test_run_makes_every_kind_of_disk_change(uninterrupted):
    kinds = {point.split()[0] for point in uninterrupted.points}
    assert kinds >= {"mkdir", "open", "write", "fsync", "rename", "truncate", "remove", "rmdir"}
    touched = {point.split("/")[-1] for point in uninterrupted.points}
    assert touched >= {
        ".config.yaml.part", "source.tsv", "metrics.jsonl",
        "events.out.tfevents", "model.safetensors", "optimizer.safetensors", "state.json",
        ".last.part", ".best.part", "source.bytes", ".projector_config.pbtxt.part",
    }  # fmt: skip


def test_run_killed_at_each_kind_of_change_ends_with_same_bits(uninterrupted, tmp_path):
    side_by_side(
        kill_and_resume(tmp_path / str(number), uninterrupted, Fault(how, number))
        for how, number in sample_faults(uninterrupted)
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "tear", "power cut"])
def test_run_killed_at_every_change_ends_with_same_bits(uninterrupted, tmp_path, how):
    side_by_side(
        kill_and_resume(tmp_path / str(number), uninterrupted, Fault(how, number))
        for number, point in enumerate(uninterrupted.points, start=1)
        # Only writes can be torn, and unsynced content matters only at renames and truncations.
        if how == "kill" or point.startswith("write" if how == "tear" else ("rename", "truncate"))
    )


@pytest.mark.slow
def test_run_killed_again_while_resuming_ends_with_same_bits(uninterrupted, tmp_path):
    """Kill a resumed run, which has half a checkpoint to delete and rows and events to truncate."""
    first = Fault("tear", uninterrupted.call_index("write", "000006.part/optimizer.safetensors"))
    (tmp_path / "noted").mkdir()
    start(tmp_path / "noted", first).finish()
    start(tmp_path / "noted", Fault(noted=tmp_path / "points")).finish()
    points = (tmp_path / "points").read_text().splitlines()
    saved = next(number for number, point in enumerate(points) if point.endswith(".last.part"))
    side_by_side(
        kill_and_resume(tmp_path / str(number), uninterrupted, first, Fault("kill", number))
        for number in range(1, saved + 10)
    )


@pytest.mark.slow
def test_run_killed_at_random_moments_ends_with_same_bits(uninterrupted, tmp_path):
    generator = random.Random(16)
    kills = []
    start_time = time.monotonic()
    start(tmp_path).finish()
    length = time.monotonic() - start_time  # of a whole run, at the present load of this machine

    def kill_repeatedly(folder: Path) -> Job:
        folder.mkdir()
        code, attempts = KILLED, 0
        while code == KILLED:
            attempts += 1  # each may last longer, so that even a busy machine reaches a save
            delay = generator.uniform(0.05, 0.4 + 0.1 * attempts) * length
            running = start(folder)
            yield running, [(delay, sending(signal.SIGKILL))]
            code = running.finish().code
            check_newest(run_in(folder))
            if code == KILLED:
                kills.append(folder)
        assert code == 0
        assert differences(run_in(folder), uninterrupted.outcome) == []

    number = 0
    while len(kills) < 20:
        number += 1
        side_by_side(kill_repeatedly(tmp_path / f"{number}-{side}") for side in "ab")


def write_in_place() -> None:
    """Write checkpoints in place."""

    def write_folder(path: Path, files: dict[str, bytes]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_file(path / name, content)

    minitransformer.run.replace_folder = write_folder


def keep_later_rows() -> None:
    """Do not truncate metrics.jsonl when resuming."""
    minitransformer.training.trainer.truncate_rows = lambda path, length: None


def keep_later_events() -> None:
    """Do not truncate the event file when resuming."""
    original = EventFile.__init__
    EventFile.__init__ = lambda self, path, length: original(  # type: ignore[method-assign]
        self, path, path.stat().st_size if path.exists() else 0
    )


def omit_optimizer_state() -> None:
    """Resume without the state of the optimizer."""
    AdamW.load = lambda self, memory: None  # type: ignore[method-assign]


def seed_only_once() -> None:
    """Seed dropout once instead of at every step."""
    seeds = iter([torch.manual_seed])
    torch.manual_seed = lambda seed: next(seeds, lambda _: None)(seed)


def omit_pointer_updates() -> None:
    """Do not redo the updates that follow a save, as if the newest checkpoint were damaged."""
    original = RunFolder.load_newest

    def load_newest(self, complaints: list[str], *, for_training: bool) -> Checkpoint:
        complaints.append("a complaint")
        return original(self, complaints, for_training=for_training)

    RunFolder.load_newest = load_newest  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("broken", "point", "detected"),
    [
        (write_in_place, "write step-000004/optimizer.safetensors", "half"),
        (omit_pointer_updates, "open checkpoints/.best.part", "best"),
        (seed_only_once, "mkdir checkpoints/.step-000006.part", "tensors"),
        pytest.param(
            omit_optimizer_state, "mkdir checkpoints/.step-000006.part", "tensors",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            keep_later_rows, "mkdir checkpoints/.step-000005.part", "metrics",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            keep_later_events, "mkdir checkpoints/.step-000004.part", "TensorBoard",
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_broken_code_is_detected(tmp_path, broken: Callable[[], None], point, detected):
    reference = uninterrupted_in(tmp_path, broken=broken)
    (tmp_path / "parts").mkdir()
    fault = Fault("tear", reference.call_index(*point.split()), broken=broken)
    assert start(tmp_path / "parts", fault).finish().code == KILLED
    run, found = run_in(tmp_path / "parts"), []
    try:
        check_newest(run)
    except CheckpointError:
        found.append("half")
    assert start(tmp_path / "parts", Fault(broken=broken)).finish().code == 0
    assert detected in [*found, *differences(run, reference.outcome)]
