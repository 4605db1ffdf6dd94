"""A run whose outputs have nothing to do with its inputs is told so."""

import pytest
import torch

from minitransformer.saved_step import State
from minitransformer.training import source_watch
from minitransformer.training.source_watch import collapse_warning, source_gain
from minitransformer.training.watcher import Watcher
from tests.small_runs import trainer_for


class Listener(Watcher):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, trainer, warning):
        self.warnings.append(warning)


def deafen(trainer) -> None:
    """Let nothing of the source arrive at the decoder."""
    with torch.no_grad():
        trainer.model.decoder.layers[0].cross_attention.value.weight.zero_()


def gain_of(trainer) -> float:
    encoded = trainer.encoded["train"]
    return source_gain(trainer.model, encoded, trainer.tokenizer.start_id)


def test_the_source_is_worth_something_to_a_trained_model_and_nothing_to_a_deaf_one(tmp_path):
    trainer = trainer_for(tmp_path / "run", "training.steps=100", "model.dropout=0",
                          "model.inner_dropout=0", "evaluation.every=1000")  # fmt: skip
    listener = Listener()
    trainer.watchers.append(listener)
    trainer.run()
    assert gain_of(trainer) > 1
    assert listener.warnings == []
    assert trainer.state.most_source_gain > 0.5
    deafen(trainer)
    assert gain_of(trainer) == 0
    trainer.evaluate()
    (warning,) = listener.warnings
    assert "after step 100 the outputs no longer depend on the source: another" in warning


def test_a_run_that_never_listens_is_told_from_its_middle_on(tmp_path):
    listener = Listener()
    trainer = trainer_for(tmp_path / "run", "training.train_only=[head]", watchers=[listener])
    deafen(trainer)
    trainer.run()
    told = [warning.split(":")[0] for warning in listener.warnings]
    assert told == [
        f"after step {step} the outputs do not depend on the source" for step in (10, 12)
    ]


def test_what_the_source_once_was_worth_outlives_a_restart(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    trainer.run()
    assert trainer.state.most_source_gain > 0
    again = trainer_for(tmp_path / "run", "training.steps=20")
    assert again.state.most_source_gain == trainer.state.most_source_gain


def test_one_pair_alone_says_nothing(tmp_path):
    data = tmp_path / "own.tsv"
    data.write_text("Good night\tBuenas noches\nGood night\tBuenas\n")
    trainer = trainer_for(tmp_path / "run", f"data.source={data}")
    assert gain_of(trainer) is None
    assert collapse_warning(trainer.model, trainer.encoded, 3, State(step=9), 9) == ""


@pytest.mark.parametrize(
    ("before", "gain", "step", "words"),
    [
        (2.0, 0.01, 1, "no longer depend"), (2.0, 0.3, 99, ""), (0.0, 0.01, 49, ""),
        (0.0, 0.01, 50, "do not depend"), (0.3, 0.04, 10, ""),
    ],
)  # fmt: skip
def test_when_a_warning_is_due(monkeypatch, tmp_path, before, gain, step, words):
    monkeypatch.setattr(source_watch, "source_gain", lambda *arguments: gain)
    trainer = trainer_for(tmp_path / "run")
    state = State(step=step, most_source_gain=before)
    warning = collapse_warning(trainer.model, trainer.encoded, 3, state, 100)
    assert (words in warning) if words else warning == ""
    assert state.most_source_gain == max(before, gain)
