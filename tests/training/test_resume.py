"""A run resumes only with the same settings, the same pairs and undamaged files."""

import dataclasses
import shutil
import typing
from pathlib import Path

import pytest

from minitransformer.errors import CheckpointError
from minitransformer.storage import checksum
from minitransformer.training.resume import changed_settings
from tests.support.processes import run
from tests.support.run_results import final_hashes
from tests.support.small_runs import same_bits, small_config, trainer_for, weights

RESUMABLE = {
    "training.steps",
    "training.save_every",
    "training.keep_checkpoints",
    "training.patience",
    "training.processes",
    "training.join_timeout",
    "training.step_timeout",
    "evaluation.every",
    "evaluation.train_pairs",
    "evaluation.batch_size",
    "evaluation.average_checkpoints",
    "evaluation.samples",
    "logging.tensorboard",
    "logging.every",
    "logging.examples",
}
PAIRS = [(f"I see {number}", f"Veo {number}") for number in "abcdefgh"]


def other_value(value, hint):
    if typing.get_origin(hint) is typing.Literal:
        return next((each for each in typing.get_args(hint) if each != value), value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return ("x",) if isinstance(value, tuple) else "x"


def test_each_changed_setting_is_resumable_or_refused_by_name(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    for section in dataclasses.fields(trainer.config):
        old = getattr(trainer.config, section.name)
        hints = typing.get_type_hints(type(old))
        for key in dataclasses.fields(old):
            other = other_value(getattr(old, key.name), hints[key.name])
            new = dataclasses.replace(old, **{key.name: other})
            config = dataclasses.replace(trainer.config, **{section.name: new})
            name = f"{section.name}.{key.name}"
            if name in RESUMABLE or section.name in ("data", "filters"):
                assert list(changed_settings(trainer.run_folder, config)) == [name]
            else:
                with pytest.raises(CheckpointError, match=rf"other settings \({name}: "):
                    changed_settings(trainer.run_folder, config)


def test_all_changed_keys_are_listed_at_once(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    changed = small_config("training.seed=9", "model.dropout=0.2", "training.steps=99")
    with pytest.raises(CheckpointError) as refusal:
        changed_settings(trainer.run_folder, changed)
    assert (
        "was started with other settings (model.dropout: 0.1, now 0.2; training.seed: 1, now 9); "
        "use --fresh to start over, or --run for another folder" in str(refusal.value)
    )


def write_pairs(path: Path, pairs) -> Path:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return path


def test_same_pairs_from_another_file_resume_to_the_same_bits(tmp_path):
    first, moved = (write_pairs(tmp_path / name, PAIRS) for name in ("a.tsv", "b.tsv"))
    uninterrupted = trainer_for(tmp_path / "uninterrupted", f"data.train={first}")
    uninterrupted.fit()
    stopped = trainer_for(tmp_path / "stopped", f"data.train={first}", "training.steps=12")
    for _ in range(6):
        stopped.step()
    stopped.save()
    resumed = trainer_for(tmp_path / "stopped", f"data.train={moved}")
    assert resumed.notes[0].startswith("changed since the run began: data.train: ")
    resumed.fit()
    assert same_bits(weights(resumed), weights(uninterrupted))


@pytest.mark.parametrize(
    "pairs",
    [PAIRS[1:], PAIRS[::-1], [*PAIRS, ("I see i", "Veo i")], [("I see A", "Veo a"), *PAIRS[1:]]],
    ids=["one less", "another order", "one more", "another letter"],
)
def test_changed_pairs_are_refused_with_the_keys_that_changed(tmp_path, pairs):
    first = write_pairs(tmp_path / "a.tsv", PAIRS)
    trainer = trainer_for(tmp_path / "run", f"data.train={first}")
    trainer.step()
    trainer.save()
    write_pairs(first, pairs)
    with pytest.raises(CheckpointError, match="begun with other sentence pairs than"):
        trainer_for(tmp_path / "run", f"data.train={first}")
    second = write_pairs(tmp_path / "b.tsv", pairs)
    with pytest.raises(CheckpointError, match=r"has now \(data\.train: .*, now .*\); use"):
        trainer_for(tmp_path / "run", f"data.train={second}")


def test_config_that_does_not_fit_the_weights_is_refused_by_key(tmp_path):
    from minitransformer.translator import Translator

    trainer_for(tmp_path / "run").fit()
    path = tmp_path / "run" / "config.yaml"
    path.write_text(
        path.read_text().replace("decoder_start_token: eos", "decoder_start_token: bos")
    )
    expected = (
        r"not what step-000012 was trained with \(model.decoder_start_token is 'bos', not 'eos'\)"
    )
    with pytest.raises(CheckpointError, match=expected):
        Translator.load(tmp_path / "run")
    for start in ("eos", "bos"):
        with pytest.raises(CheckpointError, match=expected):
            trainer_for(tmp_path / "run", f"model.decoder_start_token={start}", "training.steps=13")


@pytest.mark.parametrize("damage", ["flip", "delete", "delete all"])
def test_damaged_tokenizer_is_rebuilt_from_the_corpus(tmp_path, damage):
    trainer_for(tmp_path / "run").fit()
    folder = tmp_path / "run" / "tokenizer"
    before = {path.name: checksum(path.read_bytes()) for path in folder.iterdir()}
    path = folder / "target.tsv"
    if damage == "flip":
        path.write_bytes(path.read_bytes().replace(b"una\t", b"uma\t"))
    else:
        path.unlink()
    if damage == "delete all":
        (folder / "source.tsv").unlink()
    again = trainer_for(tmp_path / "run", "training.steps=13")
    assert any(note.endswith("; made again from en-es") for note in again.notes)
    assert again.state.step == 12
    assert {path.name: checksum(path.read_bytes()) for path in folder.iterdir()} == before


def test_damaged_tokenizer_is_not_rebuilt_from_another_corpus(tmp_path):
    trainer_for(tmp_path / "run").fit()
    (tmp_path / "run/tokenizer/target.tsv").unlink()
    with pytest.raises(CheckpointError, match=r"target\.tsv: No such file"):
        trainer_for(tmp_path / "run", "data.limit=20")
    assert not (tmp_path / "run/tokenizer/target.tsv").exists()


@pytest.mark.parametrize("lost", ["checkpoints", "config.yaml", "metrics.jsonl", "tokenizer"])
def test_fresh_moves_an_incomplete_run_aside(tmp_path, lost):
    trainer_for(tmp_path / "run").fit()
    path = tmp_path / "run" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    fresh = trainer_for(tmp_path / "run", fresh=True)
    assert fresh.state.step == 0
    assert (tmp_path / "run.old-1").is_dir()


def test_run_without_a_valid_checkpoint_suggests_fresh(tmp_path):
    trainer_for(tmp_path / "run").fit()
    for path in (tmp_path / "run/checkpoints").glob("step-*/model.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="; --fresh starts over and moves this aside"):
        trainer_for(tmp_path / "run")


def test_batch_index_beyond_the_epoch_is_refused(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    trainer.step()
    trainer.state.batch_index = 10**6
    trainer.save()
    with pytest.raises(CheckpointError, match="batch 1000000 of an epoch that has"):
        trainer_for(tmp_path / "run")


def test_train_command_refuses_changed_settings_and_keeps_the_run(tmp_path):
    sets = ("--set", "training.steps=4", "--set", "model.d_model=8", "--set", "data.limit=24")
    command = ("train.py", "--config", "tiny.yaml", *sets)
    assert run(*command, folder=tmp_path).code == 0
    before = final_hashes(tmp_path / "runs/tiny")
    refused = run(*command, "--set", "model.norm=pre", folder=tmp_path)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "error: runs/tiny was started with other settings (model.norm: 'none', now 'pre'); "
        "use --fresh to start over, or --run for another folder\n"
    )
    assert final_hashes(tmp_path / "runs/tiny") == before
