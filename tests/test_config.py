"""Configs are read from YAML, changed by overrides, validated and written."""

import contextlib
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given

from minitransformer.config import (
    changed_keys,
    config_from_data,
    config_to_yaml,
    load_config,
    read_yaml,
    write_yaml,
)
from minitransformer.errors import ConfigError, UsageError, UserError
from minitransformer.settings import RENAMED, Config
from tests.support.any_config import any_sections, plain_data
from tests.support.processes import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SMALLEST = "data: {train: en-es}\n"


def config_from(text: str, tmp_path: Path, overrides=()) -> Config:
    path = tmp_path / "some.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def errors_of(text: str, tmp_path: Path, overrides=()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_from(text, tmp_path, overrides)
    assert caught.value.exit_code == 2
    return [line.strip() for line in str(caught.value).splitlines()]


def test_values_get_the_type_of_their_setting(tmp_path):
    config = config_from(
        "data: {train: no}\ntraining: {learning_rate: 1e-4, weight_decay: 0, steps: 12}", tmp_path
    )
    assert config.data.train == "no"
    assert config.training.learning_rate == 0.0001
    assert config.training.weight_decay == 0.0
    assert isinstance(config.training.weight_decay, float)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("on", "on"), ("yes", "yes"), ("true", True), ("false", False),
        ("1e-4", 1e-4), ("1E5", 1e5), (".5", 0.5), ("5.", 5.0), ("-3", -3), ("012", "012"),
        ("12:30:00", "12:30:00"), ("1_000", "1_000"), ("null", None), ("", None), ("~", None),
        ("'1'", "1"), ("2026-01-01", "2026-01-01"), ("[a, 1]", ["a", 1]), ("0x1f", "0x1f"),
        (".inf", ".inf"),
    ],
)  # fmt: skip
def test_yaml_scalars_get_the_expected_type(text, value):
    result = read_yaml(text, "here")
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "line 2: duplicate key 'a'"),
        ("a: !!python/object/apply:os.system [ls]", "tags such as"),
        ("a: !!str 1", "tags such as"),
        ("a: &x [1]\nb: *x", "line 1: anchors and aliases are not allowed"),
        ("a: [1", "line 1:"),
        ("1: 2", "the key 1 is not a string"),
        ("a: \x00", "not valid YAML"),
        ("[" * 100_000, "not valid YAML"),
        ("a: " + "x" * 2_000_000, "characters, more than 1,000,000"),
        ("--- a\n--- b", "line 2:"),
    ],
)
def test_yaml_other_than_plain_data_is_refused(text, message):
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, "some.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_config_errors_are_reported_at_once(tmp_path):
    errors = errors_of(
        """
data: {train: en-es, trian: x}
training: {warmup: 3, steps: many, dropout: 0.1}
model: {norm: prae, dropout: 1.0, d_model: 0, bias: 1}
modle: {}
""",
        tmp_path,
    )
    path = tmp_path / "some.yaml"
    assert errors == [
        f"{path}: unknown key 'data.trian': did you mean 'train'?",
        f"{path}: unknown key 'training.warmup': did you mean 'warmup_steps'?",
        f"{path}: training.steps: expected a whole number, got 'many'",
        f"{path}: unknown key 'training.dropout'",
        f"{path}: model.norm: must be one of none, pre, post; got 'prae': did you mean 'pre'?",
        f"{path}: model.dropout: must be from 0 to below 1, got 1.0",
        f"{path}: model.d_model: must be from 1 to 16,384, got 0",
        f"{path}: model.bias: expected true or false, got 1",
        f"{path}: unknown key 'modle': did you mean 'model'?",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("model: {d_model: 100, num_heads: 8}",
         "model.d_model (100) must be divisible by model.num_heads (8)"),
        ("model: {d_model: 7}",
         "model.d_model (7) must be even for model.positional_encoding: sinusoidal"),
        ("model: {d_model: 6, num_heads: 2, positional_encoding: rotary}",
         "model.d_model / model.num_heads (3) must be even for model.positional_encoding: rotary"),
        ("model: {tie_embeddings: all}",
         "model.tie_embeddings: all needs tokenizer.joint: true"),
        ("training: {schedule: inverse_sqrt}",
         "training.warmup_steps: schedule inverse_sqrt needs at least 1"),
        ("training: {warmup_steps: 99, steps: 9}",
         "training.warmup_steps (99) must not exceed training.steps (9)"),
        ("training: {steps: true}", "training.steps: expected a whole number, got true"),
        ("training: {steps: 1.5}", "training.steps: expected a whole number, got 1.5"),
        ("training: {trainable: head}",
         "training.trainable: expected a list such as [a, b], got 'head'"),
        ("training: [1]", "training: expected a section, got [1]"),
        ("training:", "training: expected a section, got nothing"),
        ("training: {seed: -1}", "training.seed: must be from 0 to 9,223,372,036,854"),
        ("training: {learning_rate: 0}", "training.learning_rate: must be from 1e-12"),
        (f"training: {{learning_rate: {10**400}}}", "training.learning_rate: must be from 1e-12"),
        (f"model: {{max_length: {10**400}}}", "model.max_length: must be from 1 to 100,000"),
        ("training: {threads: 5000000000}", "training.threads: must be from 0 to 1,024"),
        ('data: {train: "a\\0b"}', "data.train: must not contain a NUL character"),
        ('data: {train: "a\\ud800"}', "or half a surrogate pair"),
        ("data: {train: [a, b, c]}", "data.train: aligned files are two, such as [a.en, a.es]"),
        ("data: {train: 7}", "data.train: expected a word, got 7"),
        ("data: {train: [1, 2]}", "data.train: expected a word, got 1"),
        ("data: {train: a, columns: [en]}", "data.columns: give two names, such as [en, es]"),
        ("data: {train: a, columns: [en, 2]}", "data.columns: give two names, such as [en, es]"),
        ("data: {train: a, columns: [0, 1]}", "data.columns: columns are counted from 1"),
        ("data: {train: a, valid: b, split_valid: 9}",
         "data.split_valid: data.valid already names those pairs"),
        ("steps: 3", "unknown key 'steps': did you mean 'training.steps'?"),
        ("filters: {empty: keep}", "filters.empty: must be one of skip, error; got 'keep'"),
        ("tokenizer: {kind: bpe}",
         "tokenizer.vocab_size: kind bpe needs a size from 1 to 1,000,000"),
        ("training: {patience: 3}", "training.patience needs a metric to watch"),
        ("model: {kind: recurrent, num_heads: 2}",
         "model.num_heads is a Transformer's; with model.kind: recurrent it must be 1; got 2"),
        ("model: {kind: recurrent, d_ff: 32}",
         "model.d_ff is a Transformer's; with model.kind: recurrent it must be 0; got 32"),
        ("model: {kind: recurrent, norm: pre}",
         "model.norm is a Transformer's; with model.kind: recurrent it must be none; got pre"),
        ("model: {cell: lstm}",
         "model.cell is a recurrent model's; with model.kind: transformer it must be gru; "
         "got lstm"),
        ("model: {bidirectional: true}",
         "model.bidirectional is a recurrent model's; with model.kind: transformer it must be "
         "false; got true"),
        ("model: {attention: none}",
         "model.attention is a recurrent model's; with model.kind: transformer it must be dot; "
         "got none"),
        ("model: {kind: recurrent, positional_encoding: rotary}",
         "model.positional_encoding: rotary rotates the queries of a Transformer; "
         "a recurrent model takes "
         "none, sinusoidal or learned"),
        ("model: {kind: recurrent, num_encoder_layers: 2}",
         "model.num_encoder_layers (2) and model.num_decoder_layers (1) must be equal for "
         "model.kind: recurrent"),
        ("model: {kind: recurrent, bidirectional: true, d_model: 7, positional_encoding: none}",
         "model.d_model (7) must be even for model.bidirectional: true"),
        ("model: {kind: recurrent, attention: none, cross_attention_dropout: 0.1}\n"
         "training: {rdrop_alpha: 1}",
         "training.rdrop_alpha compares two passes with different dropout"),
        ("model: {kind: recurrent, tie_embeddings: target}",
         "model.tie_embeddings: target needs a head as wide as an embedding, and "
         "[context ; state] is twice as wide; set model.output_projection: true"),
        ("model: {kind: recurent}",
         "model.kind: must be one of transformer, recurrent; got 'recurent': "
         "did you mean 'recurrent'?"),
    ],
)  # fmt: skip
def test_invalid_settings_are_explained(settings, message, tmp_path):
    start = "" if settings.startswith("data") else SMALLEST
    (error,) = errors_of(start + settings, tmp_path)
    assert message in error


