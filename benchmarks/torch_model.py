"""Wrap torch.nn.Transformer in embeddings and a head, as PyTorch's translation tutorial does.

B batch, S source, T target, V vocabulary, D width.
"""

import math

import torch
from torch import Tensor, nn

from minitransformer.data.tokenizer import PAD_ID


class Embedding(nn.Module):
    """Token embedding times √D, plus sinusoidal positional encoding."""

    positions: Tensor

    def __init__(self, vocab_size: int, width: int, *, dropout: float, max_length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(width)
        angles = torch.arange(max_length)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # [S, D]
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dropout(self.tokens(ids) * self.scale + self.positions[: ids.shape[1]])


class TorchModel(nn.Module):
    """torch.nn.Transformer with what it leaves to its user: embeddings, masks and head."""

    def __init__(
        self, source: Embedding, target: Embedding, transformer: nn.Transformer, head: nn.Linear
    ) -> None:
        super().__init__()
        self.source_embedding = source
        self.target_embedding = target
        self.transformer = transformer
        self.generator = head

    def encode(self, source: Tensor) -> Tensor:
        """Return the encoder's output [B, S, D]."""
        return self.transformer.encoder(
            self.source_embedding(source), src_key_padding_mask=source == PAD_ID
        )

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Return the decoder's output [B, T, D].

        Target padding needs no mask: it comes last, where the causal mask hides it.
        """
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.transformer.decoder(
            self.target_embedding(target),
            memory,
            tgt_mask=future,
            tgt_is_causal=True,
            memory_key_padding_mask=source == PAD_ID,
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits [B, T, V]."""
        return self.generator(self.decode(target, self.encode(source), source))
