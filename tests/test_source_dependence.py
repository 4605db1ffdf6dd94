"""A run whose output does not depend on the source gets a warning."""

import math

import pytest
import torch

from minitransformer.checkpoint import TrainerState
from minitransformer.training import divergence
from minitransformer.training.divergence import SourceDependence, source_gain
from minitransformer.training.trainer import Callback
from tests.small_runs import NO_DROPOUT, trainer_for


class Listener(Callback):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, trainer, warning):
        self.warnings.append(warning)


def cut_source_off(trainer) -> None:
    """Let nothing of the source arrive at the decoder."""
    with torch.no_grad():
        trainer.model.decoder.layers[0].cross_attention.value.weight.zero_()


def gain_of(trainer) -> float:
    encoded = trainer.encoded["train"]
    return source_gain(trainer.model, encoded, trainer.tokenizer.start_id)


def test_source_gain_is_high_after_training_and_zero_without_cross_attention(tmp_path):
    trainer = trainer_for(
        tmp_path / "run",
        "training.steps=100",
        *NO_DROPOUT,
        "evaluation.every=1000",
    )
    listener = Listener()
    trainer.callbacks.append(listener)
    trainer.fit()
    assert gain_of(trainer) > 1
    assert listener.warnings == []
    assert trainer.state.most_source_gain > 0.5
    cut_source_off(trainer)
    assert gain_of(trainer) == 0
    trainer.evaluate()
    (warning,) = listener.warnings
    assert warning.startswith(
        "after step 100 translations no longer depend on the source: with another sentence's "
        "source, the loss is no higher (it was "
    )
    trainer.evaluate()
    assert len(listener.warnings) == 1  # once per process


@pytest.mark.slow
def test_a_run_that_ignores_the_source_is_warned_once_from_its_middle_on(tmp_path):
    listener = Listener()
    trainer = trainer_for(
        tmp_path / "run", "training.trainable=[head]", "training.steps=220",
        "evaluation.every=20", "training.save_every=1000", callbacks=[listener],
    )  # fmt: skip
    cut_source_off(trainer)
    trainer.fit()
    (warning,) = listener.warnings
    assert warning.startswith("after step 120 the source does not help to translate: ")


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_a_run_of_a_few_steps_is_not_warned(tmp_path, steps):
    listener = Listener()
    trainer_for(tmp_path / "run", f"training.steps={steps}", callbacks=[listener]).fit()
    assert listener.warnings == []


def test_the_highest_source_gain_survives_a_restart(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    trainer.fit()
    assert trainer.state.most_source_gain > 0
    again = trainer_for(tmp_path / "run", "training.steps=20")
    assert again.state.most_source_gain == trainer.state.most_source_gain


def test_one_source_alone_has_no_gain(tmp_path):
    data = tmp_path / "own.tsv"
    data.write_text("Good night\tBuenas noches\nGood night\tBuenas\n")
    trainer = trainer_for(tmp_path / "run", f"data.train={data}")
    assert gain_of(trainer) is None
    assert (
        SourceDependence(trainer.model, trainer.encoded, 3).warning(TrainerState(step=999), 999)
        == ""
    )


@pytest.mark.parametrize(
    ("before", "gain", "step", "words"),
    [
        (2.0, 0.01, 1, "no longer depend"), (2.0, 0.3, 999, ""), (0.0, 0.01, 499, ""),
        (0.0, 0.01, 500, "does not help"), (0.0, -0.2, 500, "the loss is no higher"),
        (0.3, 0.04, 100, ""), (1.0, math.inf, 999, ""), (1.0, math.nan, 999, ""),
    ],
)  # fmt: skip
def test_source_dependence_warns_of_low_gains(monkeypatch, tmp_path, before, gain, step, words):
    monkeypatch.setattr(divergence, "source_gain", lambda *arguments: gain)
    trainer = trainer_for(tmp_path / "run")
    state = TrainerState(step=step, most_source_gain=before)
    warning = SourceDependence(trainer.model, trainer.encoded, 3).warning(state, 1000)
    assert (words in warning) if words else warning == ""
    assert state.most_source_gain == (max(before, gain) if math.isfinite(gain) else before)
