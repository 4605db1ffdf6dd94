"""A lock allows one training per run folder and is released when its process ends."""

import os
import signal
from pathlib import Path

import pytest

from minitransformer.errors import CheckpointError
from minitransformer.run import LOCK, RunFolder, RunLock
from tests.support.processes import Running, run
from tests.support.run_results import final_hashes
from tests.support.small_runs import trainer_for
from tests.support.survival import INTERRUPTIBLE


def test_second_training_is_refused_with_the_process_id(tmp_path):
    first = Running(*INTERRUPTIBLE, folder=tmp_path)
    first.wait_until((tmp_path / "runs/tiny/checkpoints/last").exists)
    os.kill(first.process.pid, signal.SIGSTOP)  # so that it does not finish during the test
    try:
        (tmp_path / "second").mkdir()
        for extra in ((), ("--fresh",)):
            second = run(
                *INTERRUPTIBLE, "--run", tmp_path / "runs/tiny", *extra, folder=tmp_path / "second"
            )
            assert (second.code, second.out) == (1, "")
            assert second.err == (
                f"error: {tmp_path}/runs/tiny is being trained by process {first.process.pid}; "
                "wait for it, stop it, or choose another folder with --run\n"
            )
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
    assert first.finish().code == 0
    assert not (tmp_path / "runs/tiny" / LOCK).exists()
    assert not (tmp_path / "runs/tiny.old-1").exists()


def test_lock_is_released_when_its_process_is_killed(tmp_path):
    first = Running(*INTERRUPTIBLE, folder=tmp_path)
    first.wait_until((tmp_path / "runs/tiny/checkpoints/last").exists)
    first.signal(signal.SIGKILL)
    first.process.join()
    assert (tmp_path / "runs/tiny" / LOCK).exists()  # the file remains, unlocked
    assert run(*INTERRUPTIBLE, folder=tmp_path).code == 0


def test_fresh_run_leaves_no_lock_file(tmp_path):
    short = (*INTERRUPTIBLE, "--set", "training.steps=3")
    assert run(*short, folder=tmp_path).code == 0
    before = final_hashes(tmp_path / "runs/tiny")
    assert run(*short, "--fresh", folder=tmp_path).code == 0
    assert final_hashes(tmp_path / "runs/tiny.old-1") == before
    assert not list(tmp_path.rglob(LOCK))


def test_refused_run_leaves_no_folder(tmp_path):
    refused = run(*INTERRUPTIBLE, "--set", "data.train=absent.tsv", folder=tmp_path)
    assert refused.code == 1
    assert not (tmp_path / "runs").exists()


def test_run_folder_can_be_locked_again_after_release(tmp_path):
    held = RunFolder(tmp_path / "run")
    held.hold()
    with pytest.raises(CheckpointError, match=f"is being trained by process {os.getpid()}"):
        RunFolder(tmp_path / "run").hold()
    held.release()
    again = RunFolder(tmp_path / "run")
    again.hold()
    again.release()


def test_fresh_run_never_takes_the_lock_of_another_process(tmp_path, monkeypatch):
    """Another training may start after the old run is moved and before the new folder is locked."""
    trainer_for(tmp_path / "run").fit()
    first, other = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.hold()
    hold = RunFolder.hold

    def hold_other_first(self: RunFolder) -> None:
        monkeypatch.setattr(RunFolder, "hold", hold)
        other.hold()
        self.hold()

    monkeypatch.setattr(RunFolder, "hold", hold_other_first)
    with pytest.raises(CheckpointError, match="is being trained"):
        first.move_aside()
    first.release()
    with pytest.raises(CheckpointError, match="is being trained"):  # by the other one
        RunFolder(tmp_path / "run").hold()
    other.release()


def test_lock_file_removed_before_locking_is_made_again(tmp_path, monkeypatch):
    """The holder of the lock may remove its file after another process has opened it."""
    opened: list[Path] = []
    acquire = RunLock.acquire

    def remove_first(self: RunLock, folder: Path) -> None:
        if not opened:
            (folder / LOCK).unlink()
        opened.append(folder)
        acquire(self, folder)

    monkeypatch.setattr(RunLock, "acquire", remove_first)
    lock = RunLock(tmp_path / "run")
    assert len(opened) == 2
    assert (tmp_path / "run" / LOCK).read_text() == f"{os.getpid()}\n"
    with pytest.raises(CheckpointError, match="is being trained"):
        RunLock(tmp_path / "run")
    lock.release(tmp_path / "run")
