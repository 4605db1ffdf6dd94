"""A run's config: YAML in and out, `--set section.key=value`, every mistake reported at once."""

import contextlib
import dataclasses
import re
import types
import typing
from collections.abc import Hashable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from minitransformer.errors import ConfigError, UsageError, did_you_mean
from minitransformer.settings import Config, ModelConfig
from minitransformer.storage import read_regular_file

LARGEST_DOCUMENT = 1_000_000  # characters; a config is a page, not a corpus
MAX_FILE_BYTES = 4 * LARGEST_DOCUMENT  # of UTF-8


class StrictLoader(yaml.SafeLoader):
    """A loader with YAML 1.2's scalars, no duplicate keys, no anchors and no tags."""

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
                    problem=f"the key {key!r} is not a word", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key}' stands twice", problem_mark=key_node.start_mark
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


class TextLoader(StrictLoader):
    """A loader that leaves every scalar the text that was written: 0.50 stays 0.50."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


class StrictDumper(yaml.SafeDumper):
    """A dumper that quotes exactly what StrictLoader would otherwise misread."""

    yaml_implicit_resolvers = StrictLoader.yaml_implicit_resolvers


def write_yaml(data: Any) -> str:
    """Plain data as YAML that read_yaml reads back unchanged."""
    return yaml.dump(data, Dumper=StrictDumper, sort_keys=False, allow_unicode=True)


def read_yaml(text: str, where: str, loader: type[StrictLoader] = StrictLoader) -> Any:
    """Read one YAML document as plain data; `where` names it in error messages."""
    if len(text) > LARGEST_DOCUMENT:
        raise ConfigError(f"{where}: {len(text):,} characters is too long")
    try:
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}:" if mark else ""
        raise ConfigError(f"{where}:{line} {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not readable as YAML: {str(error).splitlines()[0]}") from None


class Mistake(typing.NamedTuple):
    """What is wrong, and the dotted key that it is wrong with."""

    key: str
    message: str


def build_section(cls: Any, data: Any, path: str, mistakes: list[Mistake]) -> Any:
    """Build a dataclass from a mapping, adding every mistake in it to `mistakes`."""
    if not isinstance(data, dict):
        message = f"{path or 'the config'}: expected a section, got {describe(data)}"
        mistakes.append(Mistake(path, message))
        return cls()
    hints = typing.get_type_hints(cls, include_extras=True)
    values = {}
    for key, value in data.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in hints:
            inside = [
                f"{section}.{key}"
                for section, hint in hints.items()
                if is_dataclass(hint) and key in typing.get_type_hints(hint)
            ]
            meant = did_you_mean(str(key), hints) or did_you_mean(str(key), inside)
            message = f"unknown key '{dotted}'{meant}"
            mistakes.append(Mistake(dotted, message))
        elif is_dataclass(hints[key]):
            values[key] = build_section(hints[key], value, dotted, mistakes)
        else:
            try:
                values[key] = convert(value, hints[key])
            except ValueError as error:
                mistakes.append(Mistake(dotted, f"{dotted}: {error}"))
    return cls(**values)


def convert(value: Any, hint: Any) -> Any:
    """Return a value as the type its setting asks for, or say what was expected."""
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
        for choice in arguments:
            if isinstance(value, list | tuple) == (typing.get_origin(choice) is tuple):
                with contextlib.suppress(ValueError):
                    return convert(value, choice)
        lists = [each for each in arguments if typing.get_origin(each) is tuple]
        singles = [each for each in arguments if typing.get_origin(each) is not tuple]
        if lists and isinstance(value, list | tuple):
            return convert(value, lists[0])  # its complaint stands for all of them
        try:
            return convert(value, singles[0])
        except ValueError as error:
            more = "; or give a list such as [a, b]" if lists else ""
            raise ValueError(f"{error}{more}") from None
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list such as [a, b], got {describe(value)}")
        return tuple(convert(item, arguments[0]) for item in value)
    if hint is float and type(value) is int:
        return float(min(max(value, -(10**300)), 10**300))  # beyond any range, but a float
    if type(value) is not hint:
        expected = {
            int: "a whole number", float: "a number", bool: "true or false", str: "a word",
            types.NoneType: "nothing",
        }[hint]  # fmt: skip
        raise ValueError(f"expected {expected}, got {describe(value)}")
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ValueError("must not contain a NUL character or half a surrogate pair")
    return value


def describe(value: Any) -> str:
    """A value as a person would write it, cut short if it is long."""
    names = {dict: "a section", types.NoneType: "nothing"}
    if type(value) in names:
        return names[type(value)]
    if isinstance(value, list | tuple):
        text = f"[{', '.join(map(str, value))}]"
    else:
        text = repr(value) if isinstance(value, str) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}..."


def contradictions(config: Config) -> list[tuple[list[str], bool, str]]:
    """The settings that can contradict each other: their keys, whether they do, and the words."""
    data, model, training = config.data, config.model, config.training
    places = {"source": data.source, "valid": data.valid, "test": data.test}
    d_head, probes = model.d_model // model.num_heads, config.logging.probes
    has_attention = model.kind == "transformer" or model.attention != "none"
    drops_inside = has_attention and model.inner_dropout > 0
    return [
        *contradictions_of_kind(model),
        (
            ["data.source", "data"],
            not data.source,
            "data.source: name a shipped corpus, a file, or two aligned files as [a.en, a.es]",
        ),
        *(
            (
                [f"data.{name}"],
                isinstance(place, tuple) and len(place) != 2,
                f"data.{name}: aligned files are two, such as [a.en, a.es]; got {len(place)}",
            )
            for name, place in places.items()
        ),
        (
            ["data.columns"],
            len(set(data.columns)) != 2
            or len(data.columns) != 2
            or len({type(column) for column in data.columns}) != 1,
            "data.columns: give two names, such as [en, es], or two numbers, such as [1, 2]",
        ),
        (
            ["data.columns"],
            any(isinstance(column, int) and column < 1 for column in data.columns),
            "data.columns: columns are counted from 1",
        ),
        *(
            (
                [f"data.split_{name}", f"data.{name}"],
                bool(place) and count > 0,
                f"data.split_{name}: data.{name} already names those pairs; set one of the two",
            )
            for name, place, count in (
                ("valid", data.valid, data.split_valid),
                ("test", data.test, data.split_test),
            )
        ),
        (
            ["tokenizer.max_size", "tokenizer.kind"],
            config.tokenizer.kind == "bpe" and not 1 <= config.tokenizer.max_size <= 10**6,
            "tokenizer.max_size: kind bpe needs a size from 1 to 1,000,000, such as 8000; "
            f"got {config.tokenizer.max_size}",
        ),
        (
            ["model.num_heads", "model.d_model"],
            model.kind == "transformer" and model.d_model % model.num_heads != 0,
            f"model.d_model ({model.d_model}) must be divisible by "
            f"model.num_heads ({model.num_heads})",
        ),
        (
            ["model.d_model", "model.position"],
            model.position == "sinusoidal" and model.d_model % 2 != 0,
            f"model.d_model ({model.d_model}) must be even for model.position: sinusoidal",
        ),
        (
            ["model.position", "model.d_model", "model.num_heads"],
            model.kind == "transformer" and model.position == "rotary" and d_head % 2 != 0,
            f"model.d_model / model.num_heads ({d_head}) must be even for model.position: rotary",
        ),
        (
            ["model.share_embeddings", "tokenizer.joint"],
            model.share_embeddings == "all" and not config.tokenizer.joint,
            "model.share_embeddings: all needs tokenizer.joint: true",
        ),
        (
            ["training.warmup_steps", "training.schedule"],
            training.schedule == "inverse_sqrt" and training.warmup_steps == 0,
            "training.warmup_steps: schedule inverse_sqrt needs at least 1",
        ),
        (
            ["training.warmup_steps", "training.steps"],
            training.warmup_steps > training.steps,
            f"training.warmup_steps ({training.warmup_steps}) must not exceed "
            f"training.steps ({training.steps})",
        ),
        (
            ["training.consistency", "model.dropout", "model.inner_dropout"],
            training.consistency > 0 and not model.dropout and not drops_inside,
            "training.consistency compares two passes that dropout makes differ: set model.dropout",
        ),
        (
            ["training.patience", "evaluation.best_metric"],
            training.patience > 0 and config.evaluation.best_metric == "none",
            "training.patience needs a metric to watch: name one as evaluation.best_metric",
        ),
        (
            ["evaluation.average", "training.keep_checkpoints"],
            config.evaluation.average > training.keep_checkpoints,
            f"training.keep_checkpoints ({training.keep_checkpoints}) must be at least "
            f"evaluation.average ({config.evaluation.average})",
        ),
        (
            ["logging.probes"],
            isinstance(probes, tuple) and not all(probe.strip() for probe in probes),
            "logging.probes: a sentence of it is blank",
        ),
    ]


def contradictions_of_kind(model: ModelConfig) -> list[tuple[list[str], bool, str]]:
    """Settings that a model of this kind has no use for."""
    of_transformer = {"num_heads": 1, "d_ff": 0, "norm": "none"}
    of_recurrent = {"cell": "gru", "bidirectional": False, "attention": "dot"}
    is_recurrent = model.kind == "recurrent"
    others = {"recurrent": of_transformer, "transformer": of_recurrent}[model.kind]
    of_other = {"recurrent": "a Transformer's", "transformer": "a recurrent model's"}[model.kind]
    joins = model.attention != "none" and not model.attention_output
    return [
        *(
            (
                [f"model.{name}", "model.kind"],
                getattr(model, name) != neutral,
                f"model.{name} is {of_other}; with model.kind: {model.kind} it must be "
                f"{str(neutral).lower()}; got {str(getattr(model, name)).lower()}",
            )
            for name, neutral in others.items()
        ),
        (
            ["model.position", "model.kind"],
            is_recurrent and model.position == "rotary",
            "model.position: rotary turns the queries of a Transformer; "
            "a recurrent model takes none, sinusoidal or learned",
        ),
        (
            ["model.num_encoder_layers", "model.num_decoder_layers", "model.kind"],
            is_recurrent and model.num_encoder_layers != model.num_decoder_layers,
            f"model.num_encoder_layers ({model.num_encoder_layers}) and model.num_decoder_layers "
            f"({model.num_decoder_layers}) must be equal for model.kind: recurrent: each layer of "
            "the decoder begins where one of the encoder ends",
        ),
        (
            ["model.bidirectional", "model.d_model"],
            is_recurrent and model.bidirectional and model.d_model % 2 != 0,
            f"model.d_model ({model.d_model}) must be even for model.bidirectional: true",
        ),
        (
            ["model.share_embeddings", "model.attention", "model.attention_output", "model.kind"],
            is_recurrent and model.share_embeddings != "none" and joins,
            f"model.share_embeddings: {model.share_embeddings} needs a head as wide as an "
            "embedding, and [context ; state] is twice as wide; set model.attention_output: true",
        ),
    ]


CONFIGS = Path(__file__).parent.parent / "configs"


def find_config(name: str) -> Path:
    """A config by its path, or by its name in configs/."""
    for path in (Path(name), CONFIGS / name, CONFIGS / f"{name}.yaml"):
        if path.exists() and not path.is_dir():
            return path
    shipped = ", ".join(sorted(path.name for path in CONFIGS.glob("*.yaml")))
    raise ConfigError(f"no config '{name}', here or in configs/ (there: {shipped})")


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file and apply `section.key=value` overrides to it."""
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
    origins = {apply_override(data, override): f"--set {override}" for override in overrides}
    return config_from_data(data, str(path), origins)


