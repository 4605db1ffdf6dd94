"""Mistakes beyond the seven classic ones, for the checks that none of those trips."""

from contextlib import AbstractContextManager

from torch import Tensor

from minitransformer.data.tokens import UNK_ID
from minitransformer.doctor.breakages import Breakage
from minitransformer.model import transformer
from minitransformer.model.embedding import Embedding
from minitransformer.model.layers import MultiHeadAttention
from minitransformer.model.transformer import Memory, Transformer

embed, positions_for, project, encode = (
    Embedding.forward,
    Transformer.positions_for,
    MultiHeadAttention.project,
    Transformer.encode,
)


def embed_from_place_0(self: Embedding, ids: Tensor, start: int = 0) -> Tensor:
    return embed(self, ids, 0)


def turn_from_place_0(self: Transformer, ids: Tensor, start: int) -> Tensor | None:
    return positions_for(self, ids, 0)


def hide_unknown_words(ids: Tensor, pad_id: int) -> Tensor:
    return (ids > UNK_ID)[:, None, None, :]


def encode_detached(self: Transformer, source: Tensor) -> Memory:
    memory = encode(self, source)
    return Memory(memory.states.detach(), memory.mask)


def broken(*places: tuple[object, str, object]) -> AbstractContextManager[None]:
    return Breakage(title="", file="", wrong=(), right=(), shows="", check="", places=places).made()


def restarted() -> AbstractContextManager[None]:
    """Each cached token is taken for the first one."""
    return broken(
        (Embedding, "forward", embed_from_place_0),
        (Transformer, "positions_for", turn_from_place_0),
    )


def unknown_as_padding() -> AbstractContextManager[None]:
    """A sentence of unknown words has nothing to look at."""
    return broken((transformer, "padding_mask", hide_unknown_words))


def detached() -> AbstractContextManager[None]:
    """The encoder never hears how well the decoder did."""
    return broken((Transformer, "encode", encode_detached))