@pytest.mark.parametrize(
    "model",
    [
        "{kind: recurrent, d_model: 7, positional_encoding: none}",
        "{kind: recurrent, tie_embeddings: target, attention: none}",
        "{kind: recurrent, tie_embeddings: target, output_projection: true}",
        "{kind: recurrent, num_encoder_layers: 2, num_decoder_layers: 2, "
        "positional_encoding: learned}",
    ],
)
def test_config_allows_unusual_but_valid_settings(model, tmp_path):
    assert config_from(f"{SMALLEST}model: {model}", tmp_path).model.kind == "recurrent"


def test_setting_of_the_other_model_kind_names_its_override(tmp_path):
    errors = errors_of(SMALLEST, tmp_path, ["model.kind=recurrent", "model.num_heads=4"])
    assert errors == [
        "--set model.num_heads=4: model.num_heads is a Transformer's; "
        "with model.kind: recurrent it must be 1; got 4"
    ]


def test_transformer_setting_is_reported_once_for_recurrent_models(tmp_path):
    model = f"{SMALLEST}model: {{kind: recurrent, d_model: 7}}"
    heads, position = errors_of(
        model, tmp_path, ["model.num_heads=2", "model.positional_encoding=rotary"]
    )
    assert heads.startswith("--set model.num_heads=2: model.num_heads is a Transformer's; ")
    assert position.startswith(
        "--set model.positional_encoding=rotary: model.positional_encoding: rotary rotates "
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "just words", "- a\n- b"])
def test_config_without_settings_is_an_error(text, tmp_path):
    (error,) = errors_of(text, tmp_path)
    assert "empty" in error or "a mapping of sections" in error


