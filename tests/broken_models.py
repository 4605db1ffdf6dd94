"""Mistakes beyond the seven classic ones, for the checks that none of those trips."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from minitransformer.data.tokenizer import UNK_ID
from minitransformer.doctor.pitfalls import Breakage
from minitransformer.model import recurrent, transformer
from minitransformer.model.base import Memory
from minitransformer.model.recurrent import (
    Recurrence,
    Recurrent,
    RecurrentDecoder,
    State,
    StateCache,
)
from minitransformer.model.transformer import Embedding, Transformer

embed, rotate = Embedding.forward, transformer.rotate
encode = Transformer.encode
read_words, read_target, read_source = (
    Recurrence.forward,
    RecurrentDecoder.forward,
    Recurrent.encode,
)


def embed_from_place_0(self: Embedding, ids: Tensor, start: int = 0) -> Tensor:
    return embed(self, ids, 0)


def rotate_from_0(states: Tensor, positions: Tensor) -> Tensor:
    return rotate(states, positions - positions[0])


def hide_unknown_words(ids: Tensor, pad_id: int) -> Tensor:
    return (ids > UNK_ID)[:, None, None, :]


def encode_detached(self: Transformer, source: Tensor) -> Memory:
    memory = encode(self, source)
    return Memory(memory.states.detach(), memory.mask)


def encode_states_detached(self: Recurrent, source: Tensor) -> Memory:
    memory = read_source(self, source)
    final = tuple(tuple(part.detach() for part in state) for state in memory.final_states)
    return Memory(memory.states.detach(), memory.mask, final)


def read_target_from_the_right(
    self: Recurrence, inputs: Tensor, state: State, mask: Tensor | None = None
) -> tuple[Tensor, State]:
    if mask is not None:  # the encoder's, which may
        return read_words(self, inputs, state, mask)
    states, last = read_words(self, inputs.flip(1), state)
    return states.flip(1), last


def read_padding(
    self: Recurrence, inputs: Tensor, state: State, mask: Tensor | None = None
) -> tuple[Tensor, State]:
    return read_words(self, inputs, state)


def read_each_word_anew(
    self: Recurrence, inputs: Tensor, state: State, mask: Tensor | None = None
) -> tuple[Tensor, State]:
    if mask is None:  # the decoder's
        return read_words(self, inputs, state)
    last, states = state, []
    for token, is_token in zip(inputs.unbind(dim=1), mask.unbind(dim=1), strict=True):
        after = zip(self.step(self.input_proj(token), state)[1], last, strict=True)
        last = tuple(torch.where(is_token[:, None], new, old) for new, old in after)
        states.append(last[0])
    return torch.stack(states, dim=1), last


def decode_without_carrying(
    self: RecurrentDecoder, target: Tensor, memory: Memory, cache: StateCache
) -> Tensor:
    before = list(cache.states)
    output = read_target(self, target, memory, cache)
    cache.states = before
    return output


def begin_from_nothing(self: Recurrent, memory: Memory) -> StateCache:
    return StateCache([tuple(0 * part for part in state) for state in memory.final_states])


def broken(*places: tuple[object, str, object]) -> AbstractContextManager[None]:
    return Breakage(title="", file="", wrong=(), right=(), shows="", check="", places=places).made()


def restarted() -> AbstractContextManager[None]:
    """Each cached token is taken for the first one."""
    return broken(
        (Embedding, "forward", embed_from_place_0),
        (transformer, "rotate", rotate_from_0),
    )


def unknown_as_padding() -> AbstractContextManager[None]:
    """A sentence of unknown words has nothing to look at."""
    kinds = transformer, recurrent
    return broken(*((kind, "padding_mask", hide_unknown_words) for kind in kinds))


def detached() -> AbstractContextManager[None]:
    """The encoder never hears how well the decoder did."""
    return broken(
        (Transformer, "encode", encode_detached), (Recurrent, "encode", encode_states_detached)
    )


def decoder_from_the_right() -> AbstractContextManager[None]:
    """A recurrent decoder knows the words that it is to say."""
    return broken((Recurrence, "forward", read_target_from_the_right))


def padding_read() -> AbstractContextManager[None]:
    """A recurrent encoder takes padding for words; attention does not."""
    return broken((Recurrence, "forward", read_padding))


def encoder_forgetful() -> AbstractContextManager[None]:
    """A recurrent encoder has forgotten each word when it reads the next."""
    return broken((Recurrence, "forward", read_each_word_anew))


def cache_forgetful() -> AbstractContextManager[None]:
    """Each token that a recurrent decoder produces meets the state that the first one met."""
    return broken((RecurrentDecoder, "forward", decode_without_carrying))


def decoder_deaf() -> AbstractContextManager[None]:
    """A recurrent decoder does not begin where the encoder ends."""
    return broken((Recurrent, "new_cache", begin_from_nothing))
