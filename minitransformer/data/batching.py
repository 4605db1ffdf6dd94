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

MASK = 2**64 - 1


def fold_in(*numbers: int) -> int:
    """One well-spread 63-bit seed from several numbers (splitmix64's finisher, chained)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & MASK)) + 0x9E3779B97F4A7C15 & MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
        state ^= state >> 31
    return state >> 1


Lengths = tuple[NDArray[numpy.int32], NDArray[numpy.int32]]  # of sources and of targets


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
    target = pad([pair.target for pair in pairs])
    return Batch(pad([pair.source for pair in pairs]), shifted(target, start_id), target)


def shifted(target: Int[Tensor, "batch target"], start_id: int) -> Int[Tensor, "batch target"]:
    """What the decoder reads when it should say `target`: [[7, EOS]] -> [[start, 7]]"""
    start = target.new_full((len(target), 1), start_id)
    later = torch.cat([start, target[:, :-1]], dim=1)
    return later.masked_fill(target == PAD_ID, PAD_ID)  # the <EOS> of shorter rows is not read


def epoch_order(
    lengths: Lengths, *, batch_tokens: int, seed: int, epoch: int
) -> list[NDArray[numpy.int64]]:
    """One epoch as batches of places of pairs: each place once, each batch of similar lengths."""
    random = numpy.random.RandomState(fold_in(seed, epoch) % 2**32)  # its stream is frozen for good
    sources, targets = lengths
    shuffled = random.permutation(len(sources))
    by_length = shuffled[numpy.lexsort((sources[shuffled], targets[shuffled]))]
    widths = numpy.maximum(sources, targets)[by_length]
    batches = numpy.split(by_length, cut_batches(widths.tolist(), batch_tokens))
    return [batches[place] for place in random.permutation(len(batches))]


def cut_batches(widths: list[int], batch_tokens: int) -> list[int]:
    """Where to cut so that rows × widest row <= batch_tokens; a longer row stands alone."""
    cuts: list[int] = []
    start, widest = 0, 0
    for place, width in enumerate(widths):
        widest = max(widest, width)
        if place > start and (place + 1 - start) * widest > batch_tokens:
            cuts.append(place)
            start, widest = place, width
    return cuts


class BatchStream:
    """Batches without end; (epoch, index) is all that a checkpoint needs to continue it."""

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
        """The places of the next batch's pairs, those of all processes."""
        if self.index == len(self.order):
            self.move_to(epoch=self.epoch + 1, index=0)
        places = self.order[self.index]
        self.index += 1
        return places

    def next(self) -> Batch:
        """This process's rows of the next batch; where it has none, a row without labels."""
        places = self.next_indices()
        own = places[self.rank :: self.world_size]
        source, target = (
            torch.from_numpy(side.padded(own if len(own) else places[:1], PAD_ID))
            for side in (self.pairs.sources, self.pairs.targets)
        )
        target_input = shifted(target, self.start_id)
        return Batch(source, target_input, target if len(own) else target.fill_(PAD_ID))
