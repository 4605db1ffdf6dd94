"""The states of a recurrent model once more, each from its word and the state before it.

T tokens of this call, W width of a state, G gates.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from minitransformer.explain.stages import GruStage, LstmStage
from minitransformer.model.encoder_decoder import EncoderDecoder
from minitransformer.model.recurrence import Recurrence, State

Again = Iterator[tuple[str, Tensor, Tensor]]  # a name, what was recorded, what it comes to


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
        own = f"decoder.layers.{number}"
        is_encoder = side == "encoder"
        start = layer.start(inputs[:1]) if is_encoder else self.carried[own]  # each part [1, W]
        known = self.source_mask if is_encoder else torch.ones(1, dtype=torch.bool)
        yield "is_read", stage.is_read, known.to(stage.is_read.device)
        yield "before", stage.before, before(stage.state, start[0], stage.is_leftward)
        from_word, from_state = layer.word(inputs), layer.state(stage.before)  # [T, G·W]
        ends = 0 if stage.is_leftward else -1
        if isinstance(stage, GruStage):
            yield from gru(stage, from_word, from_state)
            last: State = (stage.state[[ends]],)
        else:
            yield "cell_before", stage.cell_before, before(stage.cell, start[1], stage.is_leftward)
            yield from lstm(stage, from_word + from_state)
            last = stage.state[[ends]], stage.cell[[ends]]
        if is_encoder and stage.is_leftward:  # after the way from left to right
            self.states.append(stage.state)
            parts = zip(self.carried[own], last, strict=True)
            self.carried[own] = tuple(torch.cat(both, dim=-1) for both in parts)
        else:
            self.states = [stage.state]
            self.carried[own] = last


def before(states: Tensor, start: Tensor, is_leftward: bool) -> Tensor:
    """The state that each word meets: that after the word read last."""
    return torch.cat((states[1:], start) if is_leftward else (start, states[:-1]))


def gru(stage: GruStage, from_word: Tensor, from_state: Tensor) -> Again:
    word, state = from_word.chunk(3, dim=-1), from_state.chunk(3, dim=-1)
    yield "reset", stage.reset, torch.sigmoid(word[0] + state[0])
    yield "update", stage.update, torch.sigmoid(word[1] + state[1])
    yield "candidate", stage.candidate, torch.tanh(word[2] + stage.reset * state[2])
    new = (1 - stage.update) * stage.candidate + stage.update * stage.before
    yield "state", stage.state, torch.where(stage.is_read[:, None], new, stage.before)


def lstm(stage: LstmStage, sums: Tensor) -> Again:
    enter, forget, candidate, output = sums.chunk(4, dim=-1)
    yield "input", stage.input, torch.sigmoid(enter)
    yield "forget", stage.forget, torch.sigmoid(forget)
    yield "candidate", stage.candidate, torch.tanh(candidate)
    yield "output", stage.output, torch.sigmoid(output)
    cell = stage.forget * stage.cell_before + stage.input * stage.candidate
    is_read = stage.is_read[:, None]
    yield "cell", stage.cell, torch.where(is_read, cell, stage.cell_before)
    state = stage.output * torch.tanh(cell)
    yield "state", stage.state, torch.where(is_read, state, stage.before)
