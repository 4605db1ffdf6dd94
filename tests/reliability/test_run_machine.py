"""A run that is stepped, saved, killed and resumed in any order equals an uninterrupted run."""

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import seed as seed_of_search
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from minitransformer.checkpoint import model_tensors, tensor_bytes
from minitransformer.data.batching import fold_in
from minitransformer.storage import checksum
from minitransformer.training.trainer import INITIALIZATION, Trainer
from tests.support.run_results import metrics_without_clock
from tests.support.small_runs import trainer_for

EVERY = 4  # steps between evaluations; an epoch has three batches
PAIRS = b"a b\tx y\na\tx\nb a b\ty x y\nb b\ty\n"
CHANGES = ("training.steps=10", f"evaluation.every={EVERY}", "data.limit=0",
           "model.d_model=8", "training.batch_tokens=8", "model.max_length=6")  # fmt: skip


class Reference(NamedTuple):
    """An uninterrupted run after each of its steps."""

    hashes: list[str]
    losses: list[float]
    rows: list[list[dict]]  # metrics.jsonl


def hash_of(trainer: Trainer) -> str:
    """Return a checksum of the weights and the optimizer state."""
    state = {f"optimizer.{name}": value for name, value in trainer.optimizer.state.items()}
    return checksum(tensor_bytes(model_tensors(trainer.model) | state))


def training_loss(trainer: Trainer) -> float:
    """Return the loss of the training pairs without logging it."""
    return trainer.evaluate_splits()["train"].loss.mean


def take_step(trainer: Trainer) -> None:
    """Do what Trainer.fit does between two saves."""
    trainer.step()
    if trainer.state.step % EVERY == 0 or trainer.is_finished:
        trainer.evaluate()


def trainer_in(folder: Path) -> Trainer:
    (folder / "pairs.tsv").write_bytes(PAIRS)
    return trainer_for(folder / "run", *CHANGES, f"data.train={folder / 'pairs.tsv'}")


def reference_of(folder: Path) -> Reference:
    trainer = trainer_in(folder)
    assert trainer.config.model.dropout > 0
    trainer.evaluate()
    reference = Reference([], [], [])
    while True:
        reference.hashes.append(hash_of(trainer))
        reference.losses.append(training_loss(trainer))
        reference.rows.append(metrics_without_clock(trainer.run_folder.path))
        if trainer.is_finished:
            return reference
        take_step(trainer)


@cache
def shared_reference() -> Reference:
    with tempfile.TemporaryDirectory() as folder:
        return reference_of(Path(folder))


class RunMachine(RuleBasedStateMachine):
    """A real trainer with a small config, compared with an uninterrupted run."""

    reference = staticmethod(shared_reference)

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed):
        self.folder = Path(tempfile.mkdtemp())
        self.saved_step = 0
        self.trainer: Trainer | None = None
        self.resume(seed)

    @precondition(lambda self: self.trainer and not self.trainer.is_finished)
    @rule(count=st.integers(1, 3), then_save=st.booleans())
    def step(self, count, then_save):
        self.has_evaluated = False
        for _ in range(count):
            if not self.trainer.is_finished:
                take_step(self.trainer)
        if then_save:
            self.save()

    @precondition(lambda self: self.trainer and self.trainer.state.step)
    @rule()
    def save(self):  # Trainer.fit saves nothing before the first step
        self.trainer.save()
        self.saved_step = self.trainer.state.step

    @precondition(lambda self: self.trainer)
    @rule(partial_row=st.booleans(), partial_save=st.booleans())
    def kill(self, partial_row, partial_save):
        run = self.trainer.run_folder
        self.trainer = None  # nothing is saved
        if partial_row:
            with run.metrics.open("ab") as file:
                file.write(b'{"step": 7, "split": "tra')
        if partial_save:
            (run.checkpoints / ".step-000099.part").mkdir(exist_ok=True)

    @precondition(lambda self: not self.trainer)
    @rule(seed=st.integers(0, 2**32))
    def resume(self, seed):
        self.has_evaluated = False
        torch.manual_seed(seed)  # another process starts with another random state
        self.trainer = trainer_in(self.folder)
        assert self.trainer.state.step == self.saved_step
        if not self.saved_step:
            self.trainer.evaluate()

    @precondition(lambda self: self.trainer and not self.has_evaluated)
    @rule()
    def evaluate(self):
        self.has_evaluated = True
        assert training_loss(self.trainer) == self.reference().losses[self.trainer.state.step]

    @invariant()
    def equals_the_uninterrupted_run(self):
        if trainer := self.trainer:
            step = trainer.state.step
            assert hash_of(trainer) == self.reference().hashes[step]
            assert metrics_without_clock(trainer.run_folder.path) == self.reference().rows[step]

    def teardown(self):
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)


RunMachine.TestCase.settings = settings(
    max_examples=settings().max_examples // 8, stateful_step_count=25
)
TestRunMachine = RunMachine.TestCase


@pytest.mark.slow
def test_run_machine_notices_dropout_that_depends_on_earlier_steps(tmp_path, monkeypatch):
    """If dropout is seeded only once at the start, a resumed run draws other masks."""
    seed, once = torch.manual_seed, fold_in(1, INITIALIZATION)
    monkeypatch.setattr(torch, "manual_seed", lambda value: seed(value) if value == once else None)
    broken = reference_of(tmp_path)

    class Broken(RunMachine):
        reference = staticmethod(lambda: broken)

    quick = settings(max_examples=200, phases=[Phase.generate], database=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(seed_of_search(4)(Broken), settings=quick)
