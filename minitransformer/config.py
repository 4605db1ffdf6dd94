"""Configs as files: YAML in and out, `--set section.key=value`, every mistake reported at once.

The settings with their defaults and allowed values are in settings.py.
"""

import re
import types
import typing
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from minitransformer.errors import ConfigError, UsageError, did_you_mean
from minitransformer.settings import RENAMED, Config, DataConfig, ModelConfig
from minitransformer.storage import read_regular_file

CONFIGS = Path(__file__).parent / "configs"  # where a wheel has them
if not CONFIGS.is_dir():
    CONFIGS = Path(__file__).parent.parent / "configs"  # beside the package in a clone
MAX_CHARACTERS = 1_000_000  # of a document
MAX_FILE_BYTES = 4 * MAX_CHARACTERS  # of UTF-8


def find_config(name: str) -> Path:
    """Return the path of a config that is given by its path or by its name in configs/."""
    for path in (Path(name), CONFIGS / name, CONFIGS / f"{name}.yaml"):
        if path.exists() and not path.is_dir():
            return path
    shipped = sorted(path.name for path in CONFIGS.glob("*.yaml"))
    hint = did_you_mean(name, shipped) or f" (there: {', '.join(shipped)})"
    raise ConfigError(f"no config '{name}', here or among those that ship{hint}")


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file and apply `section.key=value` overrides to it.

    Raises one ConfigError with every wrong setting; a file or an override that cannot be parsed is
    reported by itself.
    """
    try:
        text = read_regular_file(path, MAX_FILE_BYTES).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    data = read_yaml(text, str(path))
    if data is None:
        raise ConfigError(f"{path}: the config is empty")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a config is a mapping of sections, got {describe(data)}")
    is_of_run = path.name == "config.yaml" and (path.parent / "checkpoints").is_dir()
    if is_of_run:  # which may be of format 1
        data = rename_settings(data, str(path))
    origins = {apply_override(data, override): f"--set {override}" for override in overrides}
    return config_from_data(data, str(path), origins)


def apply_override(data: dict[str, Any], override: str) -> str:
    """Set one value in place, parsed as in the file, and return its dotted key."""
    path, equals, text = override.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key or not sections:
        raise UsageError(f"--set {override}: {advice_for(key, text)}")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise UsageError(f"--set {override}: '{section}' is not a section")
    data[key] = read_yaml(text, f"--set {override}") if text.strip() else ""
    return ".".join((*sections, key))


def advice_for(key: str, text: str) -> str:
    """Say how to write an override whose key, such as `steps`, is given without its section."""
    advice = "write it as section.key=value"
    if names := settings_called(key):
        return f"{advice}, such as {names[0]}={text or 'VALUE'}"
    if old := earlier_setting(key):
        return f"{advice}; {unknown_key(old, read_yaml(text, f'--set {key}'), ())[0].message}"
    return advice


def settings_called(key: str) -> list[str]:
    """Return the dotted names of the settings with this key."""
    return [name for name in flatten(asdict(Config())) if name.endswith(f".{key}")]


def earlier_setting(key: str) -> str:
    """Return the dotted name of the setting that had this key in run format 1, or nothing."""
    return next((old for old in RENAMED if old.endswith(f".{key}")), "")


def rename_settings(sections: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the settings of a run of format 1 by their present names, with converted values.

    Raises ConfigError where a setting is given by both names: an old one must not hide another.
    """
    old = {key: value for key, value in flatten(sections).items() if key in RENAMED}
    renamed: dict[str, Any] = {}
    for name, section in sections.items():
        if not isinstance(section, dict):
            renamed[name] = section
            continue
        kept = {key: value for key, value in section.items() if f"{name}.{key}" not in old}
        if kept or not section:
            renamed[name] = kept
    for dotted, value in old.items():
        for new in RENAMED[dotted].keys:
            name, _, key = new.partition(".")
            section = renamed.setdefault(name, {})
            if not isinstance(section, dict):
                continue  # which is reported when the config is built
            if key in section:
                raise ConfigError(
                    f"{where}: '{dotted}' is an earlier name of '{new}'; give only one of them"
                )
            section[key] = RENAMED[dotted].convert(value)
    # A recurrent model has only one of the three rates that replaced `inner_dropout`.
    if "model.inner_dropout" in old and renamed["model"].get("kind") == "recurrent":
        for key in ("self_attention_dropout", "activation_dropout"):
            renamed["model"][key] = 0.0
    return renamed


