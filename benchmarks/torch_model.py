"""torch.nn.Transformer between embeddings and a generator, as in PyTorch's translation tutorial.

B batch, S source, T target, V vocabulary, D width.
"""

import math

import torch
from torch import Tensor, nn

from minitransformer.data.tokenizer import PAD_ID


class Embedding(nn.Module):
    """Tokens times √D, plus sinusoids."""

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, *, dropout: float, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(width)
        angles = torch.arange(longest)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # [S, D]
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dropout(self.tokens(ids) * self.scale + self.positions[: ids.shape[1]])


class TorchModel(nn.Module):
    """The parts that a user puts around torch.nn.Transformer, and its masks."""

    def __init__(
        self, source: Embedding, target: Embedding, transformer: nn.Transformer, head: nn.Linear
    ) -> None:
        super().__init__()
        self.source_embedding = source
        self.target_embedding = target
        self.transformer = transformer
        self.generator = head

    def encode(self, source: Tensor) -> Tensor:
        return self.transformer.encoder(
            self.source_embedding(source), src_key_padding_mask=source == PAD_ID
        )

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """[B, T, D]; padding stands last, so what reads the past alone never reads it."""
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
        return self.generator(self.decode(target, self.encode(source), source))
