"""The doctor command prints its checks and returns the right exit code."""

import shutil
from pathlib import Path

import pytest

from minitransformer.cli import run_command
from minitransformer.cli.doctor import main
from tests.support.overrides import overrides
from tests.support.processes import run
from tests.support.small_runs import trainer_for

SHORT = ["evaluation.every=3", "training.steps=6", "evaluation.best_metric=loss"]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("small") / "run"
    trainer_for(path, *SHORT).fit()
    return path


@pytest.fixture
def trained(small_run, tmp_path, monkeypatch) -> Path:
    """A finished small run in runs/ of the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(small_run, Path("runs") / "small"))


def doctor(capsys, *arguments: object) -> tuple[int, list[str]]:
    code = run_command(lambda: main([str(argument) for argument in arguments]))
    out, err = capsys.readouterr()
    assert err == "" or code == 2 or err.startswith(("error: ", "warning: ")), err
    return code, (out + err).splitlines()


def marked(lines: list[str], *marks: str) -> list[str]:
    return [line for line in lines if line.startswith(marks)]


def test_doctor_passes_on_a_shipped_config(tmp_path):
    result = run("doctor", "--config", "tiny", folder=tmp_path)
    assert result.code == 0
    lines = result.out.splitlines()
    assert len(marked(lines, "ok    ")) == 12
    assert marked(lines, "warn", "FAIL") == []
    assert lines[-1] == "12 ok, 0 failed"
    assert "torch" in lines[0]
    assert "ok    corpus, train         261 pairs kept, 0 dropped" in lines
    assert any(line.startswith("ok    initial loss") and "ln 82 = 4.41" in line for line in lines)
    assert list(tmp_path.glob("[!.]*")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", ["tiny-bn", "tiny-rnn", "copy", "reverse", "substitute", "lets-go"]
)
def test_doctor_passes_on_every_config_with_a_shipped_corpus(config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, lines = doctor(capsys, "--config", config)
    assert code == 0
    assert len(marked(lines, "ok    overfit one batch", "ok    initial loss")) == 2
    wrong = marked(lines, "warn", "FAIL")
    assert wrong == ["warn  corpus, valid         no held-out pairs"] * (config == "lets-go")


@pytest.mark.slow
@pytest.mark.parametrize("config", ["multi30k", "multi30k-rnn", "tatoeba-es", "tatoeba-bn"])
def test_doctor_passes_on_the_shapes_of_larger_configs(config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    changes = (
        "data.train=en-es", "data.valid=", "data.test=", "data.subset=",
        "data.columns=[source, target]", "data.split_valid=0", "data.split_test=0",
    )  # fmt: skip
    code, lines = doctor(capsys, "--config", config, *overrides(*changes))
    assert (code, lines[-1]) == (0, "12 ok, 0 failed")


def test_doctor_applies_overrides(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, lines = doctor(capsys, "--config", "tiny", "--set", "model.embedding_std=8")
    assert code == 0
    assert len(marked(lines, "warn  initial loss")) == 1
    assert lines[-1] == "11 ok, 1 warning, 0 failed"


def test_doctor_reports_defects_of_a_corpus(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.tsv").write_bytes(b"a b\tc d\nno tab\nb a\td c\n\na b\tc d\n")
    code, lines = doctor(capsys, "--config", "tiny", "--set", "data.train=own.tsv")
    assert code == 0
    assert "ok    corpus, train         3 pairs kept, 2 dropped" in lines
    assert any(line.startswith("warn  corpus, train         1 cannot be read") for line in lines)
    assert any(line.startswith("ok    corpus, train         1 duplicate") for line in lines)
    assert "warn  corpus, valid         no held-out pairs" in lines
    code, lines = doctor(capsys, "--config", "tiny", "--set", "data.train=absent.tsv")
    assert code == 1
    assert marked(lines, "FAIL")[0].startswith("FAIL  corpus  ")
    assert lines[-1] == "0 ok, 1 failed"


def test_doctor_without_options_checks_the_newest_run(trained, capsys):
    code, lines = doctor(capsys)
    assert code == 0
    assert "The run runs/small" in lines
    assert lines[-1] == "18 ok, 0 failed"
    assert marked(lines, "ok    step-") != []


def test_doctor_without_runs_prints_a_hint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, lines = doctor(capsys)
    assert code == 0
    assert lines[-1].startswith("no runs here yet")


def flip(path: Path, at: int = -10) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def append_partial_row(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"torn')


def test_doctor_names_damaged_checkpoints(trained, capsys):
    for name in ("model.safetensors", "optimizer.safetensors"):
        flip(trained / "checkpoints" / "step-000003" / name)
        code, lines = doctor(capsys, "--run", trained)
        assert code == 1
        (line,) = marked(lines, "FAIL")
        assert line.startswith("FAIL  step-000003")
        flip(trained / "checkpoints" / "step-000003" / name)
    assert doctor(capsys, "--run", trained)[0] == 0


def test_doctor_fails_on_a_run_without_a_valid_checkpoint(trained, capsys):
    for path in (trained / "checkpoints").glob("step-*"):
        (path / "state.json").unlink()
    code, lines = doctor(capsys, "--run", trained)
    assert code == 1
    assert len(marked(lines, "FAIL  step-")) == 2
    assert "failed" in lines[-1]


@pytest.mark.parametrize(
    ("damage", "code", "line"),
    [
        (lambda run: (run / "checkpoints" / "last").unlink(), 0,
         "warn  last                  names no step instead of step 6"),
        (lambda run: (run / "checkpoints" / "last").write_text("step-000003\n"), 0,
         "warn  last                  names step 3 instead of step 6"),
        (lambda run: (run / "checkpoints" / "best").write_text("step-000003\n"), 0,
         "warn  best                  names step 3 instead of step 6"),
        (lambda run: (run / "checkpoints" / ".step-000009.part").mkdir(), 0,
         "warn  unfinished saves      .step-000009.part: "),
        (lambda run: (run / "metrics.jsonl").unlink(), 1, "FAIL  metrics.jsonl         "),
        (lambda run: flip(run / "metrics.jsonl", 0), 1,
         "FAIL  metrics.jsonl         line 1 of 6 is not a JSON object"),
        (lambda run: append_partial_row(run / "metrics.jsonl"), 0,
         "ok    metrics.jsonl         6 rows, all readable (6 bytes after"),
    ],
)  # fmt: skip
def test_doctor_reports_the_files_of_a_run(trained, capsys, damage, code, line):
    damage(trained)
    found, lines = doctor(capsys, "--run", trained)
    assert found == code
    assert [each for each in lines if each.startswith(line)] != [], lines


def test_doctor_fails_if_the_corpus_of_a_run_has_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = Path("own.tsv")
    own.write_text("a b\tc d\nb a\td c\n")
    trainer = trainer_for(Path("run"), "data.train=own.tsv")
    trainer.step()
    trainer.save()
    assert doctor(capsys, "--run", "run")[0] == 0
    own.write_text("a b\tc d\nb a\td d\n")
    code, lines = doctor(capsys, "--run", "run")
    assert code == 1
    assert len(marked(lines, "FAIL  corpus unchanged")) == 1
    own.unlink()  # the run still translates, and is checked with random tokens
    code, lines = doctor(capsys, "--run", "run")
    assert code == 0
    assert len(marked(lines, "warn  corpus")) == 1
    assert any(line.endswith("6 pairs of random tokens") for line in lines)
    assert len(marked(lines, "ok    causality")) == 1


def test_doctor_reports_a_damaged_tokenizer_apart_from_checkpoints(trained, capsys):
    (trained / "tokenizer" / "target.tsv").unlink()
    code, lines = doctor(capsys, "--run", trained)
    assert code == 1
    assert len(marked(lines, "ok    step-")) == 2
    assert "restores it from the corpus; keep the other files" in " ".join(" ".join(lines).split())


def test_doctor_names_the_saved_batch_of_a_divergence(trained, capsys):
    (trained / "diverged" / "step-000003").mkdir(parents=True)
    _, lines = doctor(capsys, "--run", trained)
    text = " ".join(" ".join(lines).split())
    assert "warn divergence step-000003 produced NaN or Inf" in text
    assert f"--replay {trained}/diverged/step-000003" in text


def test_doctor_fails_on_nan_in_trained_weights(trained, capsys):
    from minitransformer.run import RunFolder

    folder = RunFolder(trained)
    checkpoint = folder.load(6, for_training=True)
    checkpoint.model["head.bias"][0] = float("nan")
    folder.save_checkpoint(
        checkpoint.state, checkpoint.model, checkpoint.optimizer, folder.load_config()
    )
    folder.point("best", 6)
    code, lines = doctor(capsys, "--run", trained)
    assert code == 1
    assert "'head.bias' has NaN or infinite values" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--config", "absent"], 2, "no config 'absent'"),
        (["--config", "tiny", "--set", "model.widht=3"], 2, "unknown key"),
        (["--set", "model.d_model=3"], 2, "--set goes with a --config or a --run"),
        (["--run", "absent"], 1, "absent is not a run folder (there is no such folder)"),
        (["--break", "causal", "--run", "x"], 2, "--break goes with a --config, or alone"),
        (
            ["--break", "shift", "--config", "lets-go", "--set", "training.init_from="],
            1,
            "--break needs held-out pairs, and this corpus has none",
        ),
    ],
)
def test_doctor_errors_have_one_line_and_an_exit_code(
    tmp_path, monkeypatch, capsys, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    found, lines = doctor(capsys, *arguments)
    assert found == code
    (line,) = (each for each in lines if each.startswith("error: "))
    assert message in line


def test_doctor_passes_on_a_recurrent_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trainer_for(Path("run"), *SHORT, "model.kind=recurrent", "model.attention=none").fit()
    code, lines = doctor(capsys, "--run", "run")
    assert (code, lines[-1]) == (0, "18 ok, 0 failed")
    assert "ok    attention weights     the model has no attention" in lines


def test_doctor_warns_of_a_run_without_checkpoints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trainer_for(Path("run"))
    code, lines = doctor(capsys, "--run", "run")
    assert code == 0
    assert "warn  checkpoints           none yet" in lines
