"""A run's settings: frozen dataclasses, read from YAML, every mistake reported at once."""

import dataclasses
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from minitransformer.errors import ConfigError, UsageError, did_you_mean
from minitransformer.strict_yaml import read_yaml, write_yaml


@dataclass(frozen=True)
class Range:
    """The numbers a setting may take."""

    low: float
    high: float = float("inf")
    below: bool = False  # True: `high` itself is not allowed

    def __contains__(self, value: float) -> bool:
        return self.low <= value and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        if self.high == float("inf"):
            return f"at least {self.low:g}"
        return f"from {self.low:g} {'to below' if self.below else 'to'} {self.high:g}"


Count = Annotated[int, Range(1)]
CountOrNone = Annotated[int, Range(0)]  # 0 switches the thing off
Positive = Annotated[float, Range(1e-12, 1e12)]
NotNegative = Annotated[float, Range(0, 1e12)]
Share = Annotated[float, Range(0, 1, below=True)]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    source: str = ""
    valid: str = ""
    limit: CountOrNone = 0


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    kind: Literal["words"] = "words"
    words: str = "unicode"
    joint: bool = False
    min_frequency: Count = 1
    max_size: CountOrNone = 0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    d_model: Count = 64
    num_heads: Count = 1
    num_encoder_layers: Count = 1
    num_decoder_layers: Count = 1
    d_ff: CountOrNone = 0
    norm: Literal["none", "pre", "post"] = "none"
    position: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    max_length: Count = 128
    scale_scores: bool = True
    attention_output: bool = False
    bias: bool = False
    head_bias: bool = True
    activation: Literal["relu", "gelu"] = "relu"
    dropout: Share = 0.0
    share_embeddings: Literal["none", "target", "all"] = "none"
    scale_embeddings: bool = False
    embedding_std: NotNegative = 0.1
    start_token: Literal["eos", "bos"] = "eos"
    source_end: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    steps: Count = 400
    seed: Annotated[int, Range(0, 2**63 - 1)] = 1
    threads: CountOrNone = 1
    batch_tokens: Count = 4096
    accumulate: Count = 1
    learning_rate: Positive = 0.003
    schedule: Literal["constant", "inverse_sqrt", "cosine"] = "constant"
    warmup_steps: CountOrNone = 0
    beta1: Share = 0.9
    beta2: Share = 0.999
    weight_decay: NotNegative = 0.3
    clip_norm: NotNegative = 1.0
    label_smoothing: Share = 0.0
    save_every: Count = 50
    keep_checkpoints: Annotated[int, Range(2)] = 2
    start_from: str = ""
    train_only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every: Count = 50
    train_pairs: CountOrNone = 1000
    batch_size: Count = 64
    samples: CountOrNone = 5
    bleu_tokenizer: Literal["13a", "intl", "char", "none"] = "13a"
    best_metric: Literal[
        "none", "loss", "exact_match", "accuracy_teacher_forced", "accuracy_free_running",
        "bleu", "chrf",
    ] = "none"  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file and apply `section.key=value` overrides to it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    data = read_yaml(text, str(path))
    if data is None:
        raise ConfigError(f"{path}: the config is empty")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a config is a mapping of sections, got {describe(data)}")
    for override in overrides:
        apply_override(data, override)
    return config_from_data(data, str(path))


def apply_override(data: dict[str, Any], override: str) -> None:
    """Change one value in place; `training.steps=50` reads its value as the file would."""
    path, equals, text = override.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key or not sections:
        raise UsageError(f"--set {override}: write it as section.key=value")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise UsageError(f"--set {override}: '{section}' is not a section")
    data[key] = read_yaml(text, f"--set {override}") if text.strip() else ""


def config_from_data(data: dict[str, Any], where: str) -> Config:
    """Build a config from plain data, or raise one ConfigError with every mistake in it."""
    errors: list[str] = []
    config: Config = build_section(Config, data, "", errors)
    if not errors:
        errors = contradictions(config)
    if errors:
        raise ConfigError("\n       ".join(f"{where}: {error}" for error in errors))
    return config


def build_section(cls: Any, data: Any, path: str, errors: list[str]) -> Any:
    if not isinstance(data, dict):
        errors.append(f"{path or 'the config'}: expected a section, got {describe(data)}")
        return cls()
    hints = typing.get_type_hints(cls, include_extras=True)
    values = {}
    for key, value in data.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in hints:
            errors.append(f"unknown key '{dotted}'{did_you_mean(str(key), hints)}")
        elif is_dataclass(hints[key]):
            values[key] = build_section(hints[key], value, dotted, errors)
        else:
            try:
                values[key] = convert(value, hints[key])
            except ValueError as error:
                errors.append(f"{dotted}: {error}")
    return cls(**values)


def convert(value: Any, hint: Any) -> Any:
    """Return a value as the type its setting asks for, or say what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        converted = convert(value, arguments[0])
        if converted not in arguments[1]:
            raise ValueError(f"must be {arguments[1]}, got {value}")
        return converted
    if origin is Literal:
        if value not in arguments:
            allowed = ", ".join(str(choice) for choice in arguments)
            meant = did_you_mean(str(value), map(str, arguments))
            raise ValueError(f"must be one of {allowed}; got {describe(value)}{meant}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list such as [a, b], got {describe(value)}")
        return tuple(convert(item, arguments[0]) for item in value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        expected = {
            int: "a whole number", float: "a number", bool: "true or false", str: "a word",
        }[hint]  # fmt: skip
        raise ValueError(f"expected {expected}, got {describe(value)}")
    return value


def contradictions(config: Config) -> list[str]:
    """Name every pair of settings that cannot stand together."""
    model, training = config.model, config.training
    d_head = model.d_model // model.num_heads
    checks = {
        "data.source: name a shipped corpus or a tab-separated file": not config.data.source,
        f"model.d_model ({model.d_model}) must be divisible by "
        f"model.num_heads ({model.num_heads})": model.d_model % model.num_heads,
        f"model.d_model ({model.d_model}) must be even "
        "for model.position: sinusoidal": model.position == "sinusoidal" and model.d_model % 2,
        f"model.d_model / model.num_heads ({d_head}) must be even "
        "for model.position: rotary": model.position == "rotary" and d_head % 2,
        "model.share_embeddings: all needs tokenizer.joint: true": (
            model.share_embeddings == "all" and not config.tokenizer.joint
        ),
        "training.warmup_steps: schedule inverse_sqrt needs at least 1": (
            training.schedule == "inverse_sqrt" and training.warmup_steps == 0
        ),
        f"training.warmup_steps ({training.warmup_steps}) must not exceed "
        f"training.steps ({training.steps})": training.warmup_steps > training.steps,
    }
    return [message for message, is_wrong in checks.items() if is_wrong]


def describe(value: Any) -> str:
    names = {dict: "a section", list: "a list", types.NoneType: "nothing"}
    return names.get(type(value)) or (repr(value) if isinstance(value, str) else str(value).lower())


def config_to_yaml(config: Config) -> str:
    """The whole config as YAML that load_config reads back to an equal one."""
    data = dataclasses.asdict(config)
    data["training"]["train_only"] = list(config.training.train_only)
    return write_yaml(data)


def changed_keys(old: Config, new: Config) -> list[str]:
    """The dotted keys whose values differ between two configs."""
    return [
        f"{section.name}.{key.name}"
        for section in fields(Config)
        for key in fields(getattr(old, section.name))
        if getattr(getattr(old, section.name), key.name)
        != getattr(getattr(new, section.name), key.name)
    ]
