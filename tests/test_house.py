"""Type checks, linters and import contracts pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.modules import COUNT, READING, modules, num_lines
from tests.support.processes import ROOT

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
def test_type_checker_and_linters_find_nothing(command):
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_translating_does_not_import_the_trainer():
    code = (
        "import sys, minitransformer.cli.prompt, minitransformer.translator;"
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


def test_reading_guide_lists_every_module_with_its_size():
    rows = {ROOT / path: int(lines) for path, lines in COUNT.findall(READING.read_text("utf-8"))}
    listed = [path for paths in modules(ROOT).values() for path in paths]
    listed = [path for path in listed if path != ROOT / "minitransformer" / "__init__.py"]
    assert sorted(rows) == sorted([*listed, ROOT / "train.py", ROOT / "translate.py"])
    wrong = {
        str(path): num_lines(path)
        for path, lines in rows.items()
        if abs(num_lines(path) - lines) > 10 + lines / 10
    }
    assert wrong == {}  # python -m benchmarks.modules --write-counts
