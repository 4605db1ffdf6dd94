"""A model with the handful of sentence pairs that it is examined with."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from minitransformer.data.batching import Batch, make_batch
from minitransformer.data.encoding import EncodedPair, EncodedSplit
from minitransformer.data.tokens import EOS_ID, PAD_ID, SPECIALS
from minitransformer.model.base import EncoderDecoder
from minitransformer.settings import Config

LOOKED_AT = 200  # of a corpus's pairs, from the first on
PAIRS = 6
LONGEST = 16  # tokens; whatever is wrong with a model shows in short sentences, too
ROUNDING = 1e-5  # by which sums in another order may differ, as a share of the largest logit


class Patient(NamedTuple):
    """A model, and the sentences that it is examined with."""

    model: EncoderDecoder
    batch: Batch
    start_id: int
    config: Config


def few_pairs(encoded: EncodedSplit, count: int = PAIRS) -> list[EncodedPair]:
    """Short pairs of different lengths, no source twice; where all are long, their beginnings."""
    pairs = encoded[:LOOKED_AT]
    short = [pair for pair in pairs if max(map(len, pair)) <= LONGEST] or list(map(begun, pairs))
    distinct = {tuple(pair.source): pair for pair in reversed(short)}
    by_length = sorted(distinct.values(), key=lambda pair: max(map(len, pair)))
    if len(by_length) <= count:
        return by_length
    return [by_length[place * (len(by_length) - 1) // (count - 1)] for place in range(count)]


def begun(pair: EncodedPair) -> EncodedPair:
    return EncodedPair(pair.source[:LONGEST], [*pair.target[: LONGEST - 1], EOS_ID])


def drawn_pairs(source_size: int, target_size: int, count: int = PAIRS) -> list[EncodedPair]:
    """Pairs of words drawn by chance, for a run whose corpus is not at hand."""
    generator = torch.Generator().manual_seed(0)

    def words(length: int, size: int) -> list[int]:
        first = min(len(SPECIALS), size - 1)
        drawn: list[int] = torch.randint(first, size, (length,), generator=generator).tolist()
        return drawn

    lengths = range(2, 2 + count)
    return [
        EncodedPair(words(length, source_size), [*words(length, target_size), EOS_ID])
        for length in lengths
    ]


def padded_batch(pairs: list[EncodedPair], start_id: int, max_length: int) -> Batch:
    """The pairs as training reads them, with padding even where all are of one length."""
    batch = make_batch(pairs, start_id)
    longer = (min(2, max(0, max_length - ids.shape[1])) for ids in batch)
    sides = zip(batch, longer, strict=True)
    return Batch(*(functional.pad(ids, (0, more), value=PAD_ID) for ids, more in sides))


@contextmanager
def training(model: EncoderDecoder) -> Iterator[None]:
    """Dropout on for a while; afterwards the model's mode is what it was."""
    was_training = model.training
    model.train()
    try:
        yield
    finally:
        model.train(was_training)


def unpadded(row: Tensor) -> Tensor:
    """A row by itself, without its padding: [T] -> [1, T']."""
    return row[row != PAD_ID][None]


def rounding(logits: Tensor) -> float:
    """By how much numbers may differ that were summed in another order."""
    return ROUNDING * max(1.0, float(logits.abs().max()))


def worse(one: float, other: Tensor) -> float:
    """The larger of two differences; not-a-number is worse than any."""
    value = float(other)
    return one if value <= one or math.isnan(one) else value


def with_more_digits(patient: Patient) -> Patient:
    """A copy of the same model in float64."""
    model, batch = (
        copy.deepcopy(patient.model).cpu().double(),
        patient.batch.to(torch.device("cpu")),
    )
    return patient._replace(model=model, batch=batch)
