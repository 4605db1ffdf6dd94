"""The shipped configs learn their training pairs and translate most held-out pairs."""

import json
from pathlib import Path
from statistics import mean

import pytest

from minitransformer import Translator
from tests.support.corpus_files import corpus_of
from tests.support.processes import run


def last_rows(run_path: Path) -> dict[str, dict]:
    lines = (run_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["split"]: row for row in rows if row["step"] == rows[-1]["step"]}


@pytest.mark.parametrize("name", ["tiny", "tiny_bn", "tiny_rnn"])
def test_shipped_config_learns_training_and_held_out_pairs(name, request):
    trained = request.getfixturevalue(name)
    assert trained.result.code == 0
    corpus = corpus_of(train="en-bn" if name == "tiny_bn" else "en-es")
    translator = Translator.load(trained.path)
    translations = translator.translate([pair.source for pair in corpus.train])
    assert [each.text for each in translations] == [pair.target for pair in corpus.train]
    held_out = translator.translate([pair.source for pair in corpus.splits["valid"]])
    is_exact = [
        each.text == pair.target
        for each, pair in zip(held_out, corpus.splits["valid"], strict=True)
    ]
    assert mean(is_exact) >= 0.9
    rows = last_rows(trained.path)
    assert rows["train"]["exact_match"] == 1.0
    assert rows["valid"]["exact_match"] == pytest.approx(mean(is_exact))


def test_translator_translates_english_to_spanish(tiny):
    translator = Translator.load(tiny.path)
    assert translator("Let's go") == "Vamos"


def test_translator_translates_english_to_bangla(tiny_bn):
    assert Translator.load(str(tiny_bn.path))("I go to school") == "আমি স্কুলে যাই"


def test_metrics_have_one_object_per_evaluation_and_split(tiny):
    lines = (tiny.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["step"], row["split"]) for row in rows] == [
        (step, split) for step in range(0, 601, 75) for split in ("train", "valid")
    ]
    keys = {
        "loss", "exact_match", "accuracy_teacher_forced", "accuracy_free_running", "seconds",
        "tokens_per_second", "perplexity", "bleu", "chrf",
    }  # fmt: skip
    assert all(keys <= row.keys() for row in rows)
    losses = [row["loss"] for row in rows if row["split"] == "train"]
    assert losses[0] == pytest.approx(4.4, abs=0.6)  # ln 82: close to uniform before training
    assert losses[-1] < 0.05
    assert all(row["tokens_per_second"] > 0 for row in rows[2:])
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("config", ["tiny", "tiny-bn", "tiny-rnn"])
def test_held_out_exact_match_of_five_seeds_averages_95_percent(config, tmp_path):
    held_out = []
    for seed in range(1, 6):
        path = tmp_path / f"seed-{seed}"
        result = run(
            "train.py", "--config", f"{config}.yaml", "--run", path, "--set",
            f"training.seed={seed}", "--set", "logging.tensorboard=false", folder=tmp_path,
        )  # fmt: skip
        assert result.code == 0
        rows = last_rows(path)
        assert rows["train"]["exact_match"] == 1.0, f"seed {seed}"
        held_out.append(rows["valid"]["exact_match"])
    assert mean(held_out) >= 0.95, held_out
