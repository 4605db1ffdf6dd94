"""The evaluate command scores splits, files, averaged checkpoints and pairs of runs."""

import dataclasses
import os
import re
import signal
from pathlib import Path

import pytest
import torch

from minitransformer import Translator
from minitransformer.checkpoint import checkpoint_files
from minitransformer.config import load_config
from minitransformer.data.dataset import prepare_dataset
from minitransformer.storage import replace_folder
from tests.support.processes import Finished, run
from tests.support.small_runs import trainer_for, weights


def evaluate(folder: Path, path: Path | str, *arguments: object) -> Finished:
    return run("evaluate", "--run", path, *arguments, folder=folder)


def test_evaluate_gives_the_scores_of_training(tiny):
    result = evaluate(tiny.folder, "runs/tiny", "--split", "valid")
    assert result.code == 0, result.err
    assert "runs/tiny (step-000600) on en-es (valid): 45 pairs" in result.out
    exact = float(re.search(r"exact_match +([\d.]+)", result.out)[1])
    right = int(re.search(r"(\d+) of 45 held-out", tiny.result.out)[1])
    assert exact == round(right / 45, 4)
    assert "nrefs:1|case:mixed" in result.out


def test_evaluate_uses_the_selected_checkpoint(tmp_path):
    (tmp_path / "test.tsv").write_text("I go to school\tVoy a la escuela\nI xyz\tYo\n")
    trainer = trainer_for(
        tmp_path / "run", f"data.test={tmp_path / 'test.tsv'}", "evaluation.best_metric=loss",
    )  # fmt: skip
    trainer.fit()
    best = evaluate(tmp_path, "run")
    assert f"run (step-{trainer.state.best_step:06d}) on " in best.out
    assert "1 with words or characters that training does not have, kept (first: line 2" in best.out
    last = evaluate(tmp_path, "run", "--checkpoint", "last")
    assert "run (step-000012) on " in last.out


def test_evaluate_takes_new_pairs_but_refuses_changed_splits(tmp_path):
    rows = [f"a{number} b\tc{number}" for number in range(40)]
    (tmp_path / "all.tsv").write_text("\n".join(rows) + "\n")
    trainer_for(tmp_path / "run", f"data.train={tmp_path / 'all.tsv'}", "data.split_valid=9").fit()
    (tmp_path / "new.tsv").write_text("a1 b\tc1\n")
    on_new = evaluate(tmp_path, "run", "--set", "data.test=new.tsv")
    assert "on new.tsv (test): 1 pair\n" in on_new.out
    (tmp_path / "all.tsv").write_text("\n".join(rows[:-10]) + "\n")
    assert evaluate(tmp_path, "run", "--set", "data.test=new.tsv").code == 0
    changed = evaluate(tmp_path, "run", "--split", "valid")
    assert changed.code == 1
    assert "has other sentence pairs now than run was trained with, or is split" in changed.err


def test_evaluate_refuses_possible_training_pairs_as_test_split(tmp_path):
    rows = [f"a{number} b\tc{number}" for number in range(40)]
    (tmp_path / "all.tsv").write_text("\n".join(rows) + "\n")
    settings = (f"data.train={tmp_path / 'all.tsv'}", "data.split_valid=5", "data.split_test=9")
    trainer_for(tmp_path / "run", *settings).fit()
    unchanged = evaluate(tmp_path, "run")
    assert "all.tsv (test): 9 pairs" in unchanged.out
    assert "training pairs" not in unchanged.out
    for change in ("data.split_seed=2", "data.split_test=20"):
        changed = evaluate(tmp_path, "run", "--set", change)
        assert changed.code == 1
        assert "or is split differently" in changed.err
    training_pair = next(
        iter(prepare_dataset(load_config(tmp_path / "run/config.yaml")).corpus.train)
    )
    (tmp_path / "new.tsv").write_text(f"{training_pair.source}\tc\nelsewhere\tc\n")
    new = evaluate(tmp_path, "run", "--set", "data.split_test=0", "--set", "data.test=new.tsv")
    assert (
        "  1 whose source is among the training pairs, too\n"
        "  (counted in today's training pairs; the run was trained with others)\n"
    ) in new.out


def test_evaluate_takes_the_held_out_pairs_that_there_are(tiny, tmp_path):
    assert (
        "runs/tiny (step-000600) on en-es (valid): 45 pairs"
        in evaluate(tiny.folder, "runs/tiny").out
    )
    result = evaluate(tiny.folder, "runs/tiny", "--split", "test")
    assert (result.code, result.out) == (1, "")
    assert "en-es has no test split (there: train, valid)" in result.err
    result = evaluate(tmp_path, "absent")
    assert result.code == 1
    assert result.err == "error: absent is not a run folder (there is no such folder)\n"


