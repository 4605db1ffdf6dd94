"""A synthetic corpus with the lengths of a small translation corpus, the same on every machine."""

import functools
import math
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from minitransformer.data.batching import Batch, epoch_order, make_batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, SPECIALS

PAIRS = 29_000
VOCABULARY = 10_000  # of both sides, with the specials
MEAN_LENGTH, LENGTH_DEVIATION, LONGEST = 13.1, 5.0, 40  # in words, without <EOS>
SIDE_DEVIATION = 0.1  # of a target's length, as a part of its source's
CORPUS_SEED, ORDER_SEED = 1, 2


class Size(NamedTuple):
    """What every contestant builds: layers on each side, and their widths."""

    name: str
    layers: int
    d_model: int
    d_ff: int
    heads: int


SIZES = {
    size.name: size for size in (Size("4+4×128", 4, 128, 256, 4), Size("3+3×256", 3, 256, 512, 8))
}


def lengths(count: int, random: numpy.random.RandomState) -> NDArray[numpy.int64]:
    """Lognormal, with the mean and the deviation above."""
    variance = math.log(1 + (LENGTH_DEVIATION / MEAN_LENGTH) ** 2)
    centre = math.log(MEAN_LENGTH) - variance / 2
    return whole_lengths(random.lognormal(centre, math.sqrt(variance), size=count))


def whole_lengths(values: NDArray[numpy.float64]) -> NDArray[numpy.int64]:
    return numpy.clip(values.round(), 1, LONGEST).astype(numpy.int64)


def sentences(
    word_counts: NDArray[numpy.int64], random: numpy.random.RandomState
) -> list[list[int]]:
    """Words by Zipf's law, <EOS> after each sentence."""
    words = VOCABULARY - len(SPECIALS)
    probabilities = 1 / numpy.arange(1, words + 1)
    ids = random.choice(words, size=word_counts.sum(), p=probabilities / probabilities.sum())
    parts = numpy.split(ids + len(SPECIALS), word_counts.cumsum()[:-1])
    return [[*part.tolist(), EOS_ID] for part in parts]


@functools.cache
def corpus() -> list[EncodedPair]:
    """All pairs; a target is about as long as its source."""
    random = numpy.random.RandomState(CORPUS_SEED)  # its stream is frozen for good
    source_counts = lengths(PAIRS, random)
    target_counts = whole_lengths(source_counts * random.normal(1, SIDE_DEVIATION, size=PAIRS))
    sides = sentences(source_counts, random), sentences(target_counts, random)
    return [EncodedPair(source, target) for source, target in zip(*sides, strict=True)]


def batches_of(places: list[NDArray[numpy.int64]]) -> list[Batch]:
    pairs = corpus()
    return [make_batch([pairs[place] for place in chosen], BOS_ID) for chosen in places]


def fixed_batches(count: int, rows: int = 128) -> list[Batch]:
    """Random sentences, padded to the longest of their batch, as tutorials do."""
    shuffled = numpy.random.RandomState(ORDER_SEED).permutation(PAIRS)
    return batches_of([shuffled[number * rows : (number + 1) * rows] for number in range(count)])


def bucketed_batches(count: int, tokens: int = 2000) -> list[Batch]:
    """Sentences of similar length, as this project trains."""
    sources, targets = (
        numpy.array([len(side) for side in sides], dtype=numpy.int32)
        for sides in zip(*corpus(), strict=True)
    )
    order = epoch_order((sources, targets), batch_tokens=tokens, seed=ORDER_SEED, epoch=0)
    return batches_of(order[:count])


def sources(count: int, seed: int) -> list[list[int]]:
    """Sentences to decode, each with its <EOS>."""
    random = numpy.random.RandomState(seed)
    return sentences(lengths(count, random), random)
