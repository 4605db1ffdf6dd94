"""The key-value cache: what attention computed for earlier tokens, kept from call to call.

B batch, H heads, T target length, S source length, K d_head.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

INITIAL_CAPACITY = 16  # tokens; doubled whenever it is full


class KeyValues:
    """The keys and values of one attention, heads split.

    Self-attention appends those of each new token. Cross-attention is `static`: the memory never
    changes, so its keys and values are computed by the first call and used by all later ones.
    """

    def __init__(self, *, static: bool) -> None:
        self.static = static
        self.contents: tuple[Tensor, ...] = ()  # key and value, once there are any
        self.buffers: tuple[Tensor, ...] = ()  # longer ones that the contents are views of

    @property
    def is_complete(self) -> bool:
        """Are these all the keys and values that there will be?"""
        return self.static and bool(self.contents)

    def append(
        self,
        key: Float[Tensor, "batch heads new d_head"],
        value: Float[Tensor, "batch heads new d_head"],
    ) -> tuple[Tensor, ...]:
        """Add the keys and values of later tokens; returns all of them."""
        new = key, value
        if not self.contents:
            self.contents = new
        elif key.requires_grad:  # autograd needs what it has seen: nothing may be written over
            pairs = zip(self.contents, new, strict=True)
            self.contents = tuple(torch.cat(pair, dim=2) for pair in pairs)
        else:
            length, added = self.contents[0].shape[2], key.shape[2]
            if not self.buffers or self.buffers[0].shape[2] < length + added:
                capacity = max(2 * length, length + added, INITIAL_CAPACITY)
                self.buffers = tuple(enlarged(states, capacity) for states in self.contents)
            for buffer, states in zip(self.buffers, new, strict=True):
                buffer.narrow(2, length, added).copy_(states)
            self.contents = tuple(buffer.narrow(2, 0, length + added) for buffer in self.buffers)
        return self.contents

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order."""
        if self.contents:
            length = self.contents[0].shape[2]
            self.buffers = tuple(states[rows] for states in self.buffers or self.contents)
            self.contents = tuple(buffer.narrow(2, 0, length) for buffer in self.buffers)


def enlarged(
    states: Float[Tensor, "batch heads length d_head"], capacity: int
) -> Float[Tensor, "batch heads capacity d_head"]:
    """Copy states to the beginning of a longer buffer."""
    batch, heads, length, d_head = states.shape
    buffer = states.new_empty(batch, heads, capacity, d_head)
    buffer.narrow(2, 0, length).copy_(states)
    return buffer


class LayerCache:
    """The cache of one decoder layer."""

    def __init__(self) -> None:
        self.self_attention = KeyValues(static=False)
        self.cross_attention = KeyValues(static=True)


class KeyValueCache:
    """The cache of a Transformer's decoder: one for each layer, and the mask of the target."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]
        self.target_mask: Bool[Tensor, "batch 1 1 length"] | None = None  # True = a token

    @property
    def length(self) -> int:
        """How many target tokens have been decoded."""
        return 0 if self.target_mask is None else self.target_mask.shape[-1]

    def append_mask(self, mask: Bool[Tensor, "batch 1 1 new"]) -> Bool[Tensor, "batch 1 1 length"]:
        """Add the padding mask of later tokens; returns that of all."""
        earlier = () if self.target_mask is None else (self.target_mask,)
        self.target_mask = torch.cat((*earlier, mask), dim=-1)
        return self.target_mask

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order; a row may be kept more than once."""
        self.reorder(rows)
        for layer in self.layers:
            layer.cross_attention.select(rows)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Do what `select` does where each row is replaced by one with the same source."""
        if self.target_mask is not None:
            self.target_mask = self.target_mask[rows]
        for layer in self.layers:
            layer.self_attention.select(rows)