def apply_override(data: dict[str, Any], override: str) -> str:
    """Change one value in place, read as the file would read it, and return its dotted key."""
    path, equals, text = override.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key or not sections:
        whole = Config()
        known = [
            f"{section.name}.{each.name}"
            for section in fields(whole)
            for each in fields(getattr(whole, section.name))
        ]
        meant = next(
            (f", such as {name}={text or 'VALUE'}" for name in known if name.endswith(f".{key}")),
            "",
        )
        raise UsageError(f"--set {override}: write it as section.key=value{meant}")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise UsageError(f"--set {override}: '{section}' is not a section")
    data[key] = read_yaml(text, f"--set {override}") if text.strip() else ""
    return ".".join((*sections, key))


def config_from_data(
    data: dict[str, Any], where: str, origins: dict[str, str] | None = None
) -> Config:
    """Build a config, or raise one ConfigError with every mistake and where it was made."""
    mistakes: list[Mistake] = []
    config: Config = build_section(Config, data, "", mistakes)
    wrong = {mistake.key for mistake in mistakes}
    origins = origins or {}
    mistakes += [
        Mistake(next((key for key in keys if key in origins), keys[0]), message)
        for keys, is_wrong, message in contradictions(config)
        if is_wrong and not wrong.intersection(keys)
    ]
    if mistakes:
        places = [origins.get(mistake.key, where) for mistake in mistakes]
        lines = [f"{place}: {each.message}" for place, each in zip(places, mistakes, strict=True)]
        raise ConfigError("\n       ".join(lines))
    return config


def config_to_yaml(config: Config) -> str:
    """The whole config as YAML that load_config reads back to an equal one."""
    return write_yaml(
        {
            section: {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in values.items()
            }
            for section, values in dataclasses.asdict(config).items()
        }
    )


def changed_keys(old: Config, new: Config) -> dict[str, tuple[str, str]]:
    """The dotted keys whose values differ between two configs, each with both values."""
    return changed_between(dataclasses.asdict(old), dataclasses.asdict(new))


def changed_between(old: Any, new: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """The same for plain sections; a key that the old ones do not have is not compared."""
    changed = {}
    for section, values in new.items():
        before = old.get(section) if isinstance(old, dict) else None
        for key, value in values.items():
            if isinstance(before, dict) and key in before and before[key] != value:
                changed[f"{section}.{key}"] = describe(before[key]), describe(value)
    return changed
