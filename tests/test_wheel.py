"""A wheel holds all packages and their data, and works outside the repository."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Finished

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DATA = {"*.yaml", "*.tsv", "*.safetensors", "*.html", "*.css", "*.js", "py.typed"}
QUICK = ("--set", "training.steps=3", "--set", "logging.tensorboard=false")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder into which a wheel of this tree was installed, without what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    # Built in a copy: setuptools would also pack what an earlier build has left behind.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("minitransformer", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    for arguments in (
        ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", "dist", "."],
        ["install", "--no-deps", "--no-index", "--target", "installed", "--find-links", "dist",
         "minitransformer"],
    ):  # fmt: skip
        done = subprocess.run(
            [*pip, *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return folder / "installed"


def start(installed: Path, *command: object, folder: Path) -> Finished:
    """Run a command with the installed wheel in an empty folder."""
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True,
        encoding="utf-8", stdin=subprocess.DEVNULL, check=False,
        env=os.environ | {"PYTHONPATH": str(installed)},
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


def test_wheel_lists_every_package():
    tool = PROJECT["tool"]["setuptools"]
    folders = {"minitransformer"} | {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "minitransformer").rglob("*.py")
    }
    assert {*tool["packages"]} == folders | {"minitransformer.configs"}
    assert tool["package-dir"] == {"minitransformer.configs": "configs"}


def test_wheel_has_every_data_file(installed):
    for package, folder in (
        ("minitransformer", ROOT / "minitransformer"),
        ("minitransformer/configs", ROOT / "configs"),
    ):
        files = [path for path in folder.rglob("*") if any(map(path.match, DATA))]
        assert len(files) > 3
        for path in files:
            shipped = installed / package / path.relative_to(folder)
            assert shipped.read_bytes() == path.read_bytes()


def test_wheel_trains_and_translates_in_an_empty_folder(installed, tmp_path):
    program = installed / "bin" / "minitransformer"
    where = start(installed, sys.executable, "-c",
                  "import minitransformer; print(minitransformer.__file__)",
                  folder=tmp_path)  # fmt: skip
    assert Path(where.out.strip()).is_relative_to(installed)
    trained = start(installed, program, "train", "--config", "tiny.yaml", folder=tmp_path)
    assert trained.code == 0, trained.err
    translated = start(installed, program, "translate", "Let's go", folder=tmp_path)
    assert translated == (0, "Vamos\n", "using runs/tiny\n")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("is_module", [False, True], ids=["console-script", "python-m"])
def test_wheel_starts_workers(installed, tmp_path, is_module):
    program = [installed / "bin" / "minitransformer"]
    if is_module:
        program = [sys.executable, "-m", "minitransformer"]
    trained = start(
        installed, *program, "train", "--config", "tiny", *QUICK, "--set", "training.processes=2",
        folder=tmp_path,
    )  # fmt: skip
    assert (trained.code, trained.err) == (0, "")
    assert "device      cpu, 2 processes of 1 thread\n" in trained.out
