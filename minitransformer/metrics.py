"""How good it is: losses and accuracies as (sum, count), BLEU and chrF from sacreBLEU."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Sum:
    """A sum that travels with its count, so that parts of any size add up."""

    total: float
    count: int

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)


class Score(NamedTuple):
    """A sacreBLEU score with the signature that makes it comparable."""

    value: float | None  # None where the sentences are too short for the metric
    signature: str


def summed_loss(
    logits: Float[Tensor, "*places vocab"],
    labels: Int[Tensor, "*places"],
    pad_id: int,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Cross-entropy summed over the labels that are not padding."""
    return functional.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=pad_id,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def matching_tokens(produced: list[int], expected: list[int]) -> Sum:
    """How many expected tokens were produced at their place."""
    return Sum(sum(map(int.__eq__, produced, expected)), len(expected))


def perplexity(loss: float) -> float | None:
    """The exponential of the loss; None where it is too large for a number."""
    return math.exp(loss) if loss < 700 else None


def bleu(translations: list[str], references: list[str], tokenizer: str) -> Score:
    """Corpus BLEU of detokenized text; None where no reference has the four words it counts."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenizer)
    value = metric.corpus_score(translations, [references]).score
    is_countable = any(len(metric.tokenizer(text).split()) >= 4 for text in references)
    return Score(value if is_countable else None, str(metric.get_signature()))


def chrf(translations: list[str], references: list[str]) -> Score:
    """Corpus chrF of detokenized text."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return Score(metric.corpus_score(translations, [references]).score, str(metric.get_signature()))
