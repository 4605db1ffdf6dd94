"""Training stops early when its metric no longer improves, also after resuming."""

import torch

from minitransformer.run import RunFolder
from minitransformer.training.trainer import Callback
from minitransformer.translator import Translator
from tests.support.processes import run, train_command
from tests.support.run_results import final_hashes
from tests.support.small_runs import same_bits, trainer_for, weights

SETTINGS = (
    "evaluation.best_metric=loss", "evaluation.every=2", "training.steps=40",
    "training.schedule=constant", "training.patience=2", "evaluation.train_pairs=0",
)  # fmt: skip


class DegradeModel(Callback):
    """Makes the model worse at every step from step 6 on."""

    def on_step(self, trainer, report):
        if trainer.state.step >= 6:
            with torch.no_grad():
                trainer.model.head.weight.mul_(-3)


def test_training_stops_when_the_metric_no_longer_improves(tmp_path):
    trainer = trainer_for(tmp_path / "run", *SETTINGS, callbacks=[DegradeModel()])
    assert trainer.fit() == 0
    assert (trainer.state.best_step, trainer.state.step) == (4, 8)
    assert trainer.has_lost_patience
    assert RunFolder(tmp_path / "run").pointed("best") == 4
    assert Translator.load(tmp_path / "run").checkpoint == "step-000004"
    assert Translator.load(tmp_path / "run", checkpoint="last").checkpoint == "step-000008"


def test_stopped_run_is_finished_until_patience_is_raised(tmp_path):
    trainer_for(tmp_path / "run", *SETTINGS, callbacks=[DegradeModel()]).fit()
    again = trainer_for(tmp_path / "run", *SETTINGS)
    assert again.is_finished
    more = trainer_for(tmp_path / "run", *SETTINGS, "training.patience=5")
    assert not more.is_finished
    more.fit()
    assert more.state.step > 8


def test_patience_is_counted_across_an_interruption(tmp_path):
    uninterrupted = trainer_for(tmp_path / "uninterrupted", *SETTINGS, callbacks=[DegradeModel()])
    uninterrupted.fit()
    trainer_for(tmp_path / "parts", *SETTINGS, "training.steps=7", callbacks=[DegradeModel()]).fit()
    # Step 7 was the last one and therefore evaluated, unlike in the uninterrupted run.
    resumed = trainer_for(tmp_path / "parts", *SETTINGS, callbacks=[DegradeModel()])
    assert resumed.state.evaluations_since_best == 2
    assert resumed.is_finished
    interrupted = trainer_for(tmp_path / "cut", *SETTINGS, callbacks=[DegradeModel()])
    while interrupted.state.step < 7:
        interrupted.callbacks[0].on_step(interrupted, interrupted.step())
        if interrupted.state.step % 2 == 0:
            interrupted.evaluate()
    interrupted.save()
    resumed = trainer_for(tmp_path / "cut", *SETTINGS, callbacks=[DegradeModel()])
    resumed.fit()
    assert resumed.state.step == uninterrupted.state.step
    assert same_bits(weights(resumed), weights(uninterrupted))
    assert final_hashes(tmp_path / "cut") == final_hashes(tmp_path / "uninterrupted")


def test_keep_checkpoints_counts_without_the_best(tmp_path):
    settings = (*SETTINGS, "training.patience=6", "training.keep_checkpoints=3")
    trainer = trainer_for(tmp_path / "run", *settings, callbacks=[DegradeModel()])
    trainer.fit()
    assert RunFolder(tmp_path / "run").steps() == [16, 15, 14, 4]


def test_console_prints_why_training_stopped(tmp_path):
    changes = ("data.limit=24", "model.d_model=16", "training.learning_rate=0.5",
               "training.clip_norm=0", "evaluation.every=2", "evaluation.best_metric=exact_match",
               "training.patience=2", "training.steps=50",
               "evaluation.train_pairs=0", "logging.tensorboard=false")  # fmt: skip
    command = train_command(*changes)
    result = run(*command, folder=tmp_path)
    assert result.code == 0
    assert "stopped early at step" in result.out
    assert "no better exact_match since step" in result.out
    again = run(*command, folder=tmp_path)
    assert "runs/tiny is finished: stopped early at step" in again.out
