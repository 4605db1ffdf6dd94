"""How good it is: losses and accuracies as (sum, count), BLEU and chrF from sacreBLEU."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
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

    value: float
    signature: str


def summed_loss(
    logits: Float[Tensor, "batch target vocab"],
    labels: Int[Tensor, "batch target"],
    pad_id: int,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Cross-entropy summed over the labels that are not padding."""
    return functional.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=pad_id,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def correct_tokens(
    logits: Float[Tensor, "batch target vocab"], labels: Int[Tensor, "batch target"], pad_id: int
) -> Sum:
    """How many labels are the most probable token."""
    is_real = labels != pad_id
    is_right = (logits.argmax(dim=-1) == labels) & is_real
    return Sum(int(is_right.sum()), int(is_real.sum()))


def matching_tokens(produced: list[int], expected: list[int]) -> Sum:
    """How many expected tokens were produced at their place."""
    return Sum(sum(map(int.__eq__, produced, expected)), len(expected))


def perplexity(loss: float) -> float:
    return float(torch.tensor(loss, dtype=torch.float64).exp())


def bleu(translations: list[str], references: list[str], tokenizer: str) -> Score:
    """Corpus BLEU of detokenized text."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenizer)
    return Score(metric.corpus_score(translations, [references]).score, str(metric.get_signature()))


def chrf(translations: list[str], references: list[str]) -> Score:
    """Corpus chrF of detokenized text."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return Score(metric.corpus_score(translations, [references]).score, str(metric.get_signature()))
