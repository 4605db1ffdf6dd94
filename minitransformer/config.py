"""A run's settings: frozen dataclasses, read from YAML, every mistake reported at once."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from minitransformer.errors import ConfigError, UsageError
from minitransformer.schema import Mistake, Range, build_section, describe
from minitransformer.strict_yaml import read_yaml, write_yaml

Count = Annotated[int, Range(1, 10**9)]
CountOrNone = Annotated[int, Range(0, 10**9)]  # 0 switches the thing off
Width = Annotated[int, Range(1, 16384)]
Depth = Annotated[int, Range(1, 256)]
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
    d_model: Width = 64
    num_heads: Width = 1
    num_encoder_layers: Depth = 1
    num_decoder_layers: Depth = 1
    d_ff: Annotated[int, Range(0, 65536)] = 0
    norm: Literal["none", "pre", "post"] = "none"
    position: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    max_length: Annotated[int, Range(1, 100_000)] = 64
    scale_scores: bool = True
    attention_output: bool = False
    bias: bool = False
    head_bias: bool = True
    activation: Literal["relu", "gelu"] = "relu"
    dropout: Share = 0.0
    share_embeddings: Literal["none", "target", "all"] = "none"
    scale_embeddings: bool = False
    embedding_std: NotNegative = 0.3
    start_token: Literal["eos", "bos"] = "eos"
    source_end: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    steps: Count = 600
    seed: Annotated[int, Range(0, 2**63 - 1)] = 1
    threads: Annotated[int, Range(0, 1024)] = 1
    batch_tokens: Count = 900
    accumulate: Count = 1
    learning_rate: Positive = 0.01
    schedule: Literal["constant", "inverse_sqrt", "cosine"] = "cosine"
    warmup_steps: CountOrNone = 0
    beta1: Share = 0.9
    beta2: Share = 0.999
    weight_decay: NotNegative = 0.3
    clip_norm: NotNegative = 1.0
    label_smoothing: Share = 0.0
    save_every: Count = 75
    keep_checkpoints: Annotated[int, Range(2, 10**9)] = 2
    start_from: str = ""
    train_only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every: Count = 75
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
        meant = next((f", such as {name}" for name in known if name.endswith(f".{key}")), "")
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
    mistakes += [
        Mistake(keys[0], message)
        for keys, is_wrong, message in contradictions(config)
        if is_wrong and not wrong.intersection(keys)
    ]
    if mistakes:
        places = [(origins or {}).get(mistake.key, where) for mistake in mistakes]
        lines = [f"{place}: {each.message}" for place, each in zip(places, mistakes, strict=True)]
        raise ConfigError("\n       ".join(lines))
    return config


def contradictions(config: Config) -> list[tuple[list[str], bool, str]]:
    """The settings that can contradict each other: their keys, whether they do, and the words."""
    model, training = config.model, config.training
    d_head = model.d_model // model.num_heads
    return [
        (
            ["data.source", "data"],
            not config.data.source,
            "data.source: name a shipped corpus or a tab-separated file",
        ),
        (
            ["model.num_heads", "model.d_model"],
            model.d_model % model.num_heads != 0,
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
            model.position == "rotary" and d_head % 2 != 0,
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
    ]


def config_to_yaml(config: Config) -> str:
    """The whole config as YAML that load_config reads back to an equal one."""
    data = dataclasses.asdict(config)
    data["training"]["train_only"] = list(config.training.train_only)
    return write_yaml(data)


def changed_keys(old: Config, new: Config) -> dict[str, str]:
    """The dotted keys whose values differ between two configs, each with "old, now new"."""
    changed = {}
    for section in fields(Config):
        before, after = getattr(old, section.name), getattr(new, section.name)
        for key in fields(before):
            values = [describe(getattr(each, key.name)) for each in (before, after)]
            if getattr(before, key.name) != getattr(after, key.name):
                changed[f"{section.name}.{key.name}"] = f"{values[0]}, now {values[1]}"
    return changed