def test_evaluate_scores_files_with_one_or_several_references(tiny, tmp_path):
    (tmp_path / "in.txt").write_text("I go to school\nWe drink tea\n")
    (tmp_path / "a.txt").write_text("Voy a la escuela\nno no no no\n")
    (tmp_path / "b.txt").write_text("si si si si\nBebemos té\n")
    both = ["--references", tmp_path / "a.txt", "--references", tmp_path / "b.txt"]
    result = evaluate(tiny.folder, "runs/tiny", "--input", tmp_path / "in.txt", *both)
    assert result.code == 0, result.err
    assert "on in.txt: 2 pairs" in result.out
    assert "nrefs:2|case:mixed" in result.out
    assert re.search(r"bleu +100\.0000\n", result.out)
    assert re.search(r"bleu_lowercase +100\.0000\n", result.out)
    (tmp_path / "refs.tsv").write_text(
        "I go to school\tsi si si si\tVoy a la escuela\nWe drink tea\tBebemos té\n"
    )
    result = evaluate(tiny.folder, "runs/tiny", "--input", tmp_path / "refs.tsv", "--beam", 3)
    assert "nrefs:var" in result.out
    assert "search: beam of 3, length penalty 1\n" in result.out
    assert re.search(r"bleu +100\.0000\n", result.out)


def test_evaluate_refuses_invalid_files_and_options(tiny, tmp_path):
    (tmp_path / "in.txt").write_text("I go to school\nWe drink tea\n")
    (tmp_path / "a.txt").write_text("Voy a la escuela\n")
    source = ["--input", tmp_path / "in.txt"]
    result = evaluate(tiny.folder, "runs/tiny", *source, "--references", tmp_path / "a.txt")
    assert result.code == 1
    assert "in.txt has 2 lines" in result.err
    result = evaluate(tiny.folder, "runs/tiny", *source)
    assert (result.code, result.out) == (1, "")
    assert "in.txt, line 1: no reference after a tab" in result.err
    (tmp_path / "half.tsv").write_text("We drink tea\tBebemos té\nI go to school\t\n")
    result = evaluate(tiny.folder, "runs/tiny", "--input", tmp_path / "half.tsv")
    assert (result.code, result.out) == (1, "")
    assert "half.tsv, line 2: no reference after a tab" in result.err
    (tmp_path / "gap.tsv").write_text("We drink tea\tBebemos té\n\n")
    result = evaluate(tiny.folder, "runs/tiny", "--input", tmp_path / "gap.tsv")
    assert "gap.tsv, line 2: no text" in result.err
    (tmp_path / "latin.txt").write_bytes(b"I go\nWe drink caf\xe9\n")
    result = evaluate(tiny.folder, "runs/tiny", "--input", tmp_path / "latin.txt")
    assert "latin.txt, line 2: not UTF-8" in result.err
    (tmp_path / "two.txt").write_text("Voy a la escuela\n\n")
    result = evaluate(tiny.folder, "runs/tiny", *source, "--references", tmp_path / "two.txt")
    assert "two.txt, line 2: no text" in result.err
    both = ["--input", tmp_path / "half.tsv", "--references", tmp_path / "two.txt"]
    assert "half.tsv, line 1: a tab" in evaluate(tiny.folder, "runs/tiny", *both).err
    for options, message in [
        (["--set", "model.d_model=32"], "only data.… and evaluation.… can be changed here"),
        (["--references", tmp_path / "a.txt"], "--references goes with --input"),
        ([*source, "--split", "valid"], "--split or --input"),
        (["--beam", "0"], "--beam 0: must be from 1 to 1000"),
        (["--average", "0"], "--average 0: must be from 1 to 1000"),
        (["--set", "evaluation.average_checkpoints=2"], "use --average or --checkpoint instead"),
        (["--average", "2", "--checkpoint", "last"], "--average does not go with"),
    ]:
        result = evaluate(tiny.folder, "runs/tiny", *options)
        assert result.code == 2
        assert message in result.err
        assert result.err.count("\n") == 1


