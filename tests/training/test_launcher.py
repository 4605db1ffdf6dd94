"""When a training process ends for any reason, all of them end, and the run can be resumed."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGSEGV, SIGSTOP, raise_signal

import pytest

from tests.support.faults import PHASES, TRAINING, AtCall, Combined, OnRank
from tests.support.processes import ROOT, processes_in, wait_until_ended
from tests.support.survival import (
    LONGER,
    Uninterrupted,
    differences,
    run_in,
    start,
    uninterrupted_in,
)

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/cwd").exists(), reason="finds processes in /proc"
)
CONTINUES = "the same command continues the run"

# Runs an action in each of three processes once all have started, without importing torch.
SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from minitransformer.errors import UserError
from minitransformer.cli import run_command
from minitransformer.training import launcher
rank = int(os.environ.get("RANK", 0))

def wait_for(name, count=1):
    while len(list(Path().glob(name))) < count:
        time.sleep(0.01)

def main():
    with launcher.launch_workers(3, [sys.executable, *sys.argv]) as workers:
        if workers:
            workers.before_exit = Path("released").touch
        Path(f"pid-{{rank}}").write_text(str(os.getpid()))
        Path(f"here-{{rank}}").touch()
        wait_for("here-*", 3)
        {action}
    return 0

sys.exit(run_command(main))
"""


class Three:
    """Three processes, the first of which starts the other two."""

    def __init__(self, folder: Path, action: str) -> None:
        self.folder = folder
        path = folder / "script.py"
        path.write_text(SCRIPT.format(root=str(ROOT), action=action))
        self.process = subprocess.Popen(
            [sys.executable, path], cwd=folder, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while len(list(folder.glob("here-*"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def send(self, rank: int, number: int) -> None:
        os.kill(int((self.folder / f"pid-{rank}").read_text()), number)

    def end(self) -> tuple[int, str]:
        """Wait for the end of all; return the first one's exit code and standard error."""
        _, err = self.process.communicate(timeout=30)
        wait_until_ended(self.folder, time.monotonic())
        return self.process.returncode, err


@pytest.fixture
def three(tmp_path) -> Iterator[Callable[[str], Three]]:
    yield partial(Three, tmp_path)
    for process in processes_in(tmp_path):  # left by a failed test
        os.kill(process, SIGKILL)


@pytest.mark.parametrize(
    ("number", "name"), [(SIGKILL, "9 (Killed)"), (SIGSEGV, "11 (Segmentation fault)")]
)
def test_worker_killed_ends_all_with_one_line(three, tmp_path, number, name):
    processes = three("time.sleep(60)")
    processes.send(2, number)
    assert processes.end() == (1, f"error: rank 2 of 3 was killed by signal {name}; {CONTINUES}\n")
    assert (tmp_path / "released").exists()


def test_worker_killed_ends_all_while_another_is_stopped(three):
    processes = three("time.sleep(60)")
    processes.send(1, SIGSTOP)
    processes.send(2, SIGKILL)
    assert processes.end()[0] == 1


def test_worker_killed_ends_all_while_stderr_is_full(three):
    processes = three("while rank == 0: print('x' * 80, file=sys.stderr)\n        time.sleep(60)")
    time.sleep(0.5)  # until the pipe is full and rank 0 blocks
    processes.send(1, SIGKILL)
    assert processes.process.wait(timeout=30) == 1
    processes.end()


def test_parent_killed_ends_its_workers(three):
    processes = three("time.sleep(60)")
    processes.send(0, SIGKILL)
    assert processes.end() == (-SIGKILL, "")


def test_workers_run_until_their_parent_ends(three, tmp_path):
    processes = three("rank or wait_for('go')")
    time.sleep(0.5)
    assert len(processes_in(tmp_path)) == 3
    (tmp_path / "go").touch()
    assert processes.end() == (0, "")
    assert not (tmp_path / "released").exists()


def test_interrupt_is_handled_by_the_parent_only(three):
    processes = three("time.sleep(60)")
    os.killpg(processes.process.pid, SIGINT)
    assert processes.end() == (130, "\ninterrupted\n")


@pytest.mark.parametrize(
    ("action", "lines"),
    [
        ("raise UserError('of all of them')", ["of all of them"]),
        (
            "launcher.GRACE = 0.5\n        if rank == 1: raise UserError('of one of them')\n"
            "        time.sleep(60)",
            ["of one of them", "rank 1 of 3 ended with exit code 1"],
        ),
        (
            "if rank == 1: os._exit(0)\n        time.sleep(60)",
            ["rank 1 of 3 ended with exit code 0"],
        ),
    ],
    ids=["all fail", "one fails", "one ends too early"],
)  # fmt: skip
def test_errors_are_reported_once(three, action, lines):
    assert three(action).end() == (1, "".join(f"error: {line}\n" for line in lines))


def run_changes(world_size: int) -> tuple[str, ...]:
    return (*LONGER, f"training.processes={world_size}")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[int, Uninterrupted]:
    return {
        world_size: uninterrupted_in(
            tmp_path_factory.mktemp(f"uninterrupted-{world_size}"), *run_changes(world_size)
        )
        for world_size in (2, 3)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "rank", "phases"),
    [
        (2, 0, ["starting", "joining", "loading the corpus", "constructing DDP", "a save"]),
        (2, 1, list(PHASES)),
        (3, 0, ["joining", "constructing DDP", "a step"]),
        (3, 1, ["joining", "constructing DDP", "an evaluation"]),
    ],
    ids=["rank 0 of 2", "rank 1 of 2", "rank 0 of 3", "rank 1 of 3"],
)
def test_kill_at_each_phase_ends_all_and_loses_nothing(
    uninterrupted, tmp_path, world_size, rank, phases
):
    changes = run_changes(world_size)
    for name in phases:
        note = tmp_path / f"killed at {name}"
        running = start(tmp_path, PHASES[name].kill(rank, note), *changes)
        result = running.finish()
        wait_until_ended(tmp_path, float(note.read_text()))
        errors = [line for line in result.err.splitlines() if "error" in line]
        if rank == 0:
            assert (result.code, errors) == (-SIGKILL, []), name
        elif name != "the end" or result.code:  # rank 0 may have ended before
            line = (
                f"error: rank {rank} of {world_size} was killed by signal 9 (Killed); {CONTINUES}"
            )
            assert (result.code, errors) == (1, [line]), name
    result = start(tmp_path, None, *changes).finish()
    assert result.code == 0, result.err
    assert differences(run_in(tmp_path), uninterrupted[world_size].outcome) == []


@pytest.mark.slow
def test_stopped_worker_ends_the_run_but_a_slow_load_does_not(uninterrupted, tmp_path):
    changes = (*run_changes(2), "training.step_timeout=4")
    loading = AtCall(f"{TRAINING}.resume", "prepare_setup", partial(time.sleep, 6))
    step = AtCall(f"{TRAINING}.trainer", "learning_rate", partial(raise_signal, SIGSTOP), at=5)
    result = start(tmp_path, Combined(loading, OnRank(1, step)), *changes).finish()
    wait_until_ended(tmp_path, time.monotonic())
    assert result.code == 1
    assert result.err.startswith("error: another process of this run is gone or does not answer (")
    assert result.err.endswith(f"); {CONTINUES}\n")
    assert (run_in(tmp_path) / "checkpoints/last").exists()  # it had loaded and taken some steps
    assert start(tmp_path, None, *run_changes(2)).finish().code == 0
    different = set(differences(run_in(tmp_path), uninterrupted[2].outcome))
    assert different <= {"TensorBoard"}  # which has the settings
