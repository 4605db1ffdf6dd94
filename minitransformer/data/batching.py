"""Batches of similar length, counted in tokens; their order depends on (seed, epoch) alone.

B batch, S source, T target.
"""

from typing import NamedTuple

import numpy
import torch
from jaxtyping import Int
from torch import Tensor

from minitransformer.data.encoding import EncodedPair
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.seeding import mix


class Batch(NamedTuple):
    """Padded ids; `target_input` is `target_output` moved one place later."""

    source: Int[Tensor, "batch source"]
    target_input: Int[Tensor, "batch target"]
    target_output: Int[Tensor, "batch target"]

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(tensor.to(device) for tensor in self))

    @property
    def num_target_tokens(self) -> int:
        return int((self.target_output != PAD_ID).sum())


def pad(rows: list[list[int]]) -> Int[Tensor, "batch length"]:
    """[[1, 2], [3]] -> [[1, 2], [3, PAD]]"""
    width = max(map(len, rows))
    return torch.tensor([row + [PAD_ID] * (width - len(row)) for row in rows], dtype=torch.long)


def make_batch(pairs: list[EncodedPair], start_id: int) -> Batch:
    """Pad pairs to one length and shift the targets behind the start token."""
    return Batch(
        source=pad([pair.source for pair in pairs]),
        target_input=pad([[start_id, *pair.target[:-1]] for pair in pairs]),
        target_output=pad([pair.target for pair in pairs]),
    )


def epoch_order(
    pairs: list[EncodedPair], *, batch_tokens: int, seed: int, epoch: int
) -> list[list[int]]:
    """One epoch as batches of places in `pairs`: each place once, each batch of similar lengths."""
    random = numpy.random.RandomState(mix(seed, epoch) % 2**32)  # its stream is frozen for good
    shuffled = random.permutation(len(pairs))
    lengths = numpy.array([(len(pair.target), len(pair.source)) for pair in pairs])
    by_length = shuffled[numpy.lexsort((lengths[shuffled, 1], lengths[shuffled, 0]))]
    batches = cut_batches(by_length.tolist(), lengths.max(axis=1).tolist(), batch_tokens)
    return [batches[place] for place in random.permutation(len(batches))]


def cut_batches(order: list[int], widths: list[int], batch_tokens: int) -> list[list[int]]:
    """Fill batches up to rows × widest row <= batch_tokens; a longer row gets its own batch."""
    batches: list[list[int]] = []
    widest = 0
    for place in order:
        widest = max(widest, widths[place])
        if batches and (len(batches[-1]) + 1) * widest <= batch_tokens:
            batches[-1].append(place)
        else:
            batches.append([place])
            widest = widths[place]
    return batches


class BatchStream:
    """Batches without end; (epoch, index) is all that a checkpoint needs to continue it."""

    def __init__(
        self, pairs: list[EncodedPair], *, batch_tokens: int, seed: int, start_id: int
    ) -> None:
        self.pairs = pairs
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.start_id = start_id
        self.move_to(epoch=0, index=0)

    def move_to(self, *, epoch: int, index: int) -> None:
        """Continue with batch `index` of an epoch."""
        self.epoch, self.index = epoch, index
        self.order = epoch_order(
            self.pairs, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch
        )

    def next(self) -> Batch:
        if self.index == len(self.order):
            self.move_to(epoch=self.epoch + 1, index=0)
        places = self.order[self.index]
        self.index += 1
        return make_batch([self.pairs[place] for place in places], self.start_id)
