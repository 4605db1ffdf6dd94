import re
from pathlib import Path

from tests.processes import Finished, run
from tests.small_runs import trainer_for


def evaluate(folder: Path, *arguments: object) -> Finished:
    return run("minitransformer/evaluation.py", *arguments, folder=folder)


def test_a_split_is_scored_as_training_scored_it(tiny):
    result = evaluate(tiny.folder, "runs/tiny", "--split", "valid")
    assert result.code == 0, result.err
    assert "runs/tiny (step-000600) on en-es (valid): 45 pairs" in result.out
    exact = float(re.search(r"exact_match +([\d.]+)", result.out)[1])
    right = int(re.search(r"(\d+) of 45 held-out", tiny.result.out)[1])
    assert exact == round(right / 45, 4)
    assert "nrefs:1|case:mixed" in result.out


def test_a_test_split_is_scored_with_the_checkpoint_that_was_selected(tmp_path):
    (tmp_path / "test.tsv").write_text("I go to school\tVoy a la escuela\nI xyz\tYo\n")
    trainer = trainer_for(
        tmp_path / "run", f"data.test={tmp_path / 'test.tsv'}", "evaluation.best_metric=loss",
    )  # fmt: skip
    trainer.run()
    best = evaluate(tmp_path, "run")
    assert f"run (step-{trainer.state.best_step:06d}) on " in best.out
    assert "1 with words or characters that training does not have, kept (first: line 2" in best.out
    last = evaluate(tmp_path, "run", "--checkpoint", "last")
    assert "run (step-000012) on " in last.out


def test_a_finished_run_is_scored_on_new_pairs_but_not_on_splits_that_changed(tmp_path):
    rows = [f"a{number} b\tc{number}" for number in range(40)]
    (tmp_path / "all.tsv").write_text("\n".join(rows) + "\n")
    trainer_for(tmp_path / "run", f"data.source={tmp_path / 'all.tsv'}", "data.split_valid=9").run()
    (tmp_path / "new.tsv").write_text("a1 b\tc1\n")
    on_new = evaluate(tmp_path, "run", "--set", "data.test=new.tsv")
    assert "on new.tsv: 1 pair\n" in on_new.out
    (tmp_path / "all.tsv").write_text("\n".join(rows[:-10]) + "\n")
    assert evaluate(tmp_path, "run", "--set", "data.test=new.tsv").code == 0
    changed = evaluate(tmp_path, "run", "--split", "valid")
    assert changed.code == 1
    assert "has other sentence pairs now than run was trained with" in changed.err


def test_what_is_not_there_is_named(tiny, tmp_path):
    result = evaluate(tiny.folder, "runs/tiny")
    assert (result.code, result.out) == (1, "")
    assert "en-es has no test split (there: train, valid)" in result.err
    result = evaluate(tmp_path, "absent")
    assert result.code == 1
    assert result.err == "error: absent is not a run folder (it has no config.yaml)\n"
