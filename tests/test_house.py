"""The house is in order: types, style, and imports that go one way."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "mypy"],
        [sys.executable, "-m", "ruff", "check"],
        [sys.executable, "-m", "ruff", "format", "--check"],
        [BIN / "lint-imports", "--no-cache"],
    ],
    ids=["mypy", "ruff-check", "ruff-format", "lint-imports"],
)
def test_the_tools_find_nothing(command):
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_translating_never_loads_the_trainer():
    code = (
        "import sys, minitransformer.prompt, minitransformer.translator;"
        "print([name for name in sys.modules if 'minitransformer.training' in name"
        " or 'tensorboard' in name])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_benchmarks_import():
    code = (
        "import importlib, pkgutil, benchmarks;"
        "[importlib.import_module(f'benchmarks.{each.name}')"
        " for each in pkgutil.iter_modules(benchmarks.__path__)]"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
