"""The train command prints its plan and results, and its errors with their exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest

from minitransformer.cli.console import describe_model
from minitransformer.config import load_config
from tests.support.overrides import overrides
from tests.support.processes import ROOT, run
from tests.support.small_runs import SMALL

QUICK = overrides(*SMALL, "logging.examples=0")


def train(folder: Path, *arguments: object):
    return run("train.py", *arguments, folder=folder)


def test_train_prints_plan_result_and_next_commands(tiny):
    out = tiny.result.out
    for line in (
        "run         runs/tiny",
        "corpus      en-es",
        "model       1+1 layers, 64 wide, 1 head, norm none, feed-forward none, position "
        "sinusoidal",
        "  train     261 pairs kept, 0 dropped",
        "  valid     45 pairs kept, 0 dropped",
        "device      cpu, 1 thread",
        "  261 of 261 training pairs translated exactly",
        "  python translate.py --run runs/tiny",
    ):
        assert line in out.splitlines(), line
    assert "vocabulary  " in out
    assert "parameters  " in out
    assert "tok:13a" in out
    assert "nc:6" in out  # of chrF's signature
    assert "Samples from valid:" in out
    assert tiny.result.err == ""  # no progress bar where there is no terminal


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ([], "1+1 layers, 64 wide, 1 head, norm none, feed-forward none, position sinusoidal"),
        (["kind=recurrent", "positional_encoding=none"],
         "recurrent: 1+1 layers of GRU, 64 wide, attention dot, position none"),
        (["kind=recurrent", "cell=lstm", "bidirectional=true", "attention=multiplicative",
          "output_projection=true"],
         "recurrent: 1+1 layers of LSTM, bidirectional, 64 wide, attention multiplicative with "
         "W_O, position sinusoidal"),
    ],
)  # fmt: skip
def test_train_plan_describes_the_model(changes, line):
    settings = [f"model.{change}" for change in changes]
    assert describe_model(load_config(ROOT / "configs" / "tiny.yaml", settings).model) == line


def test_config_is_found_as_a_path_or_in_configs(tmp_path):
    (tmp_path / "own.yaml").write_bytes((ROOT / "configs" / "tiny.yaml").read_bytes())
    assert train(tmp_path, "--config", "own.yaml", *QUICK).code == 0
    assert (tmp_path / "runs" / "own" / "config.yaml").is_file()
    assert train(tmp_path, "--config", "tiny", "--run", "elsewhere", *QUICK).code == 0
    assert (tmp_path / "elsewhere" / "metrics.jsonl").is_file()


def test_finished_run_is_reported_and_fresh_moves_it_aside(tmp_path):
    first = train(tmp_path, "--config", "tiny.yaml", *QUICK)
    assert first.code == 0
    again = train(tmp_path, "--config", "tiny.yaml", *QUICK)
    assert again.code == 0
    assert "runs/tiny is finished: it has taken its 12 steps." in again.out
    fresh = train(tmp_path, "--config", "tiny.yaml", *QUICK, "--fresh")
    assert fresh.code == 0
    assert "note: moved the old run to runs/tiny.old-1" in fresh.err
    assert (tmp_path / "runs" / "tiny.old-1" / "metrics.jsonl").is_file()


def test_train_reports_dropped_pairs_with_reason_and_line(tmp_path):
    (tmp_path / "own.tsv").write_bytes(b"a\tb\n\nno tab\nc\td\n")
    result = train(tmp_path, "--config", "tiny.yaml", *QUICK, "--set", "data.train=own.tsv")
    assert "  train     2 pairs kept, 2 dropped" in result.out
    assert "1 empty, skipped (first: line 2)" in result.out
    assert "1 cannot be read, skipped (first: line 3; 1 column instead of 2)" in result.out
    assert "  valid     none" in result.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--config", "absent.yaml"], 2, "no config 'absent.yaml', here or among those that ship"),
        (["--config", "tiny.yaml", "--set", "training.stpes=5"], 2, "did you mean 'steps'?"),
        (["--config", "tiny.yaml", "--set", "steps=5"], 2, "write it as section.key=value"),
        (["--config", "tiny.yaml", "--set", "model.num_heads=7"], 2, "must be divisible by"),
        (["--config", "tiny.yaml", "--set", "data.train=absent.tsv"], 1, "neither a file nor"),
        (["--config", "tiny.yaml", "--set", "tokenizer.words=klingon"], 2, "'klingon' is neither"),
        (["--config", "tiny.yaml", "--set", "training.init_from=x"], 2, "there is no file 'x'"),
        (["--config", "tiny.yaml", "--set", "training.trainable=[x]"], 2, "no part 'x'"),
        (["--config", "tiny.yaml", "--device", "cuda"], 2, "not available on this machine"),
        (["--config", "tiny.yaml", "--device", "abacus"], 2, "invalid choice: 'abacus'"),
        (["--config", "tiny.yaml", "--run", "file/x"], 1, "Not a directory"),
        (["--config", "tiny.yaml", "--run", "file", "--fresh"], 1, "is a file, not a run folder"),
        (["--config", "tiny.yaml", "--run", "other", "--fresh"], 1, "is not a run folder"),
        (["--confgi", "tiny.yaml"], 2, "no option --confgi: did you mean '--config'?"),
        (["tiny.yaml"], 2, "unexpected 'tiny.yaml': did you mean --config tiny.yaml?"),
        ([], 2, "name a config, such as --config tiny.yaml"),
    ],
)  # fmt: skip
def test_train_errors_have_one_line_and_an_exit_code(tmp_path, arguments, code, message):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    if "cuda" in arguments:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has CUDA")
    result = train(tmp_path, *arguments)
    assert result.code == code
    assert message in result.err
    errors = [line for line in result.err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert not (tmp_path / "runs").exists()


def test_train_reports_a_closed_output_pipe(tmp_path):
    process = subprocess.Popen(
        [sys.executable, ROOT / "train.py", "--config", "tiny.yaml", *QUICK], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        process.stdout.close()
        assert process.wait(60) == 1
        error = process.stderr.read().decode()
    assert error == "error: the output cannot be written: Broken pipe\n"


def test_train_lists_changed_settings(tmp_path):
    assert train(tmp_path, "--config", "tiny.yaml", *QUICK).code == 0
    result = train(tmp_path, "--config", "tiny.yaml", *QUICK, "--set", "training.seed=2")
    assert result.code == 1
    assert "was started with other settings (training.seed: 1, now 2); use --fresh" in result.err
