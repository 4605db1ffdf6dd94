"""Generate a corpus with the sentence lengths of a small real one, the same on every machine."""

import functools
import math
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from minitransformer.data.batching import Batch, epoch_order, make_batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, SPECIALS

PAIRS = 29_000
VOCAB_SIZE = 10_000  # of either side, including the special tokens
MEAN_LENGTH, LENGTH_STD, MAX_LENGTH = 13.1, 5.0, 40  # in words, without <EOS>
LENGTH_RATIO_STD = 0.1  # of target length / source length
CORPUS_SEED, ORDER_SEED = 1, 2


class Size(NamedTuple):
    """Model dimensions that every implementation builds; `layers` are those of each side."""

    name: str
    layers: int
    d_model: int
    d_ff: int
    heads: int


SIZES = {
    size.name: size for size in (Size("4+4×128", 4, 128, 256, 4), Size("3+3×256", 3, 256, 512, 8))
}


def random_lengths(count: int, random: numpy.random.RandomState) -> NDArray[numpy.int64]:
    """Return lognormal sentence lengths with MEAN_LENGTH and LENGTH_STD."""
    variance = math.log(1 + (LENGTH_STD / MEAN_LENGTH) ** 2)
    mu = math.log(MEAN_LENGTH) - variance / 2
    return round_lengths(random.lognormal(mu, math.sqrt(variance), size=count))


def round_lengths(values: NDArray[numpy.float64]) -> NDArray[numpy.int64]:
    """Round lengths to integers from 1 to MAX_LENGTH."""
    return numpy.clip(values.round(), 1, MAX_LENGTH).astype(numpy.int64)


def random_sentences(
    word_counts: NDArray[numpy.int64], random: numpy.random.RandomState
) -> list[list[int]]:
    """Return token ids drawn by Zipf's law, with <EOS> after each sentence."""
    words = VOCAB_SIZE - len(SPECIALS)
    probabilities = 1 / numpy.arange(1, words + 1)
    ids = random.choice(words, size=word_counts.sum(), p=probabilities / probabilities.sum())
    parts = numpy.split(ids + len(SPECIALS), word_counts.cumsum()[:-1])
    return [[*part.tolist(), EOS_ID] for part in parts]


@functools.cache
def corpus() -> list[EncodedPair]:
    """Return all pairs; a target is about as long as its source."""
    # RandomState, unlike Generator, promises the same stream in every numpy version.
    random = numpy.random.RandomState(CORPUS_SEED)
    source_counts = random_lengths(PAIRS, random)
    target_counts = round_lengths(source_counts * random.normal(1, LENGTH_RATIO_STD, size=PAIRS))
    sides = random_sentences(source_counts, random), random_sentences(target_counts, random)
    return [EncodedPair(source, target) for source, target in zip(*sides, strict=True)]


def make_batches(batch_indices: list[NDArray[numpy.int64]]) -> list[Batch]:
    """Return a batch for each array of pair indices."""
    pairs = corpus()
    return [make_batch([pairs[index] for index in indices], BOS_ID) for indices in batch_indices]


def fixed_batches(count: int, rows: int = 128) -> list[Batch]:
    """Return batches of random sentences, padded to the longest of their batch, as in tutorials."""
    shuffled = numpy.random.RandomState(ORDER_SEED).permutation(PAIRS)
    return make_batches([shuffled[start : start + rows] for start in range(0, count * rows, rows)])


def bucketed_batches(count: int, tokens: int = 2000) -> list[Batch]:
    """Return batches of sentences of similar length, as this project trains on."""
    sources, targets = (
        numpy.array([len(side) for side in sides], dtype=numpy.int32)
        for sides in zip(*corpus(), strict=True)
    )
    order = epoch_order((sources, targets), batch_tokens=tokens, seed=ORDER_SEED, epoch=0)
    return make_batches(order[:count])


def random_sources(count: int, seed: int) -> list[list[int]]:
    """Return source sentences to decode, each with its <EOS>."""
    random = numpy.random.RandomState(seed)
    return random_sentences(random_lengths(count, random), random)
