"""Every setting of a run: its type, its default and the values that it may have."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be."""

    low: float
    high: float
    excludes_high: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value and (
            value < self.high if self.excludes_high else value <= self.high
        )

    def __str__(self) -> str:
        high = f"{self.high:,}" if isinstance(self.high, int) else f"{self.high:g}"
        return f"from {self.low:g} {'to below' if self.excludes_high else 'to'} {high}"


PositiveInt = Annotated[int, Range(1, 10**9)]
NonNegativeInt = Annotated[int, Range(0, 10**9)]  # 0: off, or no limit
Width = Annotated[int, Range(1, 16384)]
Depth = Annotated[int, Range(1, 256)]
PositiveFloat = Annotated[float, Range(1e-12, 1e12)]
NonNegativeFloat = Annotated[float, Range(0, 1e12)]
Fraction = Annotated[float, Range(0, 1, excludes_high=True)]

CorpusPath = str | tuple[str, ...]  # a name, or the two files of an aligned pair
SkipOrError = Literal["skip", "error"]  # for what cannot be trained on
KeepSkipOrError = Literal["keep", "skip", "error"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    train: CorpusPath = ""
    valid: CorpusPath = ""
    test: CorpusPath = ""
    columns: tuple[str | int, ...] = ("source", "target")
    subset: str = ""
    split_valid: NonNegativeInt = 0
    split_test: NonNegativeInt = 0
    split_seed: Annotated[int, Range(0, 2**63 - 1)] = 1
    limit: NonNegativeInt = 0
    cache: str = "~/.cache/minitransformer"


@dataclass(frozen=True, kw_only=True)
class FiltersConfig:
    """What becomes of a pair with a defect; the names are those of data/filters.py."""

    malformed: SkipOrError = "skip"
    not_utf8: SkipOrError = "skip"
    empty: SkipOrError = "skip"
    one_sided: SkipOrError = "skip"
    too_long: SkipOrError = "skip"
    header: KeepSkipOrError = "skip"
    nul: KeepSkipOrError = "skip"
    control: KeepSkipOrError = "skip"
    not_nfc: KeepSkipOrError = "keep"
    same_text: KeepSkipOrError = "keep"
    duplicate: KeepSkipOrError = "keep"
    several_targets: KeepSkipOrError = "keep"
    overlap: KeepSkipOrError = "keep"
    unknown: KeepSkipOrError = "keep"


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    kind: Literal["words", "bpe"] = "words"
    words: str = "unicode"
    joint: bool = False
    min_frequency: PositiveInt = 1
    vocab_size: NonNegativeInt = 0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    kind: Literal["transformer", "recurrent"] = "transformer"
    d_model: Width = 64
    num_heads: Width = 1
    num_encoder_layers: Depth = 1
    num_decoder_layers: Depth = 1
    d_ff: Annotated[int, Range(0, 65536)] = 0
    norm: Literal["none", "pre", "post"] = "none"
    positional_encoding: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    max_length: Annotated[int, Range(1, 100_000)] = 64
    scale_scores: bool = True
    output_projection: bool = False
    bias: bool = False
    head_bias: bool = True
    activation: Literal["relu", "gelu"] = "relu"
    dropout: Fraction = 0.0
    self_attention_dropout: Fraction = 0.0
    cross_attention_dropout: Fraction = 0.0
    activation_dropout: Fraction = 0.0
    tie_embeddings: Literal["none", "target", "all"] = "none"
    scale_embeddings: bool = False
    embedding_std: NonNegativeFloat = 0.3
    decoder_start_token: Literal["eos", "bos"] = "eos"
    source_eos: bool = False
    cell: Literal["gru", "lstm"] = "gru"
    bidirectional: bool = False
    attention: Literal["none", "dot", "multiplicative"] = "dot"


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    steps: PositiveInt = 600
    seed: Annotated[int, Range(0, 2**63 - 1)] = 1
    processes: Annotated[int, Range(1, 1024)] = 1
    threads: Annotated[int, Range(0, 1024)] = 1
    precision: Literal["float32", "bf16"] = "float32"
    join_timeout: Annotated[float, Range(1, 86_400)] = 60
    step_timeout: Annotated[float, Range(1, 86_400)] = 600
    batch_tokens: PositiveInt = 900
    gradient_accumulation: PositiveInt = 1
    learning_rate: PositiveFloat = 0.01
    schedule: Literal["constant", "inverse_sqrt", "cosine"] = "cosine"
    warmup_steps: NonNegativeInt = 0
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    weight_decay: NonNegativeFloat = 0.3
    clip_norm: NonNegativeFloat = 1.0
    label_smoothing: Fraction = 0.0
    rdrop_alpha: NonNegativeFloat = 0.0
    patience: NonNegativeInt = 0
    save_every: PositiveInt = 75
    keep_checkpoints: Annotated[int, Range(2, 10**9)] = 2
    init_from: str = ""
    trainable: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every: PositiveInt = 75
    train_pairs: NonNegativeInt = 1000
    batch_size: PositiveInt = 64
    average_checkpoints: PositiveInt = 1
    samples: NonNegativeInt = 5
    bleu_tokenizer: Literal["13a", "intl", "char", "none"] = "13a"
    best_metric: Literal[
        "none", "loss", "exact_match", "accuracy_teacher_forced", "accuracy_free_running",
        "bleu", "chrf",
    ] = "none"  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    tensorboard: bool = True
    every: PositiveInt = 1
    examples: tuple[str, ...] | Annotated[int, Range(0, 1000)] = 2


@dataclass(frozen=True, kw_only=True)
class Config:
    data: DataConfig = DataConfig()
    filters: FiltersConfig = FiltersConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()


# Modules renamed since run format 1, old name to new; their names are part of parameter names.
RENAMED_MODULES = {
    "widen": "fc1", "narrow": "fc2", "word": "input_proj", "state": "hidden_proj",
    "rightward": "forward_rnn", "leftward": "backward_rnn",
}  # fmt: skip


def rename_module_path(path: str) -> str:
    """Rename encoder.layers.0.feed_forward.widen to encoder.layers.0.feed_forward.fc1."""
    return ".".join(RENAMED_MODULES.get(part, part) for part in path.split("."))


class Renaming(NamedTuple):
    """The present names of a setting of run format 1, and how its value changed."""

    keys: tuple[str, ...]
    convert: Callable[[Any], Any] = lambda value: value


def twice(value: Any) -> Any:
    return 2 * value if type(value) in (int, float) and value in Range(0, 1e12) else value


def rename_module_paths(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return [rename_module_path(each) if isinstance(each, str) else each for each in value]


RENAMED: dict[str, Renaming] = {
    "data.source": Renaming(("data.train",)),
    **{
        f"hygiene.{field.name}": Renaming((f"filters.{field.name}",))
        for field in fields(FiltersConfig)
    },
    "tokenizer.max_size": Renaming(("tokenizer.vocab_size",)),
    "model.position": Renaming(("model.positional_encoding",)),
    "model.attention_output": Renaming(("model.output_projection",)),
    "model.inner_dropout": Renaming(
        (
            "model.self_attention_dropout",
            "model.cross_attention_dropout",
            "model.activation_dropout",
        )
    ),
    "model.share_embeddings": Renaming(("model.tie_embeddings",)),
    "model.start_token": Renaming(("model.decoder_start_token",)),
    "model.source_end": Renaming(("model.source_eos",)),
    # c was the weight beside the mean of both cross-entropies; R-Drop adds alpha to their sum.
    "training.consistency": Renaming(("training.rdrop_alpha",), twice),
    "training.accumulate": Renaming(("training.gradient_accumulation",)),
    "training.start_from": Renaming(("training.init_from",)),
    "training.train_only": Renaming(("training.trainable",), rename_module_paths),
    "evaluation.average": Renaming(("evaluation.average_checkpoints",)),
    "logging.probes": Renaming(("logging.examples",)),
}