def config_from_data(
    data: dict[str, Any], where: str, origins: dict[str, str] | None = None
) -> Config:
    """Build a config; raises one ConfigError with every mistake and where it was made."""
    mistakes: list[Mistake] = []
    config: Config = build_section(Config, data, "", mistakes)
    wrong = {mistake.key for mistake in mistakes}
    wrong |= {new for old in wrong & RENAMED.keys() for new in RENAMED[old].keys}
    origins = dict(origins or {})
    mistakes += [
        Mistake(next((key for key in keys if key in origins), keys[0]), message)
        for keys, message in validate(config)
        if not wrong.intersection(keys)
    ]
    if mistakes:
        for dotted, origin in list(origins.items()):
            origins.setdefault(dotted.partition(".")[0], origin)  # of an unknown section
        lines = [f"{origins.get(each.key, where)}: {each.message}" for each in mistakes]
        raise ConfigError("\n       ".join(lines))
    return config


def config_to_yaml(config: Config) -> str:
    """Return the whole config as YAML, which load_config reads back to an equal one."""
    return write_yaml(
        {
            section: {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in values.items()
            }
            for section, values in asdict(config).items()
        }
    )


def changed_keys(old: Config, new: Config) -> dict[str, tuple[str, str]]:
    """Return the dotted keys whose values differ between two configs, each with both values."""
    return differences(flatten(asdict(old)), flatten(asdict(new)))


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return what changed, as text; a key that the old settings do not have is not compared."""
    return {
        key: (describe(old[key]), describe(value))
        for key, value in new.items()
        if key in old and old[key] != value
    }


def flatten(sections: dict[str, Any]) -> dict[str, Any]:
    """Return {"section.key": value, …}, without what is not in a section."""
    return {
        f"{name}.{key}": value
        for name, section in sections.items()
        if isinstance(section, dict)
        for key, value in section.items()
    }


class Mistake(typing.NamedTuple):
    """An error message, and the dotted key of the setting that it is about."""

    key: str
    message: str


def build_section(cls: Any, data: Any, path: str, mistakes: list[Mistake]) -> Any:
    """Build a dataclass from a mapping; every mistake in it is added to `mistakes`."""
    if not isinstance(data, dict):
        message = f"{path or 'the config'}: expected a section, got {describe(data)}"
        mistakes.append(Mistake(path, message))
        return cls()
    hints = typing.get_type_hints(cls, include_extras=True)
    values = {}
    for key, value in data.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in hints:
            mistakes += unknown_key(dotted, value, hints)
        elif is_dataclass(hints[key]):
            values[key] = build_section(hints[key], value, dotted, mistakes)
        else:
            try:
                values[key] = convert(value, hints[key])
            except ValueError as error:
                mistakes.append(Mistake(dotted, f"{dotted}: {error}"))
    return cls(**values)


def unknown_key(dotted: str, value: Any, known: Iterable[str]) -> list[Mistake]:
    """Return what is wrong with a key that does not exist: it was renamed, or is misspelt."""
    if dotted in RENAMED:
        keys, converted = RENAMED[dotted].keys, RENAMED[dotted].convert(value)
        was = f"was renamed to '{keys[0]}'"
        if len(keys) > 1:
            was = f"was split into {', '.join(map(repr, keys[:-1]))} and '{keys[-1]}'"
        instead = f"; instead of {describe(value, 500)}, write {describe(converted, 500)}"
        advice = instead if converted != value else ""
        return [Mistake(dotted, f"'{dotted}' {was}{advice}")]
    old_section = [old for old in RENAMED if old.startswith(f"{dotted}.")]
    if old_section and isinstance(value, dict) and value:
        old_keys = [old.rpartition(".")[2] for old in old_section]
        return [
            mistake
            for key, inner in value.items()
            for mistake in unknown_key(f"{dotted}.{key}", inner, old_keys)
        ]
    if old_section:
        section = RENAMED[old_section[0]].keys[0].partition(".")[0]
        return [Mistake(dotted, f"'{dotted}' was renamed to '{section}'")]
    meant = did_you_mean(dotted.rpartition(".")[2], known)
    if "." not in dotted:
        if names := settings_called(dotted):
            meant = f": did you mean '{names[0]}'?"
        elif old := earlier_setting(dotted):
            return unknown_key(old, value, ())
    return [Mistake(dotted, f"unknown key '{dotted}'{meant}")]


def convert(value: Any, hint: Any) -> Any:
    """Return a value converted to a type hint; raises ValueError with what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        converted = convert(value, arguments[0])
        if converted not in arguments[1]:
            raise ValueError(f"must be {arguments[1]}, got {describe(value)}")
        return converted
    if origin is Literal:
        if value not in arguments:
            allowed = ", ".join(str(choice) for choice in arguments)
            meant = did_you_mean(str(value), map(str, arguments))
            raise ValueError(f"must be one of {allowed}; got {describe(value)}{meant}")
        return value
    if origin in (types.UnionType, typing.Union):
        lists = [each for each in arguments if typing.get_origin(each) is tuple]
        singles = [each for each in arguments if each not in lists]
        is_list = isinstance(value, list | tuple)
        errors = []
        for choice in lists if lists and is_list else singles:
            try:
                return convert(value, choice)
            except ValueError as error:
                errors.append(str(error))
        more = "; or give a list such as [a, b]" if lists and not is_list else ""
        raise ValueError(f"{errors[0]}{more}")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list such as [a, b], got {describe(value)}")
        return tuple(convert(item, arguments[0]) for item in value)
    if hint is float and type(value) is int:
        return float(min(max(value, -(10**300)), 10**300))  # beyond any range, but finite
    if type(value) is not hint:
        expected = {
            int: "a whole number", float: "a number", bool: "true or false", str: "a word",
            types.NoneType: "nothing",
        }[hint]  # fmt: skip
        raise ValueError(f"expected {expected}, got {describe(value)}")
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ValueError("must not contain a NUL character or half a surrogate pair")
    return value


