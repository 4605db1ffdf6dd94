"""A full disk loses nothing that was saved, and the same command resumes once there is space."""

import contextlib
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minitransformer.errors import CheckpointError
from minitransformer.explain.tensorboard import EventFile, scalars
from minitransformer.run import append_rows
from minitransformer.storage import require_space
from tests.support.processes import ROOT, run
from tests.support.survival import INTERRUPTIBLE, assert_same


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A separate file system that is too small for a run."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if (
        sys.platform != "linux"
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a small file system needs Linux and root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(".part")]


def test_full_disk_gives_one_error_line_and_the_run_resumes(small_disk, finished_run):
    stopped = run(*INTERRUPTIBLE, folder=small_disk)
    assert stopped.code == 1
    assert stopped.err.startswith("error: runs/tiny: no space for ")
    assert " (No space left on device): " in stopped.err
    hint = re.search(r"and the same command continues after (step \d+)\n$", stopped.err)
    assert hint
    assert "bytes are free; free some space, and" in stopped.err
    assert stopped.err.count("\n") == 1
    assert leftovers(small_disk) == []
    resize = ["mount", "-o", "remount,size=100m", str(small_disk)]
    subprocess.run(resize, check=True)
    continued = run(*INTERRUPTIBLE, folder=small_disk)
    assert continued.code == 0
    assert f"Continuing runs/tiny after {hint[1]}" in continued.out
    assert_same(small_disk / "runs/tiny", finished_run[0])


def test_disk_full_at_the_start_creates_no_run(small_disk):
    (small_disk / "filling").write_bytes(bytes(550_000))
    with contextlib.suppress(OSError), (small_disk / "filling").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    stopped = run(*INTERRUPTIBLE, "--run", small_disk / "run", folder=small_disk.parent)
    assert stopped.code == 1
    assert stopped.err.startswith(f"error: {small_disk / 'run'}: no space for a ")
    assert stopped.err.endswith("free; free some space, and the same command starts over\n")
    assert not (small_disk / "run").exists()


def test_full_output_is_not_reported_as_a_full_disk(tmp_path):
    with open("/dev/full", "wb") as full:
        command = [sys.executable, str(ROOT / INTERRUPTIBLE[0]), *INTERRUPTIBLE[1:]]
        stopped = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert stopped.returncode == 1
    assert stopped.stderr == "error: the output cannot be written: No space left on device\n"


def limit_child(size: int):
    """Return a preexec_fn that limits the size of every file."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    "size",
    [100_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 300, 3000, 30_000))],
)
def test_file_size_limit_gives_one_error_line_and_the_run_resumes(tmp_path, size, finished_run):
    command = [sys.executable, str(ROOT / INTERRUPTIBLE[0]), *INTERRUPTIBLE[1:]]
    stopped = subprocess.run(
        command, cwd=tmp_path, preexec_fn=limit_child(size), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert stopped.returncode == 1
    assert stopped.stderr.startswith("error: ")
    assert stopped.stderr.count("\n") == 1
    assert leftovers(tmp_path) == []
    assert run(*INTERRUPTIBLE, folder=tmp_path).code == 0
    assert_same(tmp_path / "runs/tiny", finished_run[0])


def test_require_space_raises_before_anything_is_written(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000, "total": 2000})
    monkeypatch.setattr("minitransformer.storage.shutil.disk_usage", lambda path: usage)
    entered = []
    with (
        pytest.raises(CheckpointError) as refusal,
        require_space(1001, tmp_path / "not yet there", "a checkpoint", lambda: "make room"),
    ):
        entered.append(True)
    assert str(refusal.value) == (
        f"{tmp_path / 'not yet there'}: no space for a checkpoint (No space left on device): "
        "it needs 1,001 bytes, 1,000 bytes are free; make room"
    )
    assert not entered
    with require_space(1000, tmp_path, "a checkpoint", lambda: "make room"):
        entered.append(True)
    assert entered


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_append_rows_writes_all_rows_or_none(tmp_path):
    path = tmp_path / "metrics.jsonl"
    length = append_rows(path, [{"a": 1}])
    with file_size_limit(length + 5), pytest.raises(OSError, match="File too large"):
        append_rows(path, [{"a": 2}, {"a": 3}])
    assert path.read_bytes() == b'{"a": 1}\n'


def test_event_file_does_not_retry_a_failed_write_on_close(tmp_path):
    path = tmp_path / "events"
    events = EventFile(path, 0)
    length = events.sync()
    events.add(1, scalars({"a": 1.0}))
    with file_size_limit(length + 10), pytest.raises(OSError, match="File too large"):
        events.flush()
    events.close()
    assert path.stat().st_size == length + 10
    EventFile(path, length).close()
    assert path.stat().st_size == length
