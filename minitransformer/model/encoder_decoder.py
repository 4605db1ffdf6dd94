"""The one road: encode(source) -> Memory, decode(target, memory, cache) -> logits.

B batch, S source, T target, D d_model, V vocabulary.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from minitransformer.model.embedding import Embedding
from minitransformer.model.trace import tap
from minitransformer.settings import ModelConfig


class Memory(NamedTuple):
    """What the encoder hands to the decoder: its states, and which of them are real."""

    states: Float[Tensor, "batch source d_model"]
    mask: Bool[Tensor, "batch 1 1 source"]
    last: tuple[tuple[Tensor, ...], ...] = ()  # what a recurrent decoder begins from, by layer

    def select(self, rows: Int[Tensor, " rows"]) -> "Memory":
        """These rows, in this order."""
        last = tuple(tuple(part[rows] for part in state) for state in self.last)
        return Memory(self.states[rows], self.mask[rows], last)


@runtime_checkable
class Cache(Protocol):
    """The state of a decoding; made by `new_cache`, passed to `decode`, which adds to it."""

    @property
    def length(self) -> int:
        """How many target tokens have been decoded."""

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows, in this order; a row may be kept more than once."""

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows where each takes the place of one with the same source."""


class Side(nn.Module):
    """An encoder or a decoder: ids in, one state per token out."""

    embedding: Embedding
    layers: nn.ModuleList


def new_embedding(config: ModelConfig, vocab_size: int) -> Embedding:
    """The embeddings that a config asks for."""
    return Embedding(
        vocab_size=vocab_size,
        d_model=config.d_model,
        position=config.position,
        max_length=config.max_length,
        scale=config.d_model**0.5 if config.scale_embeddings else 1.0,
        std=config.embedding_std,
        dropout=config.dropout,
    )


class EncoderDecoder(nn.Module, ABC):
    """A model that translates; training, search and tracing all use its two methods."""

    rotary = False  # does attention turn queries and keys by their places?

    def __init__(self, *, encoder: Side, decoder: Side, head: nn.Linear, pad_id: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        self.pad_id = pad_id

    def share_embeddings(self, which: str) -> None:
        """Let the head, and with "all" the source as well, use the target's embeddings."""
        if which in ("target", "all"):
            self.head.weight = self.decoder.embedding.weight
        if which == "all":
            assert self.encoder.embedding.weight.shape == self.decoder.embedding.weight.shape
            self.encoder.embedding.weight = self.decoder.embedding.weight

    @abstractmethod
    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        """Read the source; every row must hold at least one token that is not padding."""

    @abstractmethod
    def decode_states(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "batch target d_model"]:
        """What the head reads; training takes it from here, since all logits at once are large."""

    @abstractmethod
    def new_cache(self, memory: Memory) -> Cache:
        """An empty cache for this memory."""

    @abstractmethod
    def source_attentions(self) -> list[str]:
        """The paths of what looks at the source, by layer; none where nothing does."""

    def decode(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "batch target vocab"]:
        """Logits for the token after each target token; with a cache, `target` continues it."""
        logits: Tensor = self.head(self.decode_states(target, memory, cache))
        tap(self, logits=logits)
        return logits

    def forward(
        self, source: Int[Tensor, "batch source"], target: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target vocab"]:
        return self.decode(target, self.encode(source))
