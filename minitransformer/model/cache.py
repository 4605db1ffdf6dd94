"""What decoding remembers from step to step: keys, values and which tokens may be looked at."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FIRST_ROOM = 16  # tokens; doubled whenever it is full


@dataclass
class KeyValues:
    """Keys and values of one attention, heads split."""

    key: Float[Tensor, "batch heads length d_head"]
    value: Float[Tensor, "batch heads length d_head"]
    room: list[Tensor] = field(default_factory=list)  # what both are the beginnings of, once grown

    def append(self, later: "KeyValues") -> None:
        """Add the keys and values of later tokens."""
        length, added = self.key.shape[2], later.key.shape[2]
        if length == 0:  # the usual case in training: nothing to copy
            self.key, self.value = later.key, later.value
        elif later.key.requires_grad:  # what a gradient remembers may not be written over
            self.key = torch.cat((self.key, later.key), dim=2)
            self.value = torch.cat((self.value, later.value), dim=2)
        else:
            if not self.room or self.room[0].shape[2] < length + added:
                self.grow(max(2 * length, length + added, FIRST_ROOM))
            for room, states in zip(self.room, (later.key, later.value), strict=True):
                room.narrow(2, length, added).copy_(states)
            self.key, self.value = (room.narrow(2, 0, length + added) for room in self.room)

    def grow(self, length: int) -> None:
        """Make room, so that later tokens need no copy of the earlier ones."""
        batch, heads, known, d_head = self.key.shape
        self.room = [states.new_empty(batch, heads, length, d_head) for states in self.both]
        for room, states in zip(self.room, self.both, strict=True):
            room.narrow(2, 0, known).copy_(states)

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        return self.key, self.value

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        length = self.key.shape[2]
        self.room = [states[rows] for states in self.room or self.both]
        self.key, self.value = (room.narrow(2, 0, length) for room in self.room)


@dataclass
class LayerCache:
    """One decoder layer's memory: its own earlier tokens, and the source, projected once."""

    self_attention: KeyValues
    cross_attention: KeyValues


@dataclass
class KeyValueCache:
    """The state of a decoding; made by `new_cache`, passed to `decode`, which adds to it."""

    layers: list[LayerCache]
    target_mask: Bool[Tensor, "batch 1 1 length"]

    @property
    def length(self) -> int:
        """How many target tokens have been decoded."""
        return self.target_mask.shape[-1]

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows, in this order; a row may be kept more than once."""
        self.reorder(rows)
        for layer in self.layers:
            layer.cross_attention.select(rows)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows where each takes the place of one with the same source."""
        self.target_mask = self.target_mask[rows]
        for layer in self.layers:
            layer.self_attention.select(rows)
