"""How good it is: losses and accuracies as (sum, count), BLEU and chrF from sacreBLEU."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

LEAST_SENTENCES = 20  # to be drawn from; of fewer, every drawing is much the same
References = Sequence[Sequence[str]]  # one or more for each sentence


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
    details: str = ""  # of BLEU: the four precisions and both lengths


def matching_tokens(produced: list[int], expected: list[int]) -> Sum:
    """How many expected tokens were produced at their place."""
    return Sum(sum(map(int.__eq__, produced, expected)), len(expected))


def perplexity(loss: float) -> float | None:
    """The exponential of the loss; None where it is too large for a number."""
    return math.exp(loss) if loss < 700 else None


def bleu(
    translations: list[str], references: References, tokenizer: str, *, lowercase: bool = False
) -> Score:
    """Corpus BLEU of detokenized text; None where no reference has the four words it counts."""
    from sacrebleu.metrics.bleu import BLEU

    # With `none` the text is meant to be tokenized, which is what `force` is silent about.
    metric = BLEU(tokenize=tokenizer, lowercase=lowercase, force=tokenizer == "none")
    result = metric.corpus_score(translations, streams(references))
    return Score(
        result.score if has_four_words(references, metric) else None,
        str(metric.get_signature()),
        result.format(score_only=False, width=2).removeprefix("BLEU = "),
    )


def has_four_words(references: References, metric: Any) -> bool:
    """BLEU counts four words in a row; it is no number where no reference has them."""
    return any(len(metric.tokenizer(text).split()) >= 4 for each in references for text in each)


def chrf(translations: list[str], references: References) -> Score:
    """Corpus chrF of detokenized text."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    value = metric.corpus_score(translations, streams(references)).score
    return Score(value, str(metric.get_signature()))


def streams(references: References) -> list[list[Any]]:
    """References as sacreBLEU wants them: the first of each sentence, the second; none is None."""
    return [list(each) for each in zip_longest(*references)]


class Resampled(NamedTuple):
    """A score, and how it spreads over tests of sentences drawn from the test at random."""

    score: float
    mean: float
    half: float  # of the 95 % interval

    def __str__(self) -> str:
        return f"{self.score:.2f} ({self.mean:.2f} ± {self.half:.2f})"


class Comparison(NamedTuple):
    """Two systems by one metric."""

    metric: str
    signature: str
    first: Resampled
    second: Resampled
    p: float | None  # how often chance alone makes them differ as much; None: too few sentences


def compare(
    first: list[str], second: list[str], references: References, tokenizer: str
) -> list[Comparison]:
    """BLEU (where it counts anything) and chrF, by sacreBLEU's paired bootstrap resampling."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    bleu = BLEU(tokenize=tokenizer, force=tokenizer == "none")
    metrics: dict[str, Any] = {"BLEU": bleu, "chrF": CHRF()}
    systems: list[tuple[str, Sequence[str]]] = [("first", first), ("second", second)]
    test: Any = PairedTest(systems, metrics, streams(references), test_type="bs")
    signatures, results = test()
    del results["System"]
    found = []
    for name, both in results.items():
        if name == "BLEU" and not has_four_words(references, bleu):
            continue
        one, other = (Resampled(each.score, each.mean, each.ci) for each in both)
        p = None if len(first) < LEAST_SENTENCES else both[1].p_value
        if one.score == other.score:  # nothing differs by more, from which it concludes 0.001
            p = 1.0
        found.append(Comparison(name, str(signatures[name]), one, other, p))
    return found
