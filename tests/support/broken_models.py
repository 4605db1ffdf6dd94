"""Deliberate mistakes in models, for checks of the doctor that no pitfall makes fail."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from minitransformer.data.tokenizer import UNK_ID
from minitransformer.doctor.pitfalls import patched
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
transformer_encode, recurrent_encode = Transformer.encode, Recurrent.encode
run_recurrence, run_decoder = Recurrence.forward, RecurrentDecoder.forward


def positions_restart() -> AbstractContextManager[None]:
    """Give each cached token the position of the first one."""

    def embed_at_0(self: Embedding, ids: Tensor, start: int = 0) -> Tensor:
        return embed(self, ids, 0)

    def rotate_at_0(states: Tensor, positions: Tensor) -> Tensor:
        return rotate(states, positions - positions[0])

    return patched([(Embedding, "forward", embed_at_0), (transformer, "rotate", rotate_at_0)])


def unknown_masked() -> AbstractContextManager[None]:
    """Mask unknown words like padding, so that some queries have no key."""

    def mask_unknown(ids: Tensor, pad_id: int) -> Tensor:
        return (ids > UNK_ID)[:, None, None, :]

    return patched([(kind, "padding_mask", mask_unknown) for kind in (transformer, recurrent)])


def encoder_detached() -> AbstractContextManager[None]:
    """Detach the encoder, so that it gets no gradient."""

    def encode_transformer(self: Transformer, source: Tensor) -> Memory:
        memory = transformer_encode(self, source)
        return Memory(memory.states.detach(), memory.mask)

    def encode_recurrent(self: Recurrent, source: Tensor) -> Memory:
        memory = recurrent_encode(self, source)
        final = tuple(tuple(part.detach() for part in state) for state in memory.final_states)
        return Memory(memory.states.detach(), memory.mask, final)

    return patched(
        [(Transformer, "encode", encode_transformer), (Recurrent, "encode", encode_recurrent)]
    )


def decoder_right_to_left() -> AbstractContextManager[None]:
    """Run a recurrent decoder from right to left."""

    def forward(
        self: Recurrence, inputs: Tensor, state: State, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        if mask is not None:  # the encoder's, which may be bidirectional
            return run_recurrence(self, inputs, state, mask)
        states, last = run_recurrence(self, inputs.flip(1), state)
        return states.flip(1), last

    return patched([(Recurrence, "forward", forward)])


def padding_read() -> AbstractContextManager[None]:
    """Let a recurrent encoder read padding as words; attention still masks it."""

    def forward(
        self: Recurrence, inputs: Tensor, state: State, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        return run_recurrence(self, inputs, state)

    return patched([(Recurrence, "forward", forward)])


def encoder_without_state() -> AbstractContextManager[None]:
    """Compute each state of a recurrent encoder from the initial one."""

    def forward(
        self: Recurrence, inputs: Tensor, state: State, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        if mask is None:  # the decoder's
            return run_recurrence(self, inputs, state)
        last, states = state, []
        for token, is_token in zip(inputs.unbind(dim=1), mask.unbind(dim=1), strict=True):
            after = zip(self.step(self.input_proj(token), state)[1], last, strict=True)
            last = tuple(torch.where(is_token[:, None], new, old) for new, old in after)
            states.append(last[0])
        return torch.stack(states, dim=1), last

    return patched([(Recurrence, "forward", forward)])


def cache_not_updated() -> AbstractContextManager[None]:
    """Start each token of a recurrent decoder from the state before the first one."""

    def forward(
        self: RecurrentDecoder, target: Tensor, memory: Memory, cache: StateCache
    ) -> Tensor:
        before = list(cache.states)
        output = run_decoder(self, target, memory, cache)
        cache.states = before
        return output

    return patched([(RecurrentDecoder, "forward", forward)])


def decoder_starts_at_zero() -> AbstractContextManager[None]:
    """Start a recurrent decoder from zeros instead of the encoder's final state."""

    def new_cache(self: Recurrent, memory: Memory) -> StateCache:
        return StateCache([tuple(0 * part for part in state) for state in memory.final_states])

    return patched([(Recurrent, "new_cache", new_cache)])
