"""The commands withstand random hostile input, and the fuzzer detects wrong results."""

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from benchmarks.fuzzing import KINDS, find_problem
from benchmarks.hostile import Case
from tests.support.processes import ROOT

RUNS = ROOT / "tests" / "fixtures" / "run-format-1"


@pytest.mark.parametrize(
    ("code", "out", "err", "wrong"),
    [
        (0, "one\ntwo\n", "line 1: unknown word 'x'\n", ""),
        (1, "", "error: no such run\n", "exit code 1 instead of 0"),
        (0, "one\n", "", "1 lines out for 2 lines in"),
        (0, "one\ntwo\n", "error: after all\n", "exit code 0 with an error"),
        (None, "", "", "hung for 30 s"),
        (-11, "", "", "ended by signal 11"),
        (1, "", 'Traceback (most recent call last):\n  File "x"\nKeyError: 1\n', "traceback: Key"),
    ],
)
def test_find_problem_reports_wrong_results(code, out, err, wrong):
    found = find_problem(Case("translate", [], codes=(0,), lines=2), code, out, err)
    assert found.startswith(wrong)
    assert bool(found) == bool(wrong)


def test_find_problem_reports_an_error_without_a_message():
    assert "without an error message" in find_problem(Case("translate", []), 2, "", "")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_case_is_reproduced_from_its_number(kind, tmp_path):
    made = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        shutil.copytree(RUNS, folder)
        cases = [
            KINDS[kind](folder, Random(f"1 {number}"))
            for number in ([3] if kind == "run" else [3, 4])
        ]
        made.append((cases, files(folder)))
    assert made[0] == made[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_gives_no_traceback_or_wrong_exit_code(kind, tmp_path):
    command = ["-m", "benchmarks.fuzzing", "--only", kind, "--cases", "40", "--seed", "7"]
    result = subprocess.run(
        [sys.executable, *command, "--findings", tmp_path], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "40 inputs, 0 findings" in result.stdout
