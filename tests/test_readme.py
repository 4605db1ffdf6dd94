"""The README's commands, samples and Python code work as printed."""

import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Finished, run
from tests.support.trained_runs import TrainedRun

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in fenced if name == language]


def shell_lines(block: str) -> list[tuple[str, str]]:
    """Return the commands of a block, each with the result in its comment."""
    parts = [
        re.sub(r" {2,}# ", "\x00", line).partition("\x00") for line in block.splitlines() if line
    ]
    return [(command.strip(), comment.strip()) for command, _, comment in parts]


def touch(run: Path) -> None:
    """Make a run the most recently trained one."""
    for step in (run / "checkpoints").glob("step-*"):
        os.utime(step)


def make_clone(folder: Path, *runs: TrainedRun) -> Path:
    """Make a folder like a clone in which these runs have been trained."""
    for name in ("train.py", "translate.py", "configs", "minitransformer"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "runs").mkdir()
    for trained in runs:
        (folder / "runs" / trained.path.name).symlink_to(trained.path)
        touch(trained.path)
    return folder


@pytest.fixture
def clone(tmp_path, tiny_bn, tiny) -> Path:
    return make_clone(tmp_path, tiny_bn, tiny)


def test_readme_install_commands_are_those_of_ci():
    lines = [line for block in blocks("bash") for line in shell_lines(block)]
    commands = [command for command, _ in lines if command.startswith("pip install")]
    assert commands == [
        "pip install -c constraints.txt -e . && python train.py --config tiny.yaml",
        "pip install -c constraints.txt -e '.[dev]' && pytest",
    ]
    script = (ROOT / ".ci" / "run").read_text()
    assert "grep '^pip install -c constraints.txt' README.md" in script
    assert all(command in README.splitlines() or f"\n{command}" in README for command in commands)


def run_block(block: str, folder: Path) -> int:
    """Run a block's commands; return how many printed what their comment says."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    checked = 0
    for command, comment in shell_lines(block):
        if (
            "pip install" in command or command == "python translate.py"
        ):  # already installed; a prompt
            continue
        if re.search(r"runs/few|tiny-(bn|rnn)\.yaml", command):  # trained by other tests
            continue
        if "bentrevett" in command:  # needs a network
            continue
        words = shlex.split(command)
        is_ours = words[0] == "minitransformer" or words[1].endswith(".py")
        if is_ours:  # forked, to avoid importing torch again
            result = run(*words[1:], folder=folder)
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command], cwd=folder, capture_output=True,
                text=True, encoding="utf-8", env=os.environ | {"PATH": path},
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            result = Finished(done.returncode, done.stdout, done.stderr)
        assert result.code == 0, (command, result.err)
        shows = command.startswith(
            ("echo", 'python translate.py "', "python translate.py --run", "minitransformer transl")
        )
        if shows and comment and "--walkthrough" not in command:
            assert result.out == f"{comment}\n"
            checked += 1
    return checked


def test_readme_commands_print_what_it_says(tmp_path_factory, tiny_rnn, tiny_bn, tiny):
    runs = (tiny_rnn, tiny_bn, tiny)
    folders = [make_clone(tmp_path_factory.mktemp("clone"), *runs) for _ in blocks("bash")]
    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(run_block, blocks("bash"), folders)) == 13
    assert [(folder / "out.txt").read_text() for folder in folders if (folder / "out.txt").exists()
            ] == ["Vamos\n"]  # fmt: skip


def test_readme_translation_sample_is_real(clone):
    sample = next(block for block in blocks("") if block.startswith("$ python translate.py"))
    command, _, expected = sample.removeprefix("$ python ").partition("\n")
    result = subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=clone, capture_output=True, text=True,
        encoding="utf-8", check=True,
    )  # fmt: skip
    assert result.stdout == expected


def test_readme_attention_sample_is_real(tmp_path, tiny_rnn):
    clone = make_clone(tmp_path, tiny_rnn)
    sample = next(block for block in blocks("") if block.startswith("Compare the state s"))
    [command] = re.findall(r"^minitransformer (explain .* --only decoder.attention)$", README, re.M)
    shown = run(*shlex.split(command), folder=clone).out
    words = re.compile(r"(?<!\S)-?\d[\d.]*(?!\S)| +")  # numbers depend on the processor
    assert words.sub(" ", sample) in words.sub(" ", shown)


def test_readme_worked_samples_are_real(tmp_path):
    def worked(*arguments: object) -> str:
        return run("worked", *arguments, folder=tmp_path).out

    step = next(block for block in blocks("") if block.startswith("  5  E: E = Q K^T"))
    assert step in worked("show", "self-attention-3x4")
    (tmp_path / "homework.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    verdict = next(block for block in blocks("") if block.startswith("first slip"))
    assert worked("check", "homework.yaml").endswith(verdict)
    line = next(line for line in worked().splitlines() if line.startswith("all "))
    stated = re.search(r"Of (\d+) printed numbers (\d+) agree, (\d+) .*?, (\d+) .*?and (\d+) .*?, "
                     r"(\d+) were lost in a scan, and (\d+)", README, flags=re.DOTALL)  # fmt: skip
    assert line.split()[1:] == [*stated.groups(), "0"]


def test_readme_walkthrough_sample_is_real(tmp_path):
    assert run("train.py", "--config", "lets-go.yaml", folder=tmp_path).code == 0
    shown = run("explain", "--run", "runs/lets-go", "Let's go", "--step", 1, "--only",
                "decoder.layers.0.cross_attention", folder=tmp_path)  # fmt: skip
    assert next(block for block in blocks("") if block.startswith("Convert")) in shown.out


def test_readme_training_sample_is_real(tiny):
    """Compare all but numbers and sentences, which may differ on another machine."""
    sample = next(block for block in blocks("") if block.startswith("Samples from valid"))

    def shape(text: str) -> list[str]:
        lines = text.strip().splitlines()
        return ["→" if "→" in line else re.sub(r"[\d.,]+", "N", line) for line in lines]

    out = tiny.result.out
    assert shape(sample) == shape(out[out.index("Samples from valid") :])


def test_readme_python_code_runs(clone, monkeypatch, capsys):
    monkeypatch.chdir(clone)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, names)
    out = capsys.readouterr().out
    assert out.startswith("Vamos\ntensor(")


def test_readme_doctor_sample_is_real(tmp_path):
    """Compare all but the numbers, which may differ on another machine."""

    def shape(text: str) -> list[str]:
        return [re.sub(r"[\d.e-]+", "N", line) for line in text.strip().splitlines()]

    sample = next(block for block in blocks("") if block.startswith("A fresh model"))
    result = run("doctor", "--config", "tiny.yaml", folder=tmp_path)
    assert shape(result.out)[-len(shape(sample)) :] == shape(sample)