def describe(value: Any, max_length: int = 60) -> str:
    """Return a value as it would be written in YAML, truncated if it is long."""
    names = {dict: "a section", types.NoneType: "nothing"}
    if type(value) in names:
        return names[type(value)]
    if isinstance(value, list | tuple):
        text = f"[{', '.join(map(str, value))}]"
    else:
        text = repr(value) if isinstance(value, str) else str(value).lower()
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def validate(config: Config) -> Iterator[tuple[list[str], str]]:
    """Yield what is wrong with settings that are fine one by one: their keys, and the message."""
    yield from validate_data(config.data)
    yield from validate_model(config.model)
    tokenizer, model, training = config.tokenizer, config.model, config.training
    evaluation, examples = config.evaluation, config.logging.examples
    if tokenizer.kind == "bpe" and not 1 <= tokenizer.vocab_size <= 10**6:
        yield (
            ["tokenizer.vocab_size", "tokenizer.kind"],
            "tokenizer.vocab_size: kind bpe needs a size from 1 to 1,000,000, such as 8000; "
            f"got {tokenizer.vocab_size}",
        )
    if model.tie_embeddings == "all" and not tokenizer.joint:
        yield (
            ["model.tie_embeddings", "tokenizer.joint"],
            "model.tie_embeddings: all needs tokenizer.joint: true",
        )
    if training.schedule == "inverse_sqrt" and training.warmup_steps == 0:
        yield (
            ["training.warmup_steps", "training.schedule"],
            "training.warmup_steps: schedule inverse_sqrt needs at least 1",
        )
    if training.warmup_steps > training.steps:
        yield (
            ["training.warmup_steps", "training.steps"],
            f"training.warmup_steps ({training.warmup_steps}) must not exceed "
            f"training.steps ({training.steps})",
        )
    if training.rdrop_alpha > 0 and not any(dropout_rates(model).values()):
        yield (
            ["training.rdrop_alpha", *dropout_rates(model)],
            "training.rdrop_alpha compares two passes with different dropout: set model.dropout",
        )
    if training.patience > 0 and evaluation.best_metric == "none":
        yield (
            ["training.patience", "evaluation.best_metric"],
            "training.patience needs a metric to watch: name one as evaluation.best_metric",
        )
    if evaluation.average_checkpoints > training.keep_checkpoints:
        yield (
            ["evaluation.average_checkpoints", "training.keep_checkpoints"],
            f"training.keep_checkpoints ({training.keep_checkpoints}) must be at least "
            f"evaluation.average_checkpoints ({evaluation.average_checkpoints})",
        )
    if isinstance(examples, tuple) and not all(each.strip() for each in examples):
        yield ["logging.examples"], "logging.examples: one of the sentences is blank"


