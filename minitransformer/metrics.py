"""Metrics: losses and accuracies as (sum, count), BLEU and chrF from sacreBLEU."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

MIN_RESAMPLED = 20  # sentences; samples of fewer are all much the same
References = Sequence[Sequence[str]]  # one or more for each sentence


@dataclass(frozen=True)
class Sum:
    """A sum with its count, so that parts of any size can be added."""

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
    details: str = ""  # of BLEU: the four precisions and both lengths


def matching_tokens(produced: list[int], expected: list[int]) -> Sum:
    """Count the expected tokens that were produced at their position."""
    return Sum(sum(map(int.__eq__, produced, expected)), len(expected))


def perplexity(loss: float) -> float | None:
    """Return e^loss; None where it is too large for a float."""
    return math.exp(loss) if loss < 700 else None


def bleu(
    translations: list[str], references: References, tokenizer: str, *, lowercase: bool = False
) -> Score:
    """Return corpus BLEU of detokenized text; None where no reference has four words."""
    from sacrebleu.metrics.bleu import BLEU

    # `none` is for tokenized text; `force` suppresses the warning about it.
    metric = BLEU(tokenize=tokenizer, lowercase=lowercase, force=tokenizer == "none")
    result = metric.corpus_score(translations, reference_streams(references))
    return Score(
        result.score if has_four_words(references, metric) else None,
        str(metric.get_signature()),
        result.format(score_only=False, width=2).removeprefix("BLEU = "),
    )


def chrf(translations: list[str], references: References) -> Score:
    """Return corpus chrF of detokenized text."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    value = metric.corpus_score(translations, reference_streams(references)).score
    return Score(value, str(metric.get_signature()))


class Resampled(NamedTuple):
    """A score, with its mean and 95 % interval over bootstrap samples of the sentences."""

    score: float
    mean: float
    half_width: float  # of the interval

    def __str__(self) -> str:
        return f"{self.score:.2f} ({self.mean:.2f} ± {self.half_width:.2f})"


class Comparison(NamedTuple):
    """Two systems compared by one metric."""

    metric: str
    signature: str
    first: Resampled
    second: Resampled
    p: float | None  # None: too few sentences


def compare(
    first: list[str], second: list[str], references: References, tokenizer: str
) -> list[Comparison]:
    """Compare by BLEU (where defined) and chrF, with sacreBLEU's paired bootstrap resampling."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    bleu_metric = BLEU(tokenize=tokenizer, force=tokenizer == "none")
    metrics: dict[str, Any] = {"BLEU": bleu_metric, "chrF": CHRF()}
    systems: list[tuple[str, Sequence[str]]] = [("first", first), ("second", second)]
    test: Any = PairedTest(systems, metrics, reference_streams(references), test_type="bs")
    signatures, results = test()
    del results["System"]
    found = []
    for name, both in results.items():
        if name == "BLEU" and not has_four_words(references, bleu_metric):
            continue
        one, other = (Resampled(each.score, each.mean, each.ci) for each in both)
        p = None if len(first) < MIN_RESAMPLED else both[1].p_value
        if one.score == other.score:  # sacreBLEU would return 0.001: no sample differs by more
            p = 1.0
        found.append(Comparison(name, str(signatures[name]), one, other, p))
    return found


def has_four_words(references: References, metric: Any) -> bool:
    """Return whether any reference has a 4-gram, without which BLEU is undefined."""
    return any(len(metric.tokenizer(text).split()) >= 4 for each in references for text in each)


def reference_streams(references: References) -> list[list[Any]]:
    """Return the first reference of each sentence, then the second, …; None where there is none."""
    return [list(each) for each in zip_longest(*references)]
