"""The interface of all models: encode(source) -> Memory, decode(target, memory) -> logits.

The training loss takes `decode_states`, which is decode without the head; search adds `new_cache`.
B batch, S source length, T target length, D d_model, V vocabulary.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from minitransformer.errors import UsageError
from minitransformer.model.trace import tap
from minitransformer.settings import ModelConfig

if TYPE_CHECKING:
    from minitransformer.model.transformer import Embedding


class Memory(NamedTuple):
    """The encoder's output, which the decoder attends to."""

    states: Float[Tensor, "batch source d_model"]
    mask: Bool[Tensor, "batch 1 1 source"]  # True = a token, False = padding
    final_states: tuple[tuple[Tensor, ...], ...] = ()  # of the layers of a recurrent encoder

    def select(self, rows: Int[Tensor, " rows"]) -> "Memory":
        """Return these rows of the batch, in this order."""
        final = tuple(tuple(part[rows] for part in state) for state in self.final_states)
        return Memory(self.states[rows], self.mask[rows], final)


@runtime_checkable
class Cache(Protocol):
    """State that `decode` keeps between calls, so that each call computes only its new tokens."""

    @property
    def length(self) -> int:
        """Return how many target tokens have been decoded."""

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order; a row may be kept more than once."""

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Do what `select` does, where each row is replaced by one with the same source."""


class Stack(nn.Module):
    """An encoder or a decoder: an embedding and the layers above it."""

    embedding: "Embedding"
    layers: nn.ModuleList


class Linear(nn.Linear):
    """Allocate the weights of `nn.Linear` without drawing them: `init_weights` does that."""

    def reset_parameters(self) -> None:
        pass


class EncoderDecoder(nn.Module, ABC):
    """A model that translates: an encoder, a decoder, and a dense head over the vocabulary.

    Built by `build_model`: constructors leave the weights uninitialized.
    """

    def __init__(
        self, config: ModelConfig, encoder: Stack, decoder: Stack, head: Linear, pad_id: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        self.pad_id = pad_id
        self.embedding_std = config.embedding_std
        if config.tie_embeddings in ("target", "all"):
            self.head.weight = self.decoder.embedding.weight
        if config.tie_embeddings == "all":
            assert self.encoder.embedding.weight.shape == self.decoder.embedding.weight.shape
            self.encoder.embedding.weight = self.decoder.embedding.weight

    @abstractmethod
    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        """Encode the source; every row must have at least one token that is not padding."""

    @abstractmethod
    def decode_states(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the input of the head, which the training loss applies in chunks."""

    @abstractmethod
    def new_cache(self, memory: Memory) -> Cache:
        """Return an empty cache for decoding from this memory."""

    @abstractmethod
    def source_attentions(self) -> list[str]:
        """Return the paths of the modules that attend to the source, by layer."""

    def decode(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "batch target vocab"]:
        """Return the logits of the token after each target token; a cache holds earlier tokens."""
        logits: Tensor = self.head(self.decode_states(target, memory, cache))
        tap(self, logits=logits)
        return logits

    def forward(
        self, source: Int[Tensor, "batch source"], target: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target vocab"]:
        return self.decode(target, self.encode(source))


def build_model(
    config: ModelConfig,
    source_vocab_size: int,
    target_vocab_size: int,
    pad_id: int,
    *,
    initialize: bool = True,
) -> EncoderDecoder:
    """Build a model of `config.kind`.

    With `initialize=False`, the weights are left uninitialized, to be loaded afterwards.
    """
    # Imported here: both modules import this one, and a Transformer does not need the other.
    model: EncoderDecoder
    if config.kind == "recurrent":
        from minitransformer.model.recurrent import Recurrent

        model = Recurrent(config, source_vocab_size, target_vocab_size, pad_id)
    else:
        from minitransformer.model.transformer import Transformer

        model = Transformer(config, source_vocab_size, target_vocab_size, pad_id)
    if initialize:
        init_weights(model)
    return model


@torch.no_grad()
def init_weights(model: EncoderDecoder) -> None:
    """Draw all weights: nn.Linear's uniform for matrices and biases, N(0, std²) for embeddings.

    The order is part of what a seed means: the encoder's layers, the decoder's, the source table,
    the target table, the head. Each name of a tied tensor takes its numbers from the generator;
    the target table's are the ones that stay.
    """
    for stack in (model.encoder, model.decoder):
        for module in stack.modules():
            if isinstance(module, Linear):
                nn.Linear.reset_parameters(module)
    for stack in (model.encoder, model.decoder):
        for table in stack.embedding.parameters():  # tokens, then learned positions
            table.copy_(torch.randn(table.shape) * model.embedding_std)
    target_table = model.decoder.embedding.weight.clone()
    nn.Linear.reset_parameters(model.head)
    model.decoder.embedding.weight.copy_(target_table)  # where the head is tied, it was drawn over


def choose_device(name: str) -> torch.device:
    """Return the named device; "auto" is CUDA if available, else the CPU."""
    # Never MPS: its kernels have returned wrong numbers silently, so it must be named.
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = "cuda" if available["cuda"] else "cpu"
    if name not in available:
        raise UsageError(f"device {name!r}: choose auto, {', '.join(available)}")
    if not available[name]:
        raise UsageError(f"device {name!r}: not available on this machine; use auto or cpu")
    return torch.device(name)
