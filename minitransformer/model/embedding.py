"""Tokens become vectors: a table of embeddings, and the places they stand in.

B batch, T length, D d_model.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from minitransformer.model.dropout import drop
from minitransformer.model.positional import LearnedPositions, SinusoidalPositions
from minitransformer.model.trace import tap


class Embedding(nn.Module):
    """A vector per token, plus a vector for its place."""

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        position: str,
        max_length: int,
        scale: float,
        std: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) * std)
        self.scale = scale
        self.dropout = dropout
        self.positions: SinusoidalPositions | LearnedPositions | None = None
        if position == "sinusoidal":
            self.positions = SinusoidalPositions(d_model=d_model, max_length=max_length)
        elif position == "learned":
            self.positions = LearnedPositions(d_model=d_model, max_length=max_length, std=std)

    def forward(
        self, ids: Int[Tensor, "batch length"], start: int = 0
    ) -> Float[Tensor, "batch length d_model"]:
        tokens = functional.embedding(ids, self.weight) * self.scale  # [B, T, D]
        if self.positions is None:
            total = tokens
            tap(self, tokens=tokens, output=total)
        else:
            positions = self.positions(start, start + ids.shape[1])  # [T, D]
            total = tokens + positions
            tap(self, tokens=tokens, positions=positions, output=total)
        return drop(total, self.dropout, self.training)
