"""One training at a time in a folder, by a lock that dies with its process."""

import os
import signal
from pathlib import Path

import pytest

from minitransformer.errors import CheckpointError
from minitransformer.run import LOCK, RunFolder, RunLock
from tests.processes import Running, run
from tests.small_runs import final_hashes, trainer_for
from tests.test_interruption import COMMAND


def test_a_second_training_is_refused_and_told_by_whom(tmp_path):
    first = Running(*COMMAND, folder=tmp_path)
    first.wait_until((tmp_path / "runs/tiny/checkpoints/last").exists)
    os.kill(first.process.pid, signal.SIGSTOP)  # so that it is there for as long as it takes
    try:
        (tmp_path / "second").mkdir()
        for extra in ((), ("--fresh",)):
            second = run(
                *COMMAND, "--run", tmp_path / "runs/tiny", *extra, folder=tmp_path / "second"
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


def test_a_lock_dies_with_its_process(tmp_path):
    first = Running(*COMMAND, folder=tmp_path)
    first.wait_until((tmp_path / "runs/tiny/checkpoints/last").exists)
    first.signal(signal.SIGKILL)
    first.process.join()
    assert (tmp_path / "runs/tiny" / LOCK).exists()  # the file stays, and locks nothing
    assert run(*COMMAND, folder=tmp_path).code == 0


def test_starting_over_takes_the_lock_along(tmp_path):
    short = (*COMMAND, "--set", "training.steps=3")
    assert run(*short, folder=tmp_path).code == 0
    before = final_hashes(tmp_path / "runs/tiny")
    assert run(*short, "--fresh", folder=tmp_path).code == 0
    assert final_hashes(tmp_path / "runs/tiny.old-1") == before
    assert not list(tmp_path.rglob(LOCK))


def test_what_cannot_begin_leaves_no_folder_behind(tmp_path):
    refused = run(*COMMAND, "--set", "data.train=absent.tsv", folder=tmp_path)
    assert refused.code == 1
    assert not (tmp_path / "runs").exists()


def test_a_held_folder_can_be_held_again_after_its_release(tmp_path):
    held = RunFolder(tmp_path / "run")
    held.hold()
    with pytest.raises(CheckpointError, match=f"is being trained by process {os.getpid()}"):
        RunFolder(tmp_path / "run").hold()
    held.release()
    again = RunFolder(tmp_path / "run")
    again.hold()
    again.release()


def test_starting_over_never_takes_the_lock_of_one_that_was_faster(tmp_path, monkeypatch):
    """Between moving the old run aside and holding the new folder, another training may begin."""
    trainer_for(tmp_path / "run").fit()
    first, faster = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.hold()
    hold = RunFolder.hold

    def be_faster(self: RunFolder) -> None:
        monkeypatch.setattr(RunFolder, "hold", hold)
        faster.hold()
        self.hold()

    monkeypatch.setattr(RunFolder, "hold", be_faster)
    with pytest.raises(CheckpointError, match="is being trained"):
        first.move_aside()
    first.release()
    with pytest.raises(CheckpointError, match="is being trained"):  # still
        RunFolder(tmp_path / "run").hold()
    faster.release()


def test_a_lock_that_was_removed_while_it_was_waited_for_does_not_count(tmp_path, monkeypatch):
    """Between opening the file and locking it, whoever held it may end and remove it."""
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
