"""NaN and Inf in training are located, reported and never saved."""

import json
import math
import shutil

import pytest
import torch

from minitransformer.checkpoint import read_tensors, tensor_bytes
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.doctor.replay import replay
from minitransformer.errors import CheckpointError, DivergedError
from minitransformer.model.loss import TrainingLoss
from minitransformer.model.recurrent import Recurrence
from minitransformer.storage import json_with_checksum
from minitransformer.training import divergence
from minitransformer.training.divergence import (
    bisect_rows,
    locate_nonfinite,
    read_nonfinite_report,
)
from tests.support.processes import run, train_command
from tests.support.small_runs import NO_DROPOUT, same_bits, trainer_for, weights


def poison_word(trainer, word: str) -> None:
    """Give one source word an embedding whose scores overflow."""
    attention = trainer.model.encoder.layers[0].self_attention
    with torch.no_grad():
        # A sum of squares is inf on every processor; other sums may be inf or nan.
        attention.key.weight.copy_(attention.query.weight)
        trainer.model.encoder.embedding.weight[trainer.tokenizer.source.ids[word]] = 1e25


def step_until_diverged(trainer) -> str:
    def fifty_steps():
        for _ in range(50):
            trainer.step()

    with pytest.raises(DivergedError) as stopped:
        fifty_steps()
    return str(stopped.value)


def test_step_error_names_its_cause_and_keeps_the_weights(tmp_path):
    trainer = trainer_for(tmp_path / "run", *NO_DROPOUT)
    word = "car"
    numbers = [n for n, pair in trainer.corpus.train.numbered() if word in pair.source.split()]
    trainer.step()
    poison_word(trainer, word)
    before = []
    take_step = trainer.optimizer.step
    trainer.optimizer.step = lambda rate: (take_step(rate), before.append(weights(trainer)))
    message = step_until_diverged(trainer)
    step = trainer.state.step + 1
    assert same_bits(weights(trainer), before[-1])
    assert f"the gradient of step {step} is nan (loss nan, learning rate 0.0" in message
    assert "it begins in encoder.layers.0.self_attention.scores, with " in message
    assert "There is no checkpoint yet. Lower training.learning_rate, set or lower" in message
    named = [number for number in range(1, 300) if f"line {number} of en-es (train): " in message]
    assert named
    assert set(named) <= set(numbers)


def test_divergence_is_reported_when_its_batch_cannot_be_saved(tmp_path, monkeypatch):
    def full(path, files):
        raise OSError(28, "No space left on device")

    trainer = trainer_for(tmp_path / "run")
    trainer.step()
    trainer.save()
    poison_word(trainer, "car")
    monkeypatch.setattr(divergence, "replace_folder", full)
    message = step_until_diverged(trainer)
    assert "Checkpoints are unchanged. " in message
    assert message.endswith(
        "again with --fresh (its batch could not be saved: No space left on device)"
    )


def test_saved_batch_reproduces_the_divergence(tmp_path):
    trainer = trainer_for(tmp_path / "run")  # dropout on
    poison_word(trainer, "car")
    message = step_until_diverged(trainer)
    folder = tmp_path / "run" / "diverged" / f"step-{trainer.state.step + 1:06d}"
    assert f"minitransformer doctor --replay {folder}" in message
    report = read_nonfinite_report(folder)
    kept = read_tensors(folder / "model.safetensors")
    assert same_bits(kept, weights(trainer))
    training_loss = TrainingLoss(trainer.model, trainer.config.training).train()
    again = locate_nonfinite(training_loss, report.batch(), seed=report.seed, scale=report.scale)
    assert (again.part, tuple(again.rows)) == (report.part, report.rows)
    assert not any(parameter.grad is not None for parameter in trainer.model.parameters())


