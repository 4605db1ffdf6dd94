"""Batches of similar length, counted in tokens; their order depends on (seed, epoch) alone.

B batch, S source, T target.
"""

from typing import NamedTuple

import numpy
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from minitransformer.data.dataset import EncodedPair, EncodedSplit
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import CheckpointError

MASK_64 = 2**64 - 1


class Batch(NamedTuple):
    """Padded ids; `target_input` is `target_output` shifted right by one position."""

    source: Int[Tensor, "batch source"]
    target_input: Int[Tensor, "batch target"]
    target_output: Int[Tensor, "batch target"]

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(tensor.to(device) for tensor in self))

    @property
    def num_target_tokens(self) -> int:
        return int((self.target_output != PAD_ID).sum())


def make_batch(pairs: list[EncodedPair], start_id: int) -> Batch:
    """Return pairs as a padded batch, whose decoder input begins with the start token."""
    target = pad([pair.target for pair in pairs])
    return Batch(pad([pair.source for pair in pairs]), shifted(target, start_id), target)


def pad(rows: list[list[int]]) -> Int[Tensor, "batch length"]:
    """Return rows padded to the longest one: [[1, 2], [3]] -> [[1, 2], [3, PAD]]"""
    width = max(map(len, rows))
    return torch.tensor([row + [PAD_ID] * (width - len(row)) for row in rows], dtype=torch.long)


def shifted(target: Int[Tensor, "batch target"], start_id: int) -> Int[Tensor, "batch target"]:
    """Return the decoder's input for teacher forcing: [[7, EOS]] -> [[start, 7]]"""
    start = target.new_full((len(target), 1), start_id)
    later = torch.cat([start, target[:, :-1]], dim=1)
    return later.masked_fill(target == PAD_ID, PAD_ID)  # nothing is predicted from an <EOS>


class BatchStream:
    """An endless stream of batches; (epoch, index) is all that a checkpoint stores of it."""

    def __init__(
        self,
        pairs: EncodedSplit,
        *,
        batch_tokens: int,
        seed: int,
        start_id: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.pairs = pairs
        self.rank, self.world_size = rank, world_size
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.start_id = start_id
        self.move_to(epoch=0, index=0)

    def move_to(self, *, epoch: int, index: int) -> None:
        """Continue with batch `index` of an epoch."""
        self.epoch, self.index = epoch, index
        lengths = self.pairs.sources.lengths(), self.pairs.targets.lengths()
        self.order = epoch_order(
            lengths, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch
        )
        if index > len(self.order):
            raise CheckpointError(f"batch {index} of an epoch that has {len(self.order)}")

    def next_indices(self) -> NDArray[numpy.int64]:
        """Return the indices of the next batch's pairs, those of all processes."""
        if self.index == len(self.order):
            self.move_to(epoch=self.epoch + 1, index=0)
        indices = self.order[self.index]
        self.index += 1
        return indices

    def next(self) -> Batch:
        """Return this rank's rows of the next batch; if it has none, one row without labels."""
        indices = self.next_indices()
        own = indices[self.rank :: self.world_size]
        source, target = (
            torch.from_numpy(side.padded(own if len(own) else indices[:1], PAD_ID))
            for side in (self.pairs.sources, self.pairs.targets)
        )  # [B, S] and [B, T]
        target_input = shifted(target, self.start_id)
        return Batch(source, target_input, target if len(own) else target.fill_(PAD_ID))


def epoch_order(
    lengths: tuple[NDArray[numpy.int32], NDArray[numpy.int32]],
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
) -> list[NDArray[numpy.int64]]:
    """Return an epoch's batches as indices of pairs: each index once, similar lengths together.

    `lengths` are those of all sources and of all targets.
    """
    # RandomState, not Generator: NumPy promises never to change its numbers.
    random = numpy.random.RandomState(fold_in(seed, epoch) % 2**32)
    sources, targets = lengths
    shuffled = random.permutation(len(sources))
    by_length = shuffled[numpy.lexsort((sources[shuffled], targets[shuffled]))]
    widths = numpy.maximum(sources, targets)[by_length]
    batches = numpy.split(by_length, cut_batches(widths.tolist(), batch_tokens))
    return [batches[index] for index in random.permutation(len(batches))]


def cut_batches(widths: list[int], batch_tokens: int) -> list[int]:
    """Return where to cut so that rows × widest row <= batch_tokens, or a batch has one row."""
    cuts: list[int] = []
    start, widest = 0, 0
    for index, width in enumerate(widths):
        widest = max(widest, width)
        if index > start and (index + 1 - start) * widest > batch_tokens:
            cuts.append(index)
            start, widest = index, width
    return cuts


def fold_in(*numbers: int) -> int:
    """Return a 63-bit seed that depends on all of the numbers (the mixing of splitmix64)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & MASK_64)) + 0x9E3779B97F4A7C15 & MASK_64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK_64
        state ^= state >> 31
    return state >> 1
