"""A short run of the torture benchmark loses nothing; a lost run is reported and kept."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from benchmarks.torture_runs import FaultyRun, Reference
from benchmarks.torture_tally import Tally
from tests.support import survival
from tests.support.faults import Delay
from tests.support.processes import ROOT
from tests.support.survival import LONGER, side_by_side, uninterrupted_in

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
def test_short_torture_loses_nothing(tmp_path, minutes, several):
    process = torture(tmp_path, "--minutes", str(minutes), "--several", str(several))
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, ""), out
    assert "0 tracebacks, 0 runs lost" in out
    assert list(tmp_path.glob("torture-*")) == []


def test_interrupted_torture_reports_and_cleans_up(tmp_path):
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


def test_torture_reports_and_keeps_a_lost_run(tmp_path):
    (tmp_path / "uninterrupted").mkdir()
    uninterrupted = uninterrupted_in(tmp_path / "uninterrupted", *LONGER)
    expected = uninterrupted.outcome | {"metrics": []}  # as if a run had lost its rows
    reference = Reference(1, LONGER, expected, uninterrupted.points, seconds=1)
    tally = Tally()
    faulty_run = FaultyRun(tmp_path / "run", Random(1), reference, tally)
    side_by_side([faulty_run.train()])
    (loss,) = tally.losses
    assert "differs in metrics" in loss
    assert tally.lost.total() == tally.tried.total() > 0
    tally.clean_up(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_process_that_does_not_end_is_killed_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(survival, "PROCESS_TIMEOUT", 1)
    running = survival.start(tmp_path, Delay(60))

    def wait_for_it() -> survival.Job:
        yield running, []

    with pytest.raises(AssertionError, match="a process did not end"):
        side_by_side([wait_for_it()])
    assert running.process.exitcode == -signal.SIGKILL
