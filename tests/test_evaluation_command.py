import re
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT
from tests.small_runs import trainer_for


def evaluate(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "minitransformer.evaluation", *map(str, arguments)], cwd=folder,
        capture_output=True, text=True, encoding="utf-8", env={"PYTHONPATH": str(ROOT)},
        check=False,
    )  # fmt: skip


def test_a_split_is_scored_as_training_scored_it(tiny):
    result = evaluate(tiny.folder, "runs/tiny", "--split", "valid")
    assert result.returncode == 0, result.stderr
    assert "runs/tiny (step-000600) on en-es (valid): 45 pairs" in result.stdout
    exact = float(re.search(r"exact_match +([\d.]+)", result.stdout)[1])
    right = int(re.search(r"(\d+) of 45 held-out", tiny.result.out)[1])
    assert exact == round(right / 45, 4)
    assert "nrefs:1|case:mixed" in result.stdout


def test_a_test_split_is_scored_with_the_checkpoint_that_was_selected(tmp_path):
    (tmp_path / "test.tsv").write_text("I go to school\tVoy a la escuela\nI xyz\tYo\n")
    trainer = trainer_for(
        tmp_path / "run", f"data.test={tmp_path / 'test.tsv'}", "evaluation.best_metric=loss",
    )  # fmt: skip
    trainer.run()
    best = evaluate(tmp_path, "run")
    assert f"run (step-{trainer.state.best_step:06d}) on " in best.stdout
    assert (
        "1 with words or characters that training does not have, kept (first: line 2" in best.stdout
    )
    last = evaluate(tmp_path, "run", "--checkpoint", "last")
    assert "run (step-000012) on " in last.stdout


def test_a_finished_run_is_scored_on_new_pairs_but_not_on_splits_that_changed(tmp_path):
    rows = [f"a{number} b\tc{number}" for number in range(40)]
    (tmp_path / "all.tsv").write_text("\n".join(rows) + "\n")
    trainer_for(tmp_path / "run", f"data.source={tmp_path / 'all.tsv'}", "data.split_valid=9").run()
    (tmp_path / "new.tsv").write_text("a1 b\tc1\n")
    on_new = evaluate(tmp_path, "run", "--set", "data.test=new.tsv")
    assert "on new.tsv: 1 pair\n" in on_new.stdout
    (tmp_path / "all.tsv").write_text("\n".join(rows[:-10]) + "\n")
    assert evaluate(tmp_path, "run", "--set", "data.test=new.tsv").returncode == 0
    changed = evaluate(tmp_path, "run", "--split", "valid")
    assert changed.returncode == 1
    assert "has other sentence pairs now than run was trained with" in changed.stderr


def test_what_is_not_there_is_named(tiny, tmp_path):
    result = evaluate(tiny.folder, "runs/tiny")
    assert (result.returncode, result.stdout) == (1, "")
    assert "en-es has no test split (there: train, valid)" in result.stderr
    result = evaluate(tmp_path, "absent")
    assert result.returncode == 1
    assert result.stderr == "error: absent is not a run folder (it has no config.yaml)\n"