def test_missing_or_unreadable_config_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"data: {train: \xe9}")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.yaml")
    with pytest.raises(ConfigError, match="directory"):
        load_config(tmp_path)


def test_overrides_change_any_key_and_are_validated(tmp_path):
    config = config_from(
        SMALLEST,
        tmp_path,
        ["training.steps=50", "training.trainable=[head]", "data.valid=", "model.dropout=1e-1"],
    )
    assert config.training.steps == 50
    assert config.training.trainable == ("head",)
    assert config.data.valid == ""
    assert config.model.dropout == 0.1
    errors = errors_of("data: {trian: x}", tmp_path, ["training.stpes=50", "model.num_heads=7"])
    assert errors == [
        f"{tmp_path / 'some.yaml'}: unknown key 'data.trian': did you mean 'train'?",
        "--set training.stpes=50: unknown key 'training.stpes': did you mean 'steps'?",
        f"{tmp_path / 'some.yaml'}: data.train: name a shipped corpus, a file, "
        "or two aligned files as [a.en, a.es]",
        "--set model.num_heads=7: model.d_model (64) must be divisible by model.num_heads (7)",
    ]
    slow_start = "data: {train: en-es}\ntraining: {warmup_steps: 30}"
    assert errors_of(slow_start, tmp_path, ["training.steps=20"]) == [
        "--set training.steps=20: training.warmup_steps (30) must not exceed training.steps (20)"
    ]


@pytest.mark.parametrize("override", ["steps=50", "training.steps", "=3", ".=3", "data.train.x=1"])
def test_malformed_override_is_a_usage_error(override, tmp_path):
    with pytest.raises(UsageError, match="--set"):
        config_from(SMALLEST, tmp_path, [override])