def test_evaluate_compares_two_runs_by_paired_bootstrap(tiny, tmp_path):
    trainer_for(tmp_path / "weak").fit()
    arguments = ["--split", "valid", "--compare", tmp_path / "weak"]
    result = evaluate(tiny.folder, "runs/tiny", *arguments)
    assert result.code == 0, result.err
    assert "(was trained with other pairs)" in result.out
    number = r"([\d.]+)"
    found = re.search(
        rf"BLEU +{number} \(.* ± .*\) against {number} \(.* ± .*\), p = {number}", result.out
    )
    better, worse, p = map(float, found.groups())
    assert better > 80 > worse
    assert p < 0.05
    same = evaluate(tiny.folder, "runs/tiny", "--split", "valid", "--compare", "runs/tiny")
    assert same.out.count("p = 1.0000") == 2


def test_averaged_run_translates_with_the_mean_of_checkpoints(tmp_path, capsys):
    trainer = trainer_for(
        tmp_path / "run", "evaluation.average_checkpoints=3", "training.keep_checkpoints=4",
        "training.save_every=3",
    )  # fmt: skip
    trainer.fit()
    folder = trainer.run_folder
    steps = sorted(folder.steps())
    assert len(steps) == 4
    saved = [folder.load(step, for_training=False).model for step in steps]
    for average, chosen in ((None, saved[1:]), (2, saved[2:]), (1, saved[3:]), (9, saved)):
        translator = Translator.load(tmp_path / "run", average=average)
        for name, weight in translator.model.named_parameters():
            mean = sum(each[name].double() for each in chosen) / len(chosen)
            torch.testing.assert_close(weight.detach().double(), mean, atol=1e-7, rtol=1e-7)
    assert "has only 4 of the 9 checkpoints to be averaged" in capsys.readouterr().err
    assert translator.checkpoint == f"mean of 4, step-{steps[0]:06d} to step-{steps[-1]:06d}"
    one = Translator.load(tmp_path / "run", checkpoint="last")
    assert one.checkpoint == f"step-{steps[-1]:06d}"
    result = evaluate(tmp_path, "run", "--split", "valid")
    assert f"run (mean of 3, step-{steps[1]:06d} to" in result.out


@pytest.mark.parametrize("stop_at", [7, 10])
def test_interrupted_run_has_the_same_average(tmp_path, stop_at):
    settings = (
        "evaluation.average_checkpoints=3", "training.keep_checkpoints=3", "training.save_every=3",
        "evaluation.every=6",
    )  # fmt: skip
    trainer_for(tmp_path / "uninterrupted", *settings).fit()
    stopped = trainer_for(tmp_path / "resumed", *settings)
    step = stopped.step

    def step_and_signal():
        report = step()
        if stopped.state.step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return report

    stopped.step = step_and_signal
    assert stopped.fit() == 143
    assert stopped.run_folder.steps()[0] == stop_at
    trainer_for(tmp_path / "resumed", *settings).fit()
    uninterrupted, resumed = (
        Translator.load(tmp_path / name) for name in ("uninterrupted", "resumed")
    )
    assert uninterrupted.checkpoint == resumed.checkpoint == "mean of 3, step-000006 to step-000012"
    for one, other in zip(
        uninterrupted.model.parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_average_omits_damaged_checkpoints_and_an_old_best(tmp_path, capsys):
    trainer = trainer_for(
        tmp_path / "run", "evaluation.average_checkpoints=2", "training.keep_checkpoints=2",
        "evaluation.best_metric=loss",
    )  # fmt: skip
    trainer.fit()
    folder = trainer.run_folder
    first = dataclasses.replace(trainer.state, step=1)  # as if it had been kept as the best
    files = checkpoint_files(
        first, weights(trainer), {}, folder.tokenizer_checksums(), trainer.config
    )  # fmt: skip
    replace_folder(folder.step_path(1), files)
    (folder.checkpoints / "best").write_text("step-000001\n")
    steps = [step for step in folder.steps() if step > 1]
    assert Translator.load(tmp_path / "run", average=9).checkpoint == (
        f"mean of 2, step-{steps[1]:06d} to step-{steps[0]:06d}"
    )
    assert Translator.load(tmp_path / "run", average=1).checkpoint == "step-000012"
    assert Translator.load(tmp_path / "run", checkpoint="best").checkpoint == "step-000001"
    (folder.checkpoints / "best").write_text("junk")
    best = f"step-{trainer.state.best_step:06d}"
    assert Translator.load(tmp_path / "run", checkpoint="best").checkpoint == best
    (folder.step_path(steps[1]) / "model.safetensors").write_bytes(b"")
    assert Translator.load(tmp_path / "run").checkpoint == "step-000012"
    assert "damaged" in capsys.readouterr().err
