"""Every setting of a run with its default."""

from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True)
class Range:
    """The numbers a setting may take."""

    low: float
    high: float
    below: bool = False  # True: `high` itself is not allowed

    def __contains__(self, value: float) -> bool:
        return self.low <= value and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        high = f"{self.high:,}" if isinstance(self.high, int) else f"{self.high:g}"
        return f"from {self.low:g} {'to below' if self.below else 'to'} {high}"


Count = Annotated[int, Range(1, 10**9)]
CountOrNone = Annotated[int, Range(0, 10**9)]  # 0 switches the thing off
Width = Annotated[int, Range(1, 16384)]
Depth = Annotated[int, Range(1, 256)]
Positive = Annotated[float, Range(1e-12, 1e12)]
NotNegative = Annotated[float, Range(0, 1e12)]
Share = Annotated[float, Range(0, 1, below=True)]


Place = str | tuple[str, ...]  # a name, or the two files of an aligned pair
DropOrStop = Literal["skip", "error"]  # for what cannot be trained on
Policy = Literal["keep", "skip", "error"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    source: Place = ""
    valid: Place = ""
    test: Place = ""
    columns: tuple[str | int, ...] = ("source", "target")
    subset: str = ""
    split_valid: CountOrNone = 0
    split_test: CountOrNone = 0
    split_seed: Annotated[int, Range(0, 2**63 - 1)] = 1
    limit: CountOrNone = 0
    cache: str = "~/.cache/minitransformer"


@dataclass(frozen=True, kw_only=True)
class HygieneConfig:
    """What becomes of a pair with a defect; the names are those of data/hygiene.py."""

    malformed: DropOrStop = "skip"
    not_utf8: DropOrStop = "skip"
    empty: DropOrStop = "skip"
    one_sided: DropOrStop = "skip"
    too_long: DropOrStop = "skip"
    header: Policy = "skip"
    nul: Policy = "skip"
    control: Policy = "skip"
    not_nfc: Policy = "keep"
    same_text: Policy = "keep"
    duplicate: Policy = "keep"
    several_targets: Policy = "keep"
    overlap: Policy = "keep"
    unknown: Policy = "keep"


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    kind: Literal["words", "bpe"] = "words"
    words: str = "unicode"
    joint: bool = False
    min_frequency: Count = 1
    max_size: CountOrNone = 0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    kind: Literal["transformer", "recurrent"] = "transformer"
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
    inner_dropout: Share = 0.0
    share_embeddings: Literal["none", "target", "all"] = "none"
    scale_embeddings: bool = False
    embedding_std: NotNegative = 0.3
    start_token: Literal["eos", "bos"] = "eos"
    source_end: bool = False
    cell: Literal["gru", "lstm"] = "gru"
    bidirectional: bool = False
    attention: Literal["none", "dot", "multiplicative"] = "dot"


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    steps: Count = 600
    seed: Annotated[int, Range(0, 2**63 - 1)] = 1
    processes: Annotated[int, Range(1, 1024)] = 1
    threads: Annotated[int, Range(0, 1024)] = 1
    precision: Literal["float32", "bf16"] = "float32"
    join_timeout: Annotated[float, Range(1, 86_400)] = 60
    step_timeout: Annotated[float, Range(1, 86_400)] = 600
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
    consistency: NotNegative = 0.0
    patience: CountOrNone = 0
    save_every: Count = 75
    keep_checkpoints: Annotated[int, Range(2, 10**9)] = 2
    start_from: str = ""
    train_only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every: Count = 75
    train_pairs: CountOrNone = 1000
    batch_size: Count = 64
    average: Count = 1
    samples: CountOrNone = 5
    bleu_tokenizer: Literal["13a", "intl", "char", "none"] = "13a"
    best_metric: Literal[
        "none", "loss", "exact_match", "accuracy_teacher_forced", "accuracy_free_running",
        "bleu", "chrf",
    ] = "none"  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    tensorboard: bool = True
    every: Count = 1
    probes: tuple[str, ...] | Annotated[int, Range(0, 1000)] = 2


@dataclass(frozen=True, kw_only=True)
class Config:
    data: DataConfig = DataConfig()
    hygiene: HygieneConfig = HygieneConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()
