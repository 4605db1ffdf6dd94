"""The core trains and translates without the optional modules and the commands."""

import os
import shutil
import subprocess
import sys

from tests.support.processes import ROOT

OPTIONAL = (
    "__main__.py", "api.py", "cli", "doctor", "explain", "export.py", "moved.py", "worked",
)  # fmt: skip
PROGRAM = """
from pathlib import Path

from minitransformer import Translator
from minitransformer.config import load_config
from minitransformer.run import RunFolder
from minitransformer.training.trainer import Trainer

SHORT = ["training.steps=200", "data.limit=40", "evaluation.every=100"]
for number, (name, changes) in enumerate([
    ("tiny.yaml", SHORT),
    ("lets-go.yaml", []),
    ("lets-go.yaml", ["training.init_from=lets-go-as-printed"]),
    ("tiny-rnn.yaml", SHORT),
]):
    config = load_config(Path("configs") / name, [*changes, "logging.tensorboard=false"])
    run = Path(f"run-{number}")
    assert Trainer(config, RunFolder(run)).fit() == 0
    print(name, Translator.load(run)("Let's go"))
"""


def test_core_trains_and_translates_without_optional_modules(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", *OPTIONAL)
    shutil.copytree(ROOT / "minitransformer", tmp_path / "minitransformer", ignore=ignored)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, check=False,
    )  # fmt: skip
    names = ("tiny.yaml", "lets-go.yaml", "lets-go.yaml", "tiny-rnn.yaml")
    assert result.stdout == "".join(f"{name} Vamos\n" for name in names), result.stderr
