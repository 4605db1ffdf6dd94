"""Stopped or killed at any moment, the same command goes on to the same bits."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.processes import Running, run
from tests.small_runs import final_hashes
from tests.test_trainer import without_clock

SETTINGS = [
    argument
    for setting in (
        "model.d_model=32", "model.dropout=0.1", "training.steps=150",
        "training.batch_tokens=300", "training.save_every=7", "evaluation.every=50",
    )
    for argument in ("--set", setting)
]  # fmt: skip


def command(folder: Path) -> tuple[object, ...]:
    return ("train.py", "--config", "tiny.yaml", *SETTINGS)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    began = time.monotonic()
    assert run(*command(folder), folder=folder).code == 0
    return folder / "runs/tiny", time.monotonic() - began


def assert_same(run_path: Path, expected: Path) -> None:
    assert final_hashes(run_path) == final_hashes(expected)
    assert without_clock(run_path / "metrics.jsonl") == without_clock(expected / "metrics.jsonl")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_same_command_continues(uninterrupted, tmp_path, number, code):
    running = Running(*command(tmp_path), folder=tmp_path)
    running.wait_until((tmp_path / "runs/tiny/checkpoints/last").exists)
    running.signal(number)
    stopped = running.finish()
    assert stopped.code == code
    assert "saved. The same command continues from there." in stopped.out
    continued = run(*command(tmp_path), folder=tmp_path)
    assert continued.code == 0
    assert "Continuing runs/tiny after step" in continued.out
    assert_same(tmp_path / "runs/tiny", uninterrupted[0])


def test_killed_at_five_random_moments_a_run_ends_with_the_same_bits(uninterrupted, tmp_path):
    expected, seconds = uninterrupted
    moments = random.Random(20)
    killed = 0
    while killed < 5:
        running = Running(*command(tmp_path), folder=tmp_path)
        time.sleep(moments.uniform(0, 0.4 * seconds))
        if running.process.is_alive():
            running.signal(signal.SIGKILL)
            killed += 1
        running.process.join()
        if running.process.exitcode == 0:  # it got through between two kills: begin again
            run(*command(tmp_path), "--fresh", "--set", "training.steps=1", folder=tmp_path)
            (tmp_path / "runs/tiny").rename(tmp_path / f"aside-{killed}")
    assert run(*command(tmp_path), folder=tmp_path).code == 0
    assert_same(tmp_path / "runs/tiny", expected)


def test_a_second_signal_ends_at_once_and_loses_only_unsaved_steps(uninterrupted, tmp_path):
    running = Running(*command(tmp_path), folder=tmp_path)
    running.wait_until((tmp_path / "runs/tiny/checkpoints/last").exists)
    running.signal(signal.SIGSTOP)  # both signals wait, so that the second comes before a save
    running.signal(signal.SIGINT)
    running.signal(signal.SIGTERM)
    running.signal(signal.SIGCONT)
    running.process.join(30)
    assert running.process.exitcode in (130, 143, -signal.SIGTERM, -signal.SIGINT)
    assert run(*command(tmp_path), folder=tmp_path).code == 0
    assert_same(tmp_path / "runs/tiny", uninterrupted[0])
