"""A run that is stopped or killed at any moment resumes to the same bits."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from minitransformer.training.trainer import Callback
from tests.support.processes import ROOT, Running, run
from tests.support.small_runs import trainer_for
from tests.support.survival import INTERRUPTIBLE, assert_same


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_signal_saves_and_the_same_command_continues(finished_run, tmp_path, number, code):
    running = Running(*INTERRUPTIBLE, folder=tmp_path)
    running.wait_until((tmp_path / "runs/tiny/checkpoints/last").exists)
    running.signal(number)
    stopped = running.finish()
    assert stopped.code == code
    assert "saved. The same command continues from there." in stopped.out
    continued = run(*INTERRUPTIBLE, folder=tmp_path)
    assert continued.code == 0
    assert "Continuing runs/tiny after step" in continued.out
    assert_same(tmp_path / "runs/tiny", finished_run[0])


def test_run_killed_at_random_moments_resumes_to_the_same_bits(finished_run, tmp_path):
    expected, seconds = finished_run
    delays = random.Random(20)
    killed = 0
    while killed < 5:
        running = Running(*INTERRUPTIBLE, folder=tmp_path)
        time.sleep(delays.uniform(0, 0.4 * seconds))
        if running.process.is_alive():
            running.signal(signal.SIGKILL)
            killed += 1
        running.process.join()
        if running.process.exitcode == 0:  # the machine is less busy than before: kill earlier
            seconds /= 2
            shutil.rmtree(tmp_path / "runs/tiny")  # start another run
    assert run(*INTERRUPTIBLE, folder=tmp_path).code == 0
    assert_same(tmp_path / "runs/tiny", expected)


def test_second_signal_ends_the_process_at_once():
    code = """
import os, signal
from minitransformer.training.launcher import StopSignals
with StopSignals() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    print(stop.exit_code, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here", flush=True)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.stdout == "130\n"
    assert result.returncode == -signal.SIGTERM


def test_second_signal_ends_a_process_stuck_in_c():
    code = """
import hashlib
from minitransformer.training.launcher import StopSignals
with StopSignals() as stop:
    print("stuck", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # in C code, like a collective
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"stuck\n"
        for _ in range(2):
            time.sleep(0.5)  # until it is inside the function
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143


def test_signal_before_the_first_step_saves_nothing(tmp_path):
    class InterruptAtStart(Callback):
        def on_start(self, trainer):
            os.kill(os.getpid(), signal.SIGINT)

    trainer = trainer_for(tmp_path / "run", callbacks=[InterruptAtStart()])
    assert trainer.fit() == 130
    assert not trainer.run_folder.has_started
    assert trainer_for(tmp_path / "run").fit() == 0
