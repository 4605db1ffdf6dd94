"""Checkpoints are saved atomically, verified when loaded, and pruned."""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import storage
from minitransformer.checkpoint import read_tensors, tensor_bytes
from minitransformer.errors import CheckpointError
from minitransformer.run import RunFolder, TrainerState, runs_newest_first
from minitransformer.settings import Config
from minitransformer.storage import json_with_checksum, read_json_with_checksum
from tests.support.small_runs import same_bits, small_config, trainer_for, weights


def saved_run(folder: Path, *steps: int, keep: int = 9) -> RunFolder:
    trainer = trainer_for(folder)
    for step in steps:
        trainer.state.step = step
        tensors = {"a": torch.full((3,), float(step))}
        trainer.run_folder.save_checkpoint(trainer.state, tensors, tensors, config_keeping(keep))
    return RunFolder(folder)


def config_keeping(count: int, save_every: int = 1) -> Config:
    return small_config(f"training.keep_checkpoints={count}", f"training.save_every={save_every}")


def test_run_is_a_folder_of_plain_files(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    trainer.fit()
    files = {
        str(path.relative_to(tmp_path / "run"))
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    assert files == {
        "config.yaml", "metrics.jsonl", "tokenizer/source.tsv", "tokenizer/target.tsv",
        "checkpoints/last",
        *(f"checkpoints/step-{step:06d}/{name}" for step in (10, 12)
          for name in ("model.safetensors", "optimizer.safetensors", "state.json")),
    }  # fmt: skip
    assert (tmp_path / "run/checkpoints/last").read_text() == "step-000012\n"
    assert RunFolder(tmp_path / "run").load_config() == small_config()


def test_newest_checkpoints_are_kept(tmp_path):
    assert saved_run(tmp_path / "run", 1, 2, 3, 4, 5, keep=2).steps() == [5, 4]


def test_checkpoint_of_a_signal_replaces_no_scheduled_one(tmp_path):
    folder = saved_run(tmp_path / "run", 3, 6)
    for step, expected in ((7, [7, 6, 3]), (8, [8, 6, 3]), (9, [9, 6])):
        folder.save_checkpoint(
            TrainerState(step=step), {"a": torch.ones(3)}, {}, config_keeping(2, save_every=3)
        )
        assert folder.steps() == expected


def test_fallback_is_kept_before_the_first_scheduled_save(tmp_path):
    folder = saved_run(tmp_path / "run")
    for step in (1, 2, 4):
        folder.save_checkpoint(
            TrainerState(step=step), {"a": torch.ones(3)}, {}, config_keeping(2, save_every=10)
        )
    assert folder.steps() == [4, 2]


def test_checkpoint_is_loaded_with_the_same_bits(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    trainer.fit()
    checkpoint = trainer.run_folder.load_newest([], for_training=True)
    assert checkpoint.state == trainer.state
    assert same_bits(checkpoint.model, weights(trainer))
    assert len(checkpoint.optimizer) == 3 * len(checkpoint.model)
    assert same_bits(checkpoint.optimizer, trainer.optimizer.state)


def test_tied_weights_are_saved_once_and_tied_again(tmp_path):
    settings = ("tokenizer.joint=true", "model.tie_embeddings=all")
    trainer = trainer_for(tmp_path / "run", *settings)
    trainer.fit()
    saved = trainer.run_folder.load_newest([], for_training=False).model
    assert [name for name in saved if "embedding" in name or name == "head.weight"] == [
        "encoder.embedding.weight"
    ]
    again = trainer_for(tmp_path / "run", *settings)
    assert again.model.head.weight is again.model.encoder.embedding.weight
    assert same_bits(weights(again), weights(trainer))


@pytest.mark.parametrize("point", ["write", "fsync", "rename", "replace"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_failed_save_leaves_the_previous_checkpoint(tmp_path, monkeypatch, point, nth):
    folder = saved_run(tmp_path / "run", 1)
    calls = 0

    def failing(original):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(28, "No space left on device")
            return original(*arguments)

        return call

    targets = {
        "write": (storage, "write_file"), "fsync": (os, "fsync"), "rename": (Path, "rename"),
        "replace": (os, "replace"),
    }  # fmt: skip
    owner, name = targets[point]
    monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    message = ""
    try:
        folder.save_checkpoint(TrainerState(step=2), {"a": torch.ones(3)}, {}, config_keeping(2))
    except CheckpointError as error:
        message = str(error)
    monkeypatch.undo()
    assert ("(No space left on device): " in message) == (calls >= nth)
    complaints: list[str] = []
    step = RunFolder(tmp_path / "run").load_newest(complaints, for_training=True).state.step
    assert step in (1, 2)
    assert complaints == []
    folder.save_checkpoint(TrainerState(step=3), {"a": torch.ones(3)}, {}, config_keeping(2))
    assert folder.load_newest([], for_training=True).state.step == 3


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "swap", "empty"])
def test_damaged_checkpoint_is_reported_and_the_previous_used(tmp_path, name, damage):
    folder = saved_run(tmp_path / "run", 1, 2)
    path = folder.step_path(2) / name
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "delete":
        path.unlink()
    elif damage == "swap":
        path.write_bytes((folder.step_path(1) / name).read_bytes())
    else:
        path.write_bytes(b"")
    complaints: list[str] = []
    checkpoint = folder.load_newest(complaints, for_training=True)
    assert checkpoint.state.step == 1
    assert len(complaints) == 1
    assert "step-000002" in complaints[0]


def test_run_without_a_valid_checkpoint_is_refused(tmp_path):
    folder = saved_run(tmp_path / "run", 1)
    (folder.step_path(1) / "state.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"has no valid checkpoint: .*damaged"):
        folder.load_newest([], for_training=True)


def test_newer_format_is_refused_by_number(tmp_path):
    folder = saved_run(tmp_path / "run", 1)
    path = folder.step_path(1) / "state.json"
    content = json.loads(path.read_bytes())["content"] | {"format": 99}
    path.write_bytes(json_with_checksum(content))
    with pytest.raises(CheckpointError, match="format 99, this version reads formats 1 and 2"):
        folder.load(1, for_training=True)


@pytest.mark.parametrize("text", ["../../etc", "step-1", "", "/tmp/step-000001", "\x00"])
def test_pointer_that_names_no_step_is_ignored(tmp_path, text):
    folder = saved_run(tmp_path / "run", 1)
    (folder.checkpoints / "best").write_text(text)
    assert folder.pointed("best") is None


def test_pickle_is_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "exploded",)

    torch.save(Bomb(), tmp_path / "bomb.safetensors")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_tensors(tmp_path / "bomb.safetensors")
    assert not (tmp_path / "exploded").exists()


def test_move_aside_renames_the_old_run(tmp_path):
    folder = saved_run(tmp_path / "run", 1)
    assert folder.move_aside() == tmp_path / "run.old-1"
    assert folder.move_aside() is None  # there is nothing left to move
    saved_run(tmp_path / "run", 1)
    assert folder.move_aside() == tmp_path / "run.old-2"
    assert RunFolder(tmp_path / "run.old-1").steps() == [1]


def test_move_aside_refuses_a_folder_that_is_not_a_run(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    with pytest.raises(CheckpointError, match="is not a run folder"):
        RunFolder(tmp_path / "thesis").move_aside()


def test_folder_with_a_foreign_config_is_left_unchanged(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.yaml").write_text("mine: precious")
    with pytest.raises(CheckpointError, match="is not a run folder"):
        trainer_for(tmp_path / "project")
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["config.yaml"]
    assert (tmp_path / "project" / "config.yaml").read_text() == "mine: precious"


def test_run_killed_before_its_first_checkpoint_starts_over(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / ".tokenizer.part").mkdir()
    assert trainer_for(tmp_path / "run").state.step == 0


def test_save_deletes_later_checkpoints_but_not_itself(tmp_path):
    folder = saved_run(tmp_path / "run", 5, 27, 30)
    folder.save_checkpoint(TrainerState(step=6), {"a": torch.ones(3)}, {}, config_keeping(2))
    assert folder.steps() == [6, 5]
    assert folder.pointed("last") == 6


def test_changed_vocabulary_is_refused(tmp_path):
    folder = saved_run(tmp_path / "run", 1)
    path = folder.path / "tokenizer" / "target.tsv"
    path.write_bytes(path.read_bytes().replace(b"una\t", b"uma\t"))
    with pytest.raises(CheckpointError, match="tokenizer: damaged"):
        folder.load_newest([], for_training=False)


def test_lost_metrics_are_noted_and_not_made_up(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    trainer.fit()
    trainer.run_folder.metrics.write_bytes(b"{}\n")
    again = trainer_for(tmp_path / "run", "training.steps=13")
    assert any("has lost some lines" in note for note in again.notes)
    assert again.run_folder.metrics.read_bytes() == b"{}\n"
    trainer.run_folder.metrics.unlink()
    again = trainer_for(tmp_path / "run", "training.steps=13")
    again.fit()
    assert len(again.run_folder.metrics.read_text().splitlines()) == 2


def test_runs_are_found_newest_first(tmp_path):
    for number, name in enumerate(["old", "new", "unfinished"]):
        folder = saved_run(tmp_path / name, *([] if name == "unfinished" else [1]))
        if name != "unfinished":
            os.utime(folder.step_path(1), (number, number))
    (tmp_path / "a file").touch()
    assert [run.name for run in runs_newest_first(tmp_path)] == ["new", "old"]
    assert runs_newest_first(tmp_path / "absent") == []


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.floats(allow_nan=False)))
def test_json_with_checksum_is_read_back_unless_changed(data):
    content = json_with_checksum(data)
    assert read_json_with_checksum(content, "here") == data
    changed = json.loads(content)
    changed["content"]["another"] = 1
    for damaged in (json.dumps(changed).encode(), content[:-1], b"", b"[]", b"{}", b"\xff"):
        with pytest.raises(CheckpointError, match="here: damaged"):
            read_json_with_checksum(damaged, "here")


def test_transposed_tensor_is_saved_transposed():
    base = torch.arange(6.0).reshape(2, 3)
    from safetensors.torch import load

    assert torch.equal(load(tensor_bytes({"a": base.T}))["a"], base.T)
