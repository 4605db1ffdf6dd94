"""The same seed gives the same bits in any folder, under any locale, time zone and environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.run_results import final_hashes
from tests.support.small_runs import NO_TRANSFORMER_DROPOUT, RECURRENT
from tests.support.survival import command, differences, uninterrupted_in

NOISE = {"COLUMNS": "20", "TERM": "dumb", "PYTHONOPTIMIZE": "1", "OMP_NUM_THREADS": "2",
         "MINITRANSFORMER": "?", "LANGUAGE": "bn:de", "PYTHONUNBUFFERED": "1"}  # fmt: skip


def train_in(folder: Path, run: str, environment: dict[str, str], *changes: str) -> Path:
    """Train in a new Python process and return the run's folder."""
    folder.mkdir(parents=True)
    script, *arguments = command(*changes)
    result = subprocess.run(
        [sys.executable, ROOT / script, *arguments, "--run", run],
        cwd=folder, env=os.environ | environment, capture_output=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode()
    return folder / run


def test_same_seed_gives_same_bits_in_another_environment(uninterrupted, tmp_path):
    environment = {"PYTHONHASHSEED": "123", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Dhaka", **NOISE}
    run = train_in(tmp_path / "ein Ort, জায়গা", "other/নাম der Läufe", environment)
    assert differences(run, uninterrupted.outcome) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "0"},
        {"PYTHONHASHSEED": "4294967295"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "TZ": "America/St_Johns"},
        {"LC_ALL": "de_DE.UTF-8", "TZ": "Pacific/Kiritimati"},
        {"LC_ALL": "bn_BD.UTF-8", "PYTHONHASHSEED": "7"},
        {"PYTHONOPTIMIZE": "2", "PYTHONDEVMODE": "0"},
        {"HOME": "/nonexistent", "TMPDIR": "/tmp"},
    ],
    ids=lambda environment: " ".join(f"{key}={value}" for key, value in environment.items()),
)
def test_environment_variables_change_no_bits(uninterrupted, tmp_path, environment):
    assert differences(train_in(tmp_path / "here", "run", environment), uninterrupted.outcome) == []


@pytest.mark.slow
def test_environment_changes_no_bits_of_a_recurrent_model(tmp_path):
    changes = (*RECURRENT, *NO_TRANSFORMER_DROPOUT, "logging.tensorboard=false")
    first = train_in(tmp_path / "first", "run", {"PYTHONHASHSEED": "0"}, *changes)
    other = train_in(tmp_path / "other", "läuft", {"PYTHONHASHSEED": "7", **NOISE}, *changes)
    assert final_hashes(first) == final_hashes(other)


def test_another_seed_gives_other_results(uninterrupted, tmp_path):
    other = uninterrupted_in(tmp_path, "training.seed=2")
    expected = uninterrupted.outcome
    different = {name for name in expected if other.outcome[name] != expected[name]}
    assert different >= {"tensors", "metrics", "TensorBoard"}
