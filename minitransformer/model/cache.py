"""The key-value cache: what attention computed for earlier tokens, kept from call to call.

B batch, H heads, T target length, S source length, K d_head.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class KeyValues:
    """The keys and values of one attention, heads split.

    Self-attention appends those of each new token. Cross-attention is `static`: its keys and
    values are those of the memory, computed by the first call and used by all later ones.
    """

    def __init__(self, *, static: bool) -> None:
        self.static = static
        self.contents: tuple[Tensor, ...] = ()  # key and value, once there are any

    @property
    def length(self) -> int:
        """Return for how many tokens there are keys and values."""
        return self.contents[0].shape[2] if self.contents else 0

    @property
    def is_complete(self) -> bool:
        """Return whether these are all the keys and values that there will be."""
        return self.static and bool(self.contents)

    def update(
        self,
        key: Float[Tensor, "batch heads new d_head"],
        value: Float[Tensor, "batch heads new d_head"],
    ) -> tuple[Tensor, ...]:
        """Append the keys and values of later tokens, and return all of them."""
        new = key, value
        if self.contents:
            pairs = zip(self.contents, new, strict=True)
            self.contents = tuple(torch.cat(pair, dim=2) for pair in pairs)
        else:
            self.contents = new
        return self.contents

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order."""
        self.contents = tuple(states[rows] for states in self.contents)


class LayerCache(NamedTuple):
    """The cache of one decoder layer."""

    self_attention: KeyValues
    cross_attention: KeyValues


class KeyValueCache:
    """The cache of a Transformer's decoder: that of each layer, and the target's padding mask.

    It serves one memory only: cross-attention keeps that memory's keys and values.
    """

    def __init__(self, num_layers: int) -> None:
        self.layers = [
            LayerCache(KeyValues(static=False), KeyValues(static=True)) for _ in range(num_layers)
        ]
        self.target_mask: Bool[Tensor, "batch 1 1 length"] | None = None  # True = a token

    @property
    def length(self) -> int:
        """Return how many target tokens have been decoded."""
        return 0 if self.target_mask is None else self.target_mask.shape[-1]

    def update_mask(self, mask: Bool[Tensor, "batch 1 1 new"]) -> Bool[Tensor, "batch 1 1 length"]:
        """Append the padding mask of later tokens, and return that of all."""
        earlier = () if self.target_mask is None else (self.target_mask,)
        self.target_mask = torch.cat((*earlier, mask), dim=-1)
        return self.target_mask

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order; a row may be kept more than once."""
        self.reorder(rows)
        for layer in self.layers:
            layer.cross_attention.select(rows)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Do what `select` does where each row is replaced by one with the same source.

        Cross-attention stays as it is, which saves 2 to 9 % of a beam search in batches of 64.
        """
        if self.target_mask is not None:
            self.target_mask = self.target_mask[rows]
        for layer in self.layers:
            layer.self_attention.select(rows)
