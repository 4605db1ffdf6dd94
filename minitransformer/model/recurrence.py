"""A sentence read word by word: the formulas of GRU and LSTM, and layers that hold weights.

Gates stand in the order of `torch.nn.GRU` (reset, update, candidate) and `torch.nn.LSTM` (input,
forget, candidate, output), so that weights can be exchanged.
B batch, T length, D d_model, W width of a state, G gates.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from minitransformer.model.trace import is_recording, tap

GATES = {"gru": 3, "lstm": 4}
PARTS = {"gru": 1, "lstm": 2}  # a GRU carries its state on, an LSTM a cell, too
State = tuple[Tensor, ...]  # each part [B, W]; the first is what others read


class GruStep(NamedTuple):
    """One word read by a GRU."""

    reset: Float[Tensor, "batch width"]
    update: Float[Tensor, "batch width"]
    candidate: Float[Tensor, "batch width"]
    state: Float[Tensor, "batch width"]


class LstmStep(NamedTuple):
    """One word read by an LSTM."""

    input: Float[Tensor, "batch width"]
    forget: Float[Tensor, "batch width"]
    candidate: Float[Tensor, "batch width"]
    output: Float[Tensor, "batch width"]
    cell: Float[Tensor, "batch width"]
    state: Float[Tensor, "batch width"]


def gru_step(
    from_word: Float[Tensor, "batch gates"],
    from_state: Float[Tensor, "batch gates"],
    state: Float[Tensor, "batch width"],
) -> GruStep:
    """r, z = σ(Wx + Us); n = tanh(W_n x + r ⊙ U_n s); the new state is (1 - z) ⊙ n + z ⊙ s."""
    width = state.shape[1]
    gates = torch.sigmoid(from_word[:, : 2 * width] + from_state[:, : 2 * width])
    reset, update = gates.chunk(2, dim=1)
    candidate = torch.tanh(from_word[:, 2 * width :] + reset * from_state[:, 2 * width :])
    # What is carried keeps all of its digits, also where products are computed in bf16.
    new = torch.lerp(candidate.to(state.dtype), state, update.to(state.dtype))
    return GruStep(reset, update, candidate, new)


def lstm_step(
    from_word: Float[Tensor, "batch gates"],
    from_state: Float[Tensor, "batch gates"],
    cell: Float[Tensor, "batch width"],
) -> LstmStep:
    """i, f, o = σ(Wx + Us), g = tanh(W_g x + U_g s); c = f ⊙ c + i ⊙ g; the state: o ⊙ tanh(c)."""
    sums = from_word + from_state
    width = cell.shape[1]
    gates = torch.sigmoid(sums[:, : 2 * width])
    candidate = torch.tanh(sums[:, 2 * width : 3 * width])
    output = torch.sigmoid(sums[:, 3 * width :])
    enter, forget = gates.chunk(2, dim=1)
    cell = forget * cell + enter * candidate
    return LstmStep(enter, forget, candidate, output, cell, output * torch.tanh(cell))


class Recurrence(nn.Module):
    """One layer in one direction: each word changes the state that earlier ones have left."""

    def __init__(
        self, *, cell: str, d_input: int, width: int, bias: bool, is_leftward: bool
    ) -> None:
        super().__init__()
        self.cell = cell
        self.width = width
        self.is_leftward = is_leftward
        self.word = nn.Linear(d_input, GATES[cell] * width, bias=bias)
        self.state = nn.Linear(width, GATES[cell] * width, bias=bias)

    def start(self, inputs: Tensor) -> State:
        """What is known before the first word: nothing."""
        return (inputs.new_zeros(len(inputs), self.width),) * PARTS[self.cell]

    def forward(
        self,
        inputs: Float[Tensor, "batch length d_input"],
        state: State,
        is_read: Bool[Tensor, "batch length"] | None = None,
    ) -> tuple[Float[Tensor, "batch length width"], State]:
        """The state after each word, and the last; a word that is not read leaves it as it was."""
        from_words = self.word(inputs).unbind(dim=1)  # T times [B, G·W], one product for all
        places = range(inputs.shape[1])
        states, steps = {}, {}
        for place in reversed(places) if self.is_leftward else places:
            before = state
            step, state = self.read(from_words[place], before)
            if is_read is not None:
                reads = is_read[:, place, None]
                both = zip(state, before, strict=True)
                state = tuple(torch.where(reads, new, old) for new, old in both)
            states[place] = state[0]
            if is_recording():
                steps[place] = {
                    **step._asdict(),
                    **dict(zip(("before", "cell_before"), before, strict=False)),
                    **dict(zip(("state", "cell"), state, strict=False)),
                }
        if steps:
            tap(self, **{name: stacked(steps, name) for name in steps[0]})
        return torch.stack([states[place] for place in places], dim=1), state

    def read(self, from_word: Tensor, state: State) -> tuple[GruStep | LstmStep, State]:
        """One word, and the state after it."""
        from_state = self.state(state[0])
        if self.cell == "gru":
            gru = gru_step(from_word, from_state, state[0])
            return gru, (gru.state,)
        lstm = lstm_step(from_word, from_state, state[1])
        return lstm, (lstm.state, lstm.cell)


def stacked(steps: dict[int, dict[str, Tensor]], name: str) -> Float[Tensor, "batch length width"]:
    """A value of every step, in the order of the words."""
    return torch.stack([steps[place][name] for place in sorted(steps)], dim=1)


class EncoderRecurrence(nn.Module):
    """One layer of an encoder: from left to right, and maybe from right to left as well."""

    def __init__(self, *, cell: str, d_model: int, bias: bool, bidirectional: bool) -> None:
        super().__init__()
        width = d_model // 2 if bidirectional else d_model

        def new_recurrence(*, is_leftward: bool) -> Recurrence:
            return Recurrence(
                cell=cell, d_input=d_model, width=width, bias=bias, is_leftward=is_leftward
            )

        self.rightward = new_recurrence(is_leftward=False)
        self.leftward = new_recurrence(is_leftward=True) if bidirectional else None

    def forward(
        self, inputs: Float[Tensor, "batch length d_model"], is_read: Bool[Tensor, "batch length"]
    ) -> tuple[Float[Tensor, "batch length d_model"], State]:
        """The states of both directions side by side, and so the last ones of each."""
        output, last = self.rightward(inputs, self.rightward.start(inputs), is_read)
        if self.leftward is not None:
            other, last_other = self.leftward(inputs, self.leftward.start(inputs), is_read)
            output = torch.cat((output, other), dim=-1)  # [B, T, D]
            last = tuple(torch.cat(parts, dim=-1) for parts in zip(last, last_other, strict=True))
            tap(self, output=output)
        return output, last
