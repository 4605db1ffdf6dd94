"""The core trains and translates without the optional modules and the commands."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.processes import ROOT

OPTIONAL = (
    "api.py", "cli", "command_line.py", "console.py", "doctor", "evaluate.py", "explain",
    "export.py", "prompt.py", "worked",
)  # fmt: skip
PROGRAM = """
import sys
from pathlib import Path

from minitransformer import Translator
from minitransformer.config import load_config
from minitransformer.run import RunFolder
from minitransformer.training.trainer import Trainer

name, *changes = sys.argv[1:]
config = load_config(Path("configs") / name, [*changes, "logging.tensorboard=false"])
assert Trainer(config, RunFolder(Path("run"))).fit() == 0
print(Translator.load("run")("Let's go"))
"""


@pytest.fixture
def core(tmp_path):
    """A copy of the package without its optional modules."""
    ignored = shutil.ignore_patterns("__pycache__", *OPTIONAL)
    shutil.copytree(ROOT / "minitransformer", tmp_path / "minitransformer", ignore=ignored)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("tiny.yaml", "training.steps=200", "data.limit=40", "evaluation.every=100"),
        ("lets-go.yaml",),
        ("lets-go.yaml", "training.init_from=lets-go-as-printed"),
        ("tiny-rnn.yaml", "training.steps=200", "data.limit=40", "evaluation.every=100"),
    ],
)
def test_core_trains_and_translates_without_optional_modules(core, arguments):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=core, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(core)}, check=False,
    )  # fmt: skip
    assert result.stdout == "Vamos\n", result.stderr