def test_key_without_its_section_gets_a_suggestion(tmp_path):
    for override, meant in (
        ("steps=50", ", such as training.steps=50"),
        ("consistency=1", "; 'training.consistency' was renamed to 'training.rdrop_alpha'; "
         "instead of 1, write 2"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=rf"section\.key=value{meant}$"):
            config_from(SMALLEST, tmp_path, [override])
    assert errors_of(f"{SMALLEST}d_model: 3\nmax_size: 9", tmp_path) == [
        f"{tmp_path / 'some.yaml'}: unknown key 'd_model': did you mean 'model.d_model'?",
        f"{tmp_path / 'some.yaml'}: 'tokenizer.max_size' was renamed to 'tokenizer.vocab_size'",
    ]


def test_config_survives_writing_and_reading(tmp_path):
    config = config_from(
        "data: {train: '1e5', valid: 'no', test: [a, '1'], columns: [1, 3]}\n"
        "training: {learning_rate: 1e-5, trainable: [head]}",
        tmp_path,
    )
    (tmp_path / "again.yaml").write_text(config_to_yaml(config), encoding="utf-8")
    assert load_config(tmp_path / "again.yaml") == config


def test_changed_keys_lists_old_and_new_values(tmp_path):
    old = config_from(SMALLEST, tmp_path)
    new = config_from(SMALLEST, tmp_path, ["model.d_model=32", "data.columns=[en, es]"])
    assert changed_keys(old, new) == {
        "data.columns": ("[source, target]", "[en, es]"), "model.d_model": ("64", "32"),
    }  # fmt: skip
    assert changed_keys(old, old) == {}


def test_shipped_configs_resolve_to_the_pinned_values():
    """Compare omitted settings, too, so that no default changes unnoticed."""
    pinned = json.loads((ROOT / "tests/fixtures/resolved-configs.json").read_text("utf-8"))
    found = {path.name: json.loads(json.dumps(asdict(load_config(path)))) for path in CONFIGS}
    assert found == pinned


def test_tiny_yaml_has_every_setting_with_a_comment():
    tiny = next(path for path in CONFIGS if path.name == "tiny.yaml").read_text("utf-8")
    given = {section: list(values) for section, values in read_yaml(tiny, "tiny.yaml").items()}
    assert given == {section: list(values) for section, values in asdict(Config()).items()}
    assert all(re.search(r"\S  +# \S", line) for line in tiny.splitlines() if line[:2] == "  ")


def test_other_shipped_configs_omit_default_values():
    defaults = asdict(Config())
    for path in CONFIGS:
        given = read_yaml(path.read_text("utf-8"), path.name)
        same = [
            f"{path.name}: {section}.{key}"
            for section, values in given.items()
            for key, value in values.items()
            if defaults[section][key] == (tuple(value) if isinstance(value, list) else value)
        ]
        assert path.name == "tiny.yaml" or same == []


RENAMED_VALUES = [
    ("data: {source: en-es}", "'data.source' was renamed to 'data.train'"),
    ("hygiene: {empty: error}", "'hygiene.empty' was renamed to 'filters.empty'"),
    ("tokenizer: {max_size: 9}", "'tokenizer.max_size' was renamed to 'tokenizer.vocab_size'"),
    ("training: {consistency: 0.5}", "'training.consistency' was renamed to "
     "'training.rdrop_alpha'; instead of 0.5, write 1.0"),
    ("model: {inner_dropout: 0.1}", "'model.inner_dropout' was split into "
     "'model.self_attention_dropout', 'model.cross_attention_dropout' and "
     "'model.activation_dropout'"),
    ("hygiene: {}", "'hygiene' was renamed to 'filters'"),
    ("hygiene: {empti: skip}", "unknown key 'hygiene.empti': did you mean 'empty'?"),
    ("training: {train_only: [encoder.layers.0.feed_forward.widen]}",
     "'training.train_only' was renamed to 'training.trainable'; instead of "
     "[encoder.layers.0.feed_forward.widen], write [encoder.layers.0.feed_forward.fc1]"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), RENAMED_VALUES)
def test_renamed_key_is_refused_with_its_new_name(settings, message, tmp_path):
    errors = errors_of(settings, tmp_path)
    assert f"{tmp_path / 'some.yaml'}: {message}" in errors


def test_all_keys_of_a_renamed_section_are_reported(tmp_path):
    assert errors_of("data: {source: en-es}\nhygiene: {nul: keep, x: 1}", tmp_path) == [
        f"{tmp_path / 'some.yaml'}: {message}"
        for message in (
            "'data.source' was renamed to 'data.train'",
            "'hygiene.nul' was renamed to 'filters.nul'",
            "unknown key 'hygiene.x'",
        )
    ]


def test_renamed_settings_are_gone_and_their_new_names_exist():
    present = {f"{section}.{key}" for section, keys in asdict(Config()).items() for key in keys}
    assert not present & RENAMED.keys()
    assert {key for renaming in RENAMED.values() for key in renaming.keys} <= present


@given(plain_data)
def test_plain_data_survives_writing_and_reading(data):
    assert read_yaml(write_yaml(data), "here") == data


@given(any_sections)
def test_any_plain_data_is_a_config_or_a_config_error(data):
    with contextlib.suppress(UserError):
        assert config_from_data(data, "here").data.train
