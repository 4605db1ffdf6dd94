"""The end of one training process, however it comes, ends all of them, and nothing is lost."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGSEGV, SIGSTOP, raise_signal, strsignal

import pytest

from tests.faults import PHASES, AtCall, Each, OnRank
from tests.processes import ROOT, processes_in, wait_until_ended
from tests.survival import Uninterrupted, differences, run_in, start, uninterrupted_in

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/cwd").exists(), reason="finds processes in /proc"
)
SHORT = ("training.steps=24", "training.save_every=3", "evaluation.every=8")
TRAINING = "minitransformer.training"

# What each process of three does once all of them are there; without torch, it begins at once.
SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from minitransformer.errors import UserError
from minitransformer.terminal import run_command
from minitransformer.training import launcher
launcher.GRACE = 0.5
rank = int(os.environ.get("RANK", 0))

def released():
    Path("released").touch()

def main():
    with launcher.launch_workers(3, [sys.executable, *sys.argv]) as workers:
        if workers:
            workers.before_exit = released
        Path(f"here-{{rank}}").write_text(str(os.getpid()))
        while len(list(Path().glob("here-*"))) < 3:
            time.sleep(0.01)
        {deed}
    return 0

sys.exit(run_command(main))
"""


class Three:
    """Three processes that do nothing but this."""

    def __init__(self, folder: Path, deed: str) -> None:
        self.folder = folder
        path = folder / "script.py"
        path.write_text(SCRIPT.format(root=str(ROOT), deed=deed))
        self.process = subprocess.Popen(
            [sys.executable, path], cwd=folder, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while len(list(folder.glob("here-*"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill(self, rank: int, number: int) -> None:
        os.kill(int((self.folder / f"here-{rank}").read_text() or 0), number)

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=30)
        wait_until_ended(self.folder, time.monotonic())
        return self.process.returncode, err


@pytest.mark.parametrize("number", [SIGKILL, SIGSEGV])
def test_worker_killed_ends_all_with_one_line(tmp_path, number):
    three = Three(tmp_path, "time.sleep(60)")
    three.kill(2, number)
    assert three.end() == (
        1,
        f"error: rank 2 of 3 ended with signal {number.value} ({strsignal(number)}); "
        "the same command continues from the last checkpoint\n",
    )
    assert (tmp_path / "released").exists()


def test_worker_killed_ends_all_while_another_is_stopped(tmp_path):
    three = Three(tmp_path, "time.sleep(60)")
    three.kill(1, SIGSTOP)
    three.kill(2, SIGKILL)
    assert three.end()[0] == 1


def test_parent_killed_ends_its_workers(tmp_path):
    three = Three(tmp_path, "time.sleep(60)")
    three.kill(0, SIGKILL)
    assert three.end() == (-SIGKILL, "")


def test_workers_end_with_their_parent_and_not_before(tmp_path):
    three = Three(tmp_path, "rank or time.sleep(1)")
    time.sleep(0.5)
    assert len(processes_in(tmp_path)) == 3
    assert three.end() == (0, "")
    assert not (tmp_path / "released").exists()


def test_interrupt_reaches_the_parent_alone(tmp_path):
    three = Three(tmp_path, "time.sleep(60)")
    os.killpg(three.process.pid, SIGINT)
    assert three.end() == (130, "\ninterrupted\n")


@pytest.mark.parametrize(
    ("deed", "code", "lines"),
    [
        ("raise UserError('of all of them')", 1, ["error: of all of them"]),
        (
            "if rank == 1: raise UserError('of one of them')\n        time.sleep(60)",
            1,
            ["error: of one of them", "error: rank 1 of 3 ended with exit code 1; "
             "the same command continues from the last checkpoint"],
        ),
        (
            "if rank == 1: os._exit(0)\n        time.sleep(60)",
            1,
            ["error: rank 1 of 3 ended with exit code 0; "
             "the same command continues from the last checkpoint"],
        ),
    ],
    ids=["all fail", "one fails", "one ends too early"],
)  # fmt: skip
def test_errors_are_reported_once(tmp_path, deed, code, lines):
    assert Three(tmp_path, deed).end() == (code, "".join(f"{line}\n" for line in lines))


def together(world_size: int) -> tuple[str, ...]:
    return (*SHORT, f"training.processes={world_size}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[int, Uninterrupted]:
    return {
        world_size: uninterrupted_in(
            tmp_path_factory.mktemp(f"whole-{world_size}"), *together(world_size)
        )
        for world_size in (2, 3)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "rank", "phases"),
    [
        (2, 0, list(PHASES)),
        (2, 1, list(PHASES)),
        (3, 0, ["joining", "constructing DDP", "a step"]),
        (3, 1, ["joining", "constructing DDP", "an evaluation"]),
    ],
    ids=["rank 0 of 2", "rank 1 of 2", "rank 0 of 3", "rank 1 of 3"],
)
def test_kill_at_each_phase_ends_all_and_loses_nothing(whole, tmp_path, world_size, rank, phases):
    changes = together(world_size)
    for name in phases:
        note = tmp_path / f"killed at {name}"
        running = start(tmp_path, PHASES[name].kill(rank, note), *changes)
        result = running.finish()
        wait_until_ended(tmp_path, float(note.read_text()))
        if rank == 0:
            assert (result.code, "error" in result.err) == (-SIGKILL, False), name
        elif name != "the end" or result.code:  # rank 0 may already have ended
            assert result.code == 1, name
            assert result.err.endswith(
                f"error: rank {rank} of {world_size} ended with signal 9 (Killed); "
                "the same command continues from the last checkpoint\n"
            ), name
    result = start(tmp_path, None, *changes).finish()
    assert result.code == 0, result.err
    assert differences(run_in(tmp_path), whole[world_size].outcome) == []


@pytest.mark.slow
def test_stopped_worker_ends_the_run_and_a_long_load_does_not(whole, tmp_path):
    changes = (*together(2), "training.step_timeout=4")
    loading = AtCall(f"{TRAINING}.beginning", "read_beginning", partial(time.sleep, 6))
    step = AtCall(f"{TRAINING}.trainer", "add_gradients", partial(raise_signal, SIGSTOP), at=5)
    result = start(tmp_path, Each(loading, OnRank(1, step)), *changes).finish()
    wait_until_ended(tmp_path, time.monotonic())
    assert (result.code, result.err) == (
        1,
        "error: another process of this run is gone or does not answer (training.step_timeout); "
        "the same command continues from the last checkpoint\n",
    )
    assert start(tmp_path, None, *together(2)).finish().code == 0
    assert set(differences(run_in(tmp_path), whole[2].outcome)) <= {"TensorBoard"}  # has settings
