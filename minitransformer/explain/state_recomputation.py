"""The states of a recurrent model once more, each from its word and the state before it.

T tokens of this call, W width of a state, G gates.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from minitransformer.explain.stages import GruStage, LstmStage
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.recurrent import Recurrence, State

Again = Iterator[tuple[str, Tensor, Tensor]]  # a name, what was recorded, what it comes to
Values = Iterator[tuple[str, Tensor]]


class StateRecomputation:
    """Goes from word to word and carries the state of every layer."""

    def __init__(self, model: EncoderDecoder, source_mask: Tensor) -> None:
        self.model = model
        self.source_mask = source_mask
        self.carried: dict[str, State] = {}  # what a layer of the decoder goes on from
        self.states: list[Tensor] = []  # of the ways of an encoder's layer: [T, W]

    def stage(self, stage: GruStage | LstmStage, inputs: Tensor) -> Again:
        layer = self.model.get_submodule(stage.path)
        assert isinstance(layer, Recurrence)
        side, _, number, *_ = stage.path.split(".")
        own, is_encoder = f"decoder.layers.{number}", side == "encoder"
        known = self.source_mask if is_encoder else torch.ones(1, dtype=torch.bool)
        yield "is_read", stage.is_read, known.to(stage.is_read.device)
        state = layer.start(inputs[:1]) if is_encoder else self.carried[own]  # each part [1, W]
        places = range(len(inputs))
        for place in reversed(places) if stage.is_leftward else places:
            word = tensors_of(stage, place)
            from_word, from_state = layer.word(inputs[[place]]), layer.state(word["before"])
            names = ("before",) if isinstance(stage, GruStage) else ("before", "cell_before")
            for name, carried in zip(names, state, strict=True):
                yield f"{name}[{place}]", word[name], carried
            formulas = gru if isinstance(stage, GruStage) else lstm
            for name, value in formulas(word, from_word, from_state):
                yield f"{name}[{place}]", word[name], value
            state = tuple(word[name] for name in ("state", "cell") if name in word)
        if stage.is_leftward:  # after the way from left to right
            self.states.append(stage.state)
            parts = zip(self.carried[own], state, strict=True)
            state = tuple(torch.cat(both, dim=-1) for both in parts)
        else:
            self.states = [stage.state]
        self.carried[own] = state


def tensors_of(stage: GruStage | LstmStage, place: int) -> dict[str, Tensor]:
    """What a layer recorded of one word, each [1, W]."""
    fields = vars(stage).items()
    return {name: value[[place]] for name, value in fields if isinstance(value, Tensor)}


def gru(word: dict[str, Tensor], from_word: Tensor, from_state: Tensor) -> Values:
    own, state = from_word.chunk(3, dim=-1), from_state.chunk(3, dim=-1)
    yield "reset", torch.sigmoid(own[0] + state[0])
    yield "update", torch.sigmoid(own[1] + state[1])
    yield "candidate", torch.tanh(own[2] + word["reset"] * state[2])
    new = (1 - word["update"]) * word["candidate"] + word["update"] * word["before"]
    yield "state", torch.where(word["is_read"], new, word["before"])


def lstm(word: dict[str, Tensor], from_word: Tensor, from_state: Tensor) -> Values:
    enter, forget, candidate, output = (from_word + from_state).chunk(4, dim=-1)
    yield "input", torch.sigmoid(enter)
    yield "forget", torch.sigmoid(forget)
    yield "candidate", torch.tanh(candidate)
    yield "output", torch.sigmoid(output)
    cell = word["forget"] * word["cell_before"] + word["input"] * word["candidate"]
    yield "cell", torch.where(word["is_read"], cell, word["cell_before"])
    yield "state", torch.where(word["is_read"], word["output"] * torch.tanh(cell), word["before"])
