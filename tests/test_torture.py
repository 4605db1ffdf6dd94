"""The torture benchmark in short, and that it would tell of a loss."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from benchmarks.torture_lives import Life, Reference
from benchmarks.torture_tally import Tally
from tests import survival
from tests.faults import Delay
from tests.processes import ROOT
from tests.survival import LONGER, side_by_side, uninterrupted_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds open files in /proc"),
]


def torture(folder: Path, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.torture", *arguments],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("minutes", "several"), [(0.5, 0), (0.3, 1)], ids=["one process", "several processes"]
)
def test_a_little_torture_loses_nothing(tmp_path, minutes, several):
    process = torture(tmp_path, "--minutes", str(minutes), "--several", str(several))
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, ""), out
    assert "0 tracebacks, 0 runs lost" in out
    assert list(tmp_path.glob("torture-*")) == []


def test_torture_that_is_interrupted_reports_and_leaves_nothing(tmp_path):
    process = torture(tmp_path, "--minutes", "5", "--several", "0")
    while not list(tmp_path.glob("torture-*/run-*")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "stopped; until then:" in out
    assert "runs lost" in out
    assert list(tmp_path.glob("torture-*")) == []


def test_a_loss_is_told_and_kept(tmp_path):
    (tmp_path / "whole").mkdir()
    whole = uninterrupted_in(tmp_path / "whole", *LONGER)
    expected = whole.outcome | {"metrics": []}  # as if a run had lost its rows
    reference = Reference(1, LONGER, expected, whole.points, seconds=1)
    tally = Tally()
    life = Life(tmp_path / "run", Random(1), reference, tally)
    side_by_side([life.live()])
    (loss,) = tally.losses
    assert "differs in metrics" in loss
    assert tally.lost.total() == tally.tried.total() > 0
    tally.clear_away(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_process_that_does_not_end_is_ended_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(survival, "PATIENCE", 1)
    running = survival.start(tmp_path, Delay(60))

    def wait_for_it() -> survival.Job:
        yield running, []

    with pytest.raises(AssertionError, match="a process did not end"):
        side_by_side([wait_for_it()])
    assert running.process.exitcode == -signal.SIGKILL