@pytest.mark.parametrize("rdrop_alpha", [0, 1])
def test_only_pair_with_a_nonfinite_gradient_is_located(tmp_path, rdrop_alpha):
    trainer = trainer_for(tmp_path / "run", f"training.rdrop_alpha={rdrop_alpha}")
    batch = trainer.stream.next()
    common = set(batch.source[0].tolist())
    for row in batch.source[1:]:
        common -= set(row.tolist())
    word = next(iter(common - {PAD_ID}))  # in the first row alone

    def explode(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.inf if gradient[word].abs().sum() > 0 else gradient

    trainer.model.encoder.embedding.weight.register_hook(explode)
    training_loss = TrainingLoss(trainer.model, trainer.config.training).train()
    nonfinite = locate_nonfinite(training_loss, batch, seed=7, scale=0.1)
    assert (nonfinite.part, nonfinite.rows) == ("the gradient of encoder.embedding.weight", [0])
    assert len(nonfinite.maxima) > 10
    assert all(maximum.value < 1e3 for maximum in nonfinite.maxima)


def test_nonfinite_weights_are_named(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    with torch.no_grad():
        trainer.model.head.bias[5] = torch.inf
    assert "it begins in the weights head.bias, with " in step_until_diverged(trainer)


def test_locate_nonfinite_finds_nothing_in_a_finite_batch(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    training_loss = TrainingLoss(trainer.model, trainer.config.training).train()
    assert locate_nonfinite(training_loss, trainer.stream.next(), seed=1, scale=0.1) is None


@pytest.mark.parametrize("bad", [[3], [0, 7], list(range(9)), []])
def test_bisect_rows_halves_as_long_as_a_half_is_bad(bad):
    found = bisect_rows(list(range(9)), lambda rows: bool(set(bad) & set(rows)))
    assert len(found) == 1 if bad else found == list(range(9))
    assert not bad or found[0] in bad


def test_nonfinite_evaluation_names_split_part_and_pair(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    poison_word(trainer, "car")
    with pytest.raises(DivergedError) as stopped:
        trainer.evaluate()
    message = str(stopped.value)
    assert "the train loss after step 0 is nan; it begins in encoder" in message
    assert " of en-es (train): " in message
    assert not read_nonfinite_report(tmp_path / "run/diverged/step-000000").is_training
    assert trainer.run_folder.metrics.read_bytes() == b""


@pytest.mark.parametrize("where", ["weights", "optimizer"])
def test_nonfinite_tensors_are_never_saved(tmp_path, where):
    trainer = trainer_for(tmp_path / "run")
    trainer.step()
    trainer.save()
    trainer.step()
    tensors = {"weights": trainer.model.state_dict(), "optimizer": trainer.optimizer.state}[where]
    next(value for value in tensors.values() if value.dim() == 2)[0, 0] = torch.nan
    with pytest.raises(DivergedError, match=r"step 2 is not saved: '.*' has NaN"):
        trainer.save()
    assert trainer.run_folder.steps() == [1]


def test_nonfinite_tensors_are_never_loaded(tmp_path, monkeypatch):
    trainer = trainer_for(tmp_path / "run")
    trainer.step()
    trainer.save()
    trainer.step()
    monkeypatch.setattr("minitransformer.training.trainer.find_nonfinite", lambda tensors: None)
    with torch.no_grad():
        trainer.model.head.bias[0] = torch.nan
    trainer.save()
    complaints: list[str] = []
    assert trainer.run_folder.load_newest(complaints, for_training=False).state.step == 1
    assert complaints[0].endswith("'head.bias' has NaN or infinite values")


def test_huge_learning_rate_ends_in_one_line_and_no_checkpoint(tmp_path):
    result = run(
        *train_command("training.learning_rate=1e12", "training.schedule=constant",
                       "model.dropout=0.1", "training.clip_norm=0"),
        folder=tmp_path,
    )  # fmt: skip
    assert result.code == 1
    assert result.err.startswith("error: the gradient of step ")
    assert result.err.count("\n") == 1
    assert not list((tmp_path / "runs/tiny/checkpoints").glob("step-*"))
    (folder,) = (tmp_path / "runs/tiny/diverged").iterdir()
    assert json.loads((folder / "batch.json").read_text())["content"]["part"]


def test_doctor_replays_a_saved_batch(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    poison_word(trainer, "car")
    step_until_diverged(trainer)
    (folder,) = (tmp_path / "run/diverged").iterdir()
    result = run("doctor", "--replay", folder, folder=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "encoder.embedding.tokens                1e+25\n" in result.out
    assert "first NaN or Inf: encoder.layers.0.self_attention.scores\n" in result.out
    assert all("car" in line for line in result.out.splitlines() if "→" in line)
    assert "→" in result.out
    model = read_tensors(folder / "model.safetensors")
    model["encoder.embedding.weight"].clamp_(-1, 1)
    (folder / "model.safetensors").write_bytes(tensor_bytes(model))
    result = run("doctor", "--replay", folder, folder=tmp_path)
    assert result.code == 1
    assert "all values are finite this time" in result.out
    result = run("doctor", "--replay", tmp_path, folder=tmp_path)
    assert result.err == f"error: {tmp_path} is not a saved batch of a diverged training\n"
    result = run("doctor", "--replay", "run", folder=tmp_path)
    assert result.err.endswith(f": did you mean run/diverged/{folder.name}?\n")
    shutil.move(folder, tmp_path / "moved")
    result = run("doctor", "--replay", "moved", folder=tmp_path)
    assert result.err.startswith("error: moved must stay inside its run: ")


def test_recurrent_model_is_located_and_replayed(tmp_path, capsys):
    trainer = trainer_for(
        tmp_path / "run", "model.kind=recurrent", "model.attention=multiplicative"
    )
    with torch.no_grad():
        trainer.model.decoder.attention.key.weight.fill_(1e38)
    message = step_until_diverged(trainer)
    assert "it begins in decoder.attention.scores, with " in message
    (folder,) = (tmp_path / "run/diverged").iterdir()
    assert replay(folder) == 0
    out = capsys.readouterr().out
    assert "first NaN or Inf: decoder.attention.scores\n" in out
    stages = [line.split()[0] for line in out.splitlines() if line.startswith("decoder.layers.0")]
    gates = ("reset", "update", "candidate", "state", "before")
    assert stages == [f"decoder.layers.0.{gate}" for gate in gates]


def break_second_word(recurrence: Recurrence) -> None:
    """Make the candidate NaN from the second word on."""
    step_of = recurrence.step

    def broken_step(input_gates, state):
        step, after = step_of(input_gates, state)
        nan = torch.where(state[0].any(dim=1, keepdim=True), torch.nan, 1.0)
        step = step._replace(candidate=step.candidate * nan, state=step.state * nan)
        return step, (after[0] * nan, *after[1:])

    recurrence.step = broken_step


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("direction", ["forward_rnn", "backward_rnn"])
def test_candidate_is_named_before_the_gates_that_pass_nan_on(tmp_path, cell, direction):
    trainer = trainer_for(
        tmp_path / "run", "model.kind=recurrent", f"model.cell={cell}", "model.bidirectional=true"
    )
    break_second_word(trainer.model.encoder.layers[0].get_submodule(direction))
    training_loss = TrainingLoss(trainer.model, trainer.config.training).train()
    batch = trainer.stream.next()
    nonfinite = locate_nonfinite(training_loss, batch, seed=1, scale=0.1)
    assert nonfinite.part == nonfinite.maxima[-1].name == f"encoder.layers.0.{direction}.candidate"
    assert all(math.isfinite(maximum.value) for maximum in nonfinite.maxima[:-1])
    several = (batch.source != PAD_ID).sum(dim=1) > 1
    assert nonfinite.rows == several.nonzero().flatten().tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"sources": []},
        {"sources": [["x"]]},
        {"step": "1"},
        {"another": 1},
        {"rows": None},
        {"seed": 2**70},
        {"start_id": -5},
    ],
)
def test_saved_batch_is_validated(tmp_path, change):
    trainer = trainer_for(tmp_path / "run")
    poison_word(trainer, "car")
    step_until_diverged(trainer)
    (folder,) = (tmp_path / "run/diverged").iterdir()
    content = json.loads((folder / "batch.json").read_text())["content"]
    (folder / "batch.json").write_bytes(json_with_checksum(content | change))
    with pytest.raises(CheckpointError, match=r"batch\.json: "):
        read_nonfinite_report(folder)
