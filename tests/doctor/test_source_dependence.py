"""A run whose output does not depend on the source gets a warning."""

import math

import pytest
import torch

from minitransformer.checkpoint import TrainerState
from minitransformer.doctor import source_dependence
from minitransformer.doctor.source_dependence import WatchSource, source_gain, source_warning
from tests.support.small_runs import NO_DROPOUT, trainer_for


def cut_source_off(trainer) -> None:
    """Zero the cross-attention values, so that the decoder does not see the source."""
    with torch.no_grad():
        trainer.model.decoder.layers[0].cross_attention.value.weight.zero_()


def gain_of(trainer) -> float:
    encoded = trainer.encoded["train"]
    return source_gain(trainer.model, encoded, trainer.tokenizer.start_id)


def test_source_gain_is_high_after_training_and_zero_without_cross_attention(tmp_path, capsys):
    trainer = trainer_for(
        tmp_path / "run", "training.steps=100", *NO_DROPOUT, "evaluation.every=1000",
        callbacks=[WatchSource()],
    )  # fmt: skip
    trainer.fit()
    assert gain_of(trainer) > 1
    assert capsys.readouterr().err == ""
    assert trainer.state.most_source_gain > 0.5
    cut_source_off(trainer)
    assert gain_of(trainer) == 0
    trainer.evaluate()
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(
        "warning: after step 100 translations no longer depend on the source: with another "
        "sentence's source, the loss is no higher (it was "
    )
    trainer.evaluate()
    assert capsys.readouterr().err == ""  # once per process


@pytest.mark.slow
def test_ignored_source_is_warned_about_once_in_the_second_half(tmp_path, capsys):
    trainer = trainer_for(
        tmp_path / "run", "training.trainable=[head]", "training.steps=220",
        "evaluation.every=20", "training.save_every=1000", callbacks=[WatchSource()],
    )  # fmt: skip
    cut_source_off(trainer)
    trainer.fit()
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: after step 120 the source does not help to translate: ")


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_short_run_has_no_source_warning(tmp_path, steps, capsys):
    trainer_for(tmp_path / "run", f"training.steps={steps}", callbacks=[WatchSource()]).fit()
    assert capsys.readouterr().err == ""


def test_highest_source_gain_survives_a_restart(tmp_path):
    trainer = trainer_for(tmp_path / "run", callbacks=[WatchSource()])
    trainer.fit()
    assert trainer.state.most_source_gain > 0
    again = trainer_for(tmp_path / "run", "training.steps=20")
    assert again.state.most_source_gain == trainer.state.most_source_gain


def test_single_source_has_no_gain(tmp_path):
    data = tmp_path / "own.tsv"
    data.write_text("Good night\tBuenas noches\nGood night\tBuenas\n")
    trainer = trainer_for(tmp_path / "run", f"data.train={data}")
    assert gain_of(trainer) is None
    WatchSource().on_evaluation(trainer, {})
    assert trainer.state.most_source_gain == 0


@pytest.mark.parametrize(
    ("before", "gain", "step", "words"),
    [
        (2.0, 0.01, 1, "no longer depend"), (2.0, 0.3, 999, ""), (0.0, 0.01, 499, ""),
        (0.0, 0.01, 500, "does not help"), (0.0, -0.2, 500, "the loss is no higher"),
        (0.3, 0.04, 100, ""),
    ],
)  # fmt: skip
def test_source_warning_of_low_gains(before, gain, step, words):
    warning = source_warning(gain, TrainerState(step=step, most_source_gain=before), 1000)
    assert (words in warning) if words else warning == ""


@pytest.mark.parametrize(
    ("gain", "highest"), [(0.3, 2.0), (3.0, 3.0), (math.inf, 2.0), (math.nan, 2.0), (None, 2.0)]
)
def test_highest_source_gain_is_finite(monkeypatch, tmp_path, gain, highest):
    monkeypatch.setattr(source_dependence, "source_gain", lambda *arguments: gain)
    trainer = trainer_for(tmp_path / "run")
    trainer.state.most_source_gain = 2.0
    WatchSource().on_evaluation(trainer, {})
    assert trainer.state.most_source_gain == highest