def validate_data(data: DataConfig) -> Iterator[tuple[list[str], str]]:
    if not data.train:
        yield (
            ["data.train", "data"],
            "data.train: name a shipped corpus, a file, or two aligned files as [a.en, a.es]",
        )
    for name in ("train", "valid", "test"):
        files = getattr(data, name)
        if isinstance(files, tuple) and len(files) != 2:
            yield (
                [f"data.{name}"],
                f"data.{name}: aligned files are two, such as [a.en, a.es]; got {len(files)}",
            )
    are_alike = len({type(column) for column in data.columns}) == 1
    if len(data.columns) != 2 or len(set(data.columns)) != 2 or not are_alike:
        yield (
            ["data.columns"],
            "data.columns: give two names, such as [en, es], or two numbers, such as [1, 2]",
        )
    if any(isinstance(column, int) and column < 1 for column in data.columns):
        yield ["data.columns"], "data.columns: columns are counted from 1"
    for name in ("valid", "test"):
        if getattr(data, name) and getattr(data, f"split_{name}") > 0:
            yield (
                [f"data.split_{name}", f"data.{name}"],
                f"data.split_{name}: data.{name} already names those pairs; set one of the two",
            )


# Settings that one kind of model alone has, with the value that they must have for the other kind.
TRANSFORMER_ONLY: dict[str, Any] = {
    "num_heads": 1, "d_ff": 0, "norm": "none",
    "self_attention_dropout": 0.0, "activation_dropout": 0.0,
}  # fmt: skip
RECURRENT_ONLY: dict[str, Any] = {"cell": "gru", "bidirectional": False, "attention": "dot"}


