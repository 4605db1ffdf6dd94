"""What decoding remembers from step to step: keys, values and which tokens may be looked at."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass
class KeyValues:
    """Keys and values of one attention, heads split."""

    key: Float[Tensor, "batch heads length d_head"]
    value: Float[Tensor, "batch heads length d_head"]

    def append(self, later: "KeyValues") -> None:
        """Add the keys and values of later tokens."""
        if self.key.shape[2] == 0:  # the usual case in training: nothing to copy
            self.key, self.value = later.key, later.value
            return
        self.key = torch.cat((self.key, later.key), dim=2)
        self.value = torch.cat((self.value, later.value), dim=2)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        self.key, self.value = self.key[rows], self.value[rows]


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
        self.target_mask = self.target_mask[rows]
        for layer in self.layers:
            layer.self_attention.select(rows)
            layer.cross_attention.select(rows)
