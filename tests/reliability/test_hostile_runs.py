"""Hostile run folders with valid checksums are refused, and nothing is executed or changed."""

import contextlib
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from minitransformer import checkpoint as weights
from minitransformer.checkpoint import read_tensors, tensor_bytes
from minitransformer.errors import CheckpointError, UserError
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.run import RunFolder
from minitransformer.storage import checksum, json_with_checksum
from minitransformer.translator import Translator
from tests.support.processes import run
from tests.support.small_runs import trainer_for


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "run"
    trainer = trainer_for(folder)
    trainer.step()
    trainer.save()
    return folder


@pytest.fixture
def hostile(saved, tmp_path) -> Path:
    """Copy a run with a single checkpoint, for a test to damage."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def content_of(run_path: Path) -> dict:
    return json.loads((run_path / "checkpoints/step-000001/state.json").read_text())["content"]


def write_content(run_path: Path, content: dict) -> None:
    path = run_path / "checkpoints/step-000001/state.json"
    path.write_bytes(json_with_checksum(content))


def write_tensors(run_path: Path, content: bytes, name: str = "model.safetensors") -> None:
    (run_path / "checkpoints/step-000001" / name).write_bytes(content)
    state = content_of(run_path)
    state["files"][name] = checksum(content)
    write_content(run_path, state)


def assert_refused(run_path: Path, match: str) -> None:
    """Check that both translating and training refuse a run."""
    with pytest.raises(CheckpointError, match=match):
        Translator.load(run_path)
    with pytest.raises(CheckpointError, match=match):
        trainer_for(run_path)


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["pickle", "torch", "torch legacy", "zip", "nested"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_pickle_in_a_checkpoint_is_never_loaded(hostile, tmp_path, kind, name):
    path, proof = tmp_path / "payload", tmp_path / "exploded"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Payload(proof)))
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", pickle.dumps(Payload(proof)))
    else:
        content = {"a": [torch.ones(2), Payload(proof)]} if kind == "nested" else Payload(proof)
        torch.save(content, path, _use_new_zipfile_serialization=kind != "torch legacy")
    if name == "state.json":
        (hostile / "checkpoints/step-000001" / name).write_bytes(path.read_bytes())
    else:
        write_tensors(hostile, path.read_bytes(), name)
    with pytest.raises(CheckpointError, match=r"not a safetensors file|damaged"):
        RunFolder(hostile).load(1, for_training=True)
    assert not proof.exists()


def header(size: int, text: bytes) -> bytes:
    return size.to_bytes(8, "little") + text


def entry(shape, begin, end, dtype="F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "content",
    [
        header(2**63, b"{}"),
        header(2**63 - 1, b"{}" + b" " * 100),
        header(200_000_000, b"{}"),
        header(2, b"{}")[:6],
        header(40_000, b"[" * 40_000),
        header(60_000, b'{"a":' * 12_000),
        b"",
        *(
            header(len(text := json.dumps(tensors).encode()), text) + bytes(16)
            for tensors in (
                {"a": entry([2], 0, 8), "b": entry([2], 4, 12)},  # overlapping
                {"a": entry([2], 0, 8), "b": entry([1], 12, 16)},  # with a gap between them
                {"a": entry([10**18], 0, 16)},
                {"a": entry([4], 16, 0)},
                {"a": entry([-4], 0, 16)},
                {"a": entry([4], 0, 16, "F99")},
                {"a": {"dtype": "F32"}},
            )
        ),
    ],
)
def test_inconsistent_safetensors_headers_are_refused(hostile, content):
    write_tensors(hostile, content)
    assert_refused(hostile, "not a safetensors file")


def change_tensors(hostile: Path, change) -> None:
    model = read_tensors(hostile / "checkpoints/step-000001/model.safetensors")
    write_tensors(hostile, tensor_bytes(change(model)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda model: model | {"head.bias": model["head.bias"][:-1]}, "numbers|the model has"),
        (lambda model: model | {"head.bias": model["head.bias"][None]}, "the model has"),
        (lambda model: model | {"head.bias": model["head.bias"].double()}, "the model has"),
        (lambda model: model | {"head.bias": model["head.bias"].int()}, "the model has"),
        (
            lambda model: {n: v for n, v in model.items() if n != "head.bias"},
            "numbers|has no tensor",
        ),
        (lambda model: model | {"more": torch.ones(0)}, "has a tensor 'more'"),
        (lambda model: model | {"head.bias": model["head.bias"] * torch.nan}, "NaN or infinite"),
        (lambda model: {}, "numbers|has no tensor"),
    ],
)
def test_mismatched_model_tensors_are_refused(hostile, change, match):
    change_tensors(hostile, change)
    assert_refused(hostile, match)


def test_mismatched_optimizer_state_is_refused(hostile):
    path = hostile / "checkpoints/step-000001/optimizer.safetensors"
    state = read_tensors(path)
    for wrong in (
        state | {"head.bias.exp_avg": torch.zeros(3)},
        state | {"head.bias.exp_avg": state["head.bias.exp_avg"].half()},
        {name: value for name, value in state.items() if name != "head.bias.step"},
    ):
        write_tensors(hostile, tensor_bytes(wrong), "optimizer.safetensors")
        with pytest.raises(CheckpointError, match="optimizer state belongs to other param"):
            trainer_for(hostile)


def test_config_larger_than_its_weights_allocates_no_memory(hostile, monkeypatch):
    path = hostile / "config.yaml"
    text = path.read_text().replace("d_model: 16", "d_model: 16384")
    path.write_text(text.replace("num_encoder_layers: 1", "num_encoder_layers: 256"))
    state = content_of(hostile)
    del state["settings"]  # as in older runs, so that the settings cannot be compared
    write_content(hostile, state)
    built = []

    def build_and_record(*arguments: object, **options: object) -> EncoderDecoder:
        built.append(build_model(*arguments, **options))
        return built[-1]

    monkeypatch.setattr(weights, "build_model", build_and_record)
    with pytest.raises(CheckpointError, match=r"numbers, the config needs 207,771,598,903"):
        Translator.load(hostile)
    [model] = built
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_file_larger_than_memory_is_not_read(hostile, name):
    path = hostile / "checkpoints/step-000001" / name
    with path.open("r+b") as file:
        file.truncate(2**42)  # a sparse file, which takes no space
    assert_refused(hostile, "larger than")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"state": {"step": "1"}}, "state.step: expected a whole number"),
        ({"state": {"step": 1, "epoch": -1}}, "state.epoch: must be from 0"),
        ({"state": {"step": 1, "best_step": "../../x"}}, "state.best_step: expected"),
        ({"state": {"step": 1, "metrics_bytes": 2**70}}, "state.metrics_bytes: must be"),
        ({"state": {"step": 1, "seconds": float("nan")}}, "state.seconds: must be"),
        ({"state": {"step": 1, "surprise": 1}}, "unknown key 'state.surprise'"),
        ({"state": {"step": 2}}, "is the state of step 2"),
        ({"state": []}, "'state' is missing"),
        ({"files": None}, "'files' is missing"),
        ({"files": {"model.safetensors": 3}}, "a checksum is missing"),
        ({"tokenizer": {"source.tsv": "0"}}, "tokenizer: damaged"),
        ({"format": [1]}, r"format \[1\], this version reads"),
    ],
)
def test_invalid_state_is_refused_by_key(hostile, change, match):
    write_content(hostile, content_of(hostile) | change)
    assert_refused(hostile, match)


@pytest.mark.parametrize("content", [5, "x", None, [], 1.5, {}])
def test_state_file_with_other_content_is_refused(hostile, content):
    document = {"sha256": checksum(json.dumps(content).encode()), "content": content}
    (hostile / "checkpoints/step-000001/state.json").write_text(json.dumps(document))
    assert_refused(hostile, "damaged" if content != {} else "format None")


@pytest.mark.parametrize("settings", [5, [], {"model": 5}, {"model": {"dropout": {}}}, {"x": 1},
                                      {"model": {"position": "rotary"}}])  # fmt: skip
def test_malformed_settings_are_ignored_or_refused(hostile, settings):
    write_content(hostile, content_of(hostile) | {"settings": settings})
    if not isinstance(settings, dict):
        assert_refused(hostile, "'settings' is missing or not a mapping")
    elif settings == {"model": {"dropout": {}}}:
        assert_refused(hostile, "model.dropout is 0.1, not a section")
    elif settings == {"model": {"position": "rotary"}}:  # a key of format 1; this run has format 2
        assert_refused(hostile, "step-000001 has an unknown setting 'model.position'")
    else:
        assert Translator.load(hostile).checkpoint == "step-000001"


@pytest.mark.parametrize(
    "name",
    ["config.yaml", "metrics.jsonl", "events.out.tfevents", "walk", "projector", "diverged",
     "tokenizer", "tokenizer/source.tsv", "checkpoints", "checkpoints/last",
     "checkpoints/step-000001", "checkpoints/step-000001/model.safetensors",
     "checkpoints/.step-000002.part"],
)  # fmt: skip
def test_symbolic_link_is_never_followed(hostile, tmp_path, name):
    outside = tmp_path / "outside"
    path = hostile / name
    if path.exists():
        path.rename(outside)
    else:
        outside.mkdir()
    is_folder = outside.is_dir()
    before = sorted(outside.rglob("*")) if is_folder else outside.read_bytes()
    path.symlink_to(outside)
    assert_refused(hostile, f"{name}: a symbolic link")
    with contextlib.suppress(CheckpointError):  # a link inside a checkpoint is only moved aside
        trainer_for(hostile, fresh=True).fit()
    assert (sorted(outside.rglob("*")) if is_folder else outside.read_bytes()) == before


def test_named_pipe_is_not_opened(hostile):
    for name in ("model.safetensors", "state.json"):
        path = hostile / "checkpoints/step-000001" / name
        path.unlink()
        os.mkfifo(path)
        assert_refused(hostile, f"{name}: not a regular file")
    (hostile / "checkpoints/last").unlink()
    os.mkfifo(hostile / "checkpoints/last")
    assert RunFolder(hostile).pointed("last") is None


@pytest.mark.parametrize("text", ["../../outside", "/etc", "step-000001/../../x", "step-9" * 99])
def test_pointer_to_anything_but_a_step_is_ignored(hostile, text):
    for name in ("last", "best"):
        (hostile / "checkpoints" / name).write_text(text)
        assert RunFolder(hostile).pointed(name) is None
    assert Translator.load(hostile).checkpoint == "step-000001"


def test_init_from_never_loads_a_pickle(tmp_path):
    torch.save(Payload(tmp_path / "exploded"), tmp_path / "weights.safetensors")
    with pytest.raises(UserError, match="not a safetensors file"):
        trainer_for(tmp_path / "run", f"training.init_from={tmp_path / 'weights.safetensors'}")
    assert not (tmp_path / "exploded").exists()


def test_commands_report_an_invalid_state_in_one_line(hostile, tmp_path):
    write_content(hostile, content_of(hostile) | {"state": {"step": "1"}})
    for command in (
        ("translate.py", "--run", hostile, "Hello"),
        ("evaluate", "--run", hostile),
        ("export", "--run", hostile, "--to", tmp_path / "out"),
    ):
        result = run(*command, folder=tmp_path)
        assert (result.code, result.out) == (1, ""), command
        assert result.err.startswith(f"error: {hostile} has no valid checkpoint: ")
        assert result.err.count("\n") == 1