def validate_model(model: ModelConfig) -> Iterator[tuple[list[str], str]]:
    is_recurrent = model.kind == "recurrent"
    of_other, others = (
        ("a Transformer's", TRANSFORMER_ONLY) if is_recurrent
        else ("a recurrent model's", RECURRENT_ONLY)
    )  # fmt: skip
    for name, neutral in others.items():
        if (value := getattr(model, name)) != neutral:
            yield (
                [f"model.{name}", "model.kind"],
                f"model.{name} is {of_other}; with model.kind: {model.kind} it must be "
                f"{str(neutral).lower()}; got {str(value).lower()}",
            )
    if not is_recurrent and model.d_model % model.num_heads != 0:
        yield (
            ["model.num_heads", "model.d_model"],
            f"model.d_model ({model.d_model}) must be divisible by "
            f"model.num_heads ({model.num_heads})",
        )
    if model.positional_encoding == "sinusoidal" and model.d_model % 2 != 0:
        yield (
            ["model.d_model", "model.positional_encoding"],
            f"model.d_model ({model.d_model}) must be even for "
            "model.positional_encoding: sinusoidal",
        )
    if model.positional_encoding == "rotary":
        d_head = model.d_model // model.num_heads
        if is_recurrent:
            yield (
                ["model.positional_encoding", "model.kind"],
                "model.positional_encoding: rotary rotates the queries of a Transformer; "
                "a recurrent model takes none, sinusoidal or learned",
            )
        elif d_head % 2 != 0:
            yield (
                ["model.positional_encoding", "model.d_model", "model.num_heads"],
                f"model.d_model / model.num_heads ({d_head}) must be even for "
                "model.positional_encoding: rotary",
            )
    if is_recurrent and model.num_encoder_layers != model.num_decoder_layers:
        yield (
            ["model.num_encoder_layers", "model.num_decoder_layers", "model.kind"],
            f"model.num_encoder_layers ({model.num_encoder_layers}) and model.num_decoder_layers "
            f"({model.num_decoder_layers}) must be equal for model.kind: recurrent: each decoder "
            "layer starts from the final state of an encoder layer",
        )
    if is_recurrent and model.bidirectional and model.d_model % 2 != 0:
        yield (
            ["model.bidirectional", "model.d_model"],
            f"model.d_model ({model.d_model}) must be even for model.bidirectional: true",
        )
    joins = model.attention != "none" and not model.output_projection
    if is_recurrent and model.tie_embeddings != "none" and joins:
        yield (
            ["model.tie_embeddings", "model.attention", "model.output_projection", "model.kind"],
            f"model.tie_embeddings: {model.tie_embeddings} needs a head as wide as an "
            "embedding, and [context ; state] is twice as wide; set model.output_projection: true",
        )


def dropout_rates(model: ModelConfig) -> dict[str, float]:
    """Return the dropout settings that have an effect on a model of this shape."""
    names = ["dropout"]
    if model.kind == "transformer":
        names += ["self_attention_dropout", "cross_attention_dropout"]
        names += ["activation_dropout"] * (model.d_ff > 0)
    elif model.attention != "none":
        names.append("cross_attention_dropout")
    return {f"model.{name}": getattr(model, name) for name in names}


class StrictLoader(yaml.SafeLoader):
    """Load YAML with the scalars of YAML 1.2 and without duplicate keys, anchors and tags."""

    # SafeLoader's own table reads `no` as False, `1e-4` as a word and `12:30` as 750.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not allowed", problem_mark=event.start_mark
            )
        if getattr(event, "tag", None):
            raise yaml.MarkedYAMLError(
                problem=f"tags such as {event.tag} are not allowed", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is not a string", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key '{key}'", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


for tag, pattern, first in [
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+.0123456789"),
]:
    StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), list(first)
    )


class StrictDumper(yaml.SafeDumper):
    """Dump YAML with quotes exactly where StrictLoader would otherwise read another type."""

    yaml_implicit_resolvers = StrictLoader.yaml_implicit_resolvers


def read_yaml(text: str, where: str, loader: type[StrictLoader] = StrictLoader) -> Any:
    """Parse one YAML document into plain data; `where` names it in error messages."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{where}: {len(text):,} characters, more than {MAX_CHARACTERS:,}")
    try:
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}:" if mark else ""
        raise ConfigError(f"{where}:{line} {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid YAML: {str(error).splitlines()[0]}") from None


def write_yaml(data: Any) -> str:
    """Return plain data as YAML, which read_yaml reads back unchanged."""
    return yaml.dump(data, Dumper=StrictDumper, sort_keys=False, allow_unicode=True)
