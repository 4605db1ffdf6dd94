"""Runs of earlier versions can be loaded, translated with, resumed and evaluated."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from minitransformer import Translator
from minitransformer.config import rename_settings
from minitransformer.data.batching import make_batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import CheckpointError
from minitransformer.run import RunFolder
from minitransformer.search import eval_mode
from minitransformer.storage import json_with_checksum
from tests.support.processes import ROOT, run
from tests.support.small_runs import trainer_for

FIXTURES = sorted((ROOT / "tests" / "fixtures").glob("run-format-*"))
NAMES = ("words", "bpe", "gru", "bilstm", "inner-dropout", "train-only")
OLD_RUNS = [
    pytest.param(folder, name, id=f"{folder.name}-{name}") for folder in FIXTURES for name in NAMES
]


def log_probabilities(translator: Translator, source: str, target: str) -> list[float]:
    """Return the log probability of each target token under teacher forcing."""
    ids = EncodedPair(
        translator.tokenizer.encode_source(source).ids,
        translator.tokenizer.encode_target(target).ids,
    )
    batch = make_batch([ids], translator.tokenizer.start_id)
    with eval_mode(translator.model), torch.inference_mode():
        memory = translator.model.encode(batch.source)
        logits = translator.model.decode(batch.target_input, memory)
    found = logits.log_softmax(dim=-1)[0]
    assert PAD_ID not in ids.target
    return [float(row[label]) for row, label in zip(found, ids.target, strict=True)]


def copy_run(folder: Path, name: str, target: Path) -> Path:
    return shutil.copytree(folder / name, target / name)


def test_every_run_format_has_fixtures():
    assert [folder.name for folder in FIXTURES] == ["run-format-1", "run-format-2"]
    for folder in FIXTURES:
        assert {path.parent.name for path in folder.glob("*/config.yaml")} == set(NAMES)
        for name in NAMES:
            assert len(RunFolder(folder / name).steps()) == 2
            assert f"--run {name} " in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("folder", "name"), OLD_RUNS)
def test_old_run_translates_as_recorded(folder, name):
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))[name]
    assert len(expected) == 2
    for step, sentences in expected.items():
        translator = Translator.load(folder / name, checkpoint=int(step))
        assert len(sentences) == 8
        found = translator.translate([each["source"] for each in sentences])
        assert [each.text for each in found] == [each["translation"] for each in sentences]
        for each in sentences:
            values = log_probabilities(translator, each["source"], each["target"])
            assert values == pytest.approx(each["log_probabilities"], rel=0, abs=1e-5)


def test_settings_of_later_versions_may_be_missing(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    trainer.step()
    trainer.save()
    later = ("kind", "cell", "bidirectional", "attention")
    state = tmp_path / "run" / "checkpoints" / "step-000001" / "state.json"
    content = json.loads(state.read_text(encoding="utf-8"))["content"]
    for name in later:
        del content["settings"]["model"][name]
    state.write_bytes(json_with_checksum(content))
    config = tmp_path / "run" / "config.yaml"
    before, model = config.read_text(encoding="utf-8").split("model:\n")
    lines = [line for line in model.splitlines() if line.split(":")[0].strip() not in later]
    assert len(lines) == len(model.splitlines()) - len(later)
    config.write_text("\n".join([f"{before}model:", *lines]), encoding="utf-8")
    assert Translator.load(tmp_path / "run").checkpoint == "step-000001"
    assert trainer_for(tmp_path / "run").state.step == 1


@pytest.mark.parametrize(("folder", "name"), OLD_RUNS)
def test_old_run_is_resumed_and_evaluated_by_the_commands(folder, name, tmp_path):
    old = copy_run(folder, name, tmp_path)
    before = max(RunFolder(old).steps())
    rows = (old / "metrics.jsonl").read_bytes()
    settings = ["--set", f"training.steps={before + 5}"]
    result = run("train.py", "--config", f"{name}/config.yaml", "--run", name, *settings,
                 folder=tmp_path)  # fmt: skip
    assert result.code == 0, result.err
    assert f"Continuing {name} after step {before}" in result.out
    change = f"note: changed since the run began: training.steps: {before}, now {before + 5}\n"
    assert result.err == change
    assert max(RunFolder(old).steps()) == before + 5
    assert (old / "metrics.jsonl").read_bytes().startswith(rows)
    scored = run("evaluate", "--run", name, "--split", "valid", folder=tmp_path)
    assert scored.code == 0, scored.err
    assert "45 pairs" in scored.out
    assert "bleu" in scored.out
    translated = run("translate.py", "--run", name, "I go", folder=tmp_path)
    assert (translated.code, translated.out.count("\n")) == (0, 1)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("train-only", "  position: sinusoidal", "  position: learned",
         "model.positional_encoding is 'learned', not 'sinusoidal'"),
        ("train-only", "  source_end: false", "  source_end: true",
         "model.source_eos is true, not false"),
        ("inner-dropout", "  inner_dropout: 0.1", "  inner_dropout: 0.2",
         "model.activation_dropout is 0.2, not 0.1"),
        ("words", "tokenizer:\n", "modle: {}\ntokenizer:\n", "unknown key 'modle'"),
        ("gru", "  attention_output: ", "  output_projection: false\n  attention_output: ",
         "'model.attention_output' is an earlier name of 'model.output_projection'; "
         "give only one of them"),
    ],
)  # fmt: skip
def test_changed_setting_of_an_old_run_is_refused(name, old, new, message, tmp_path):
    run = copy_run(ROOT / "tests/fixtures/run-format-1", name, tmp_path)
    edit(run / "config.yaml", old, new)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        Translator.load(run)


def test_settings_of_an_old_run_are_converted():
    old = ROOT / "tests" / "fixtures" / "run-format-1"
    model = RunFolder(old / "inner-dropout").load_config().model
    rates = model.self_attention_dropout, model.cross_attention_dropout, model.activation_dropout
    assert rates == (0.1, 0.1, 0.1)
    sections = {
        "training": {"consistency": 0.5, "train_only": ["encoder.layers.0.leftward.word"]},
        "model": {"kind": "recurrent", "inner_dropout": 0.2},
    }
    assert rename_settings(sections, "here") == {
        "training": {"rdrop_alpha": 1.0, "trainable": ["encoder.layers.0.backward_rnn.input_proj"]},
        "model": {"kind": "recurrent", "self_attention_dropout": 0.0,
                  "cross_attention_dropout": 0.2, "activation_dropout": 0.0},
    }  # fmt: skip
