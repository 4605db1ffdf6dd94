"""The recurrent encoder-decoder: GRU or LSTM layers with attention, as before the Transformer.

h_1 … h_S are the encoder's states and s_t is the decoder's; the score of h_i is s_t · h_i or
s_tᵀ W h_i (Luong et al., 2015), and the head reads [context ; s_t]. Without attention, the decoder
knows the source only by its initial state (Sutskever et al., 2014).

Gates are in the order of `torch.nn.GRU` (reset, update, candidate) and `torch.nn.LSTM` (input,
forget, candidate, output), so that weights can be exchanged.
B batch, S source length, T target length, L either of them, D d_model, W width of a state, G gates.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from minitransformer.model.attention import attend, padding_mask
from minitransformer.model.base import Cache, EncoderDecoder, Linear, Memory, Stack
from minitransformer.model.fast import dropout
from minitransformer.model.trace import is_recording, tap
from minitransformer.model.transformer import Embedding, States
from minitransformer.settings import ModelConfig

State = tuple[Tensor, ...]  # each [B, W]: s of a GRU, s and the cell of an LSTM; layers output s

NUM_GATES = {"gru": 3, "lstm": 4}
STATE_TENSORS = {"gru": 1, "lstm": 2}


class GruStep(NamedTuple):
    """The values of one GRU step."""

    reset: Float[Tensor, "batch width"]
    update: Float[Tensor, "batch width"]
    candidate: Float[Tensor, "batch width"]
    state: Float[Tensor, "batch width"]


def gru_step(
    input_gates: Float[Tensor, "batch gates"],
    hidden_gates: Float[Tensor, "batch gates"],
    state: Float[Tensor, "batch width"],
) -> GruStep:
    """Compute r, z = σ(Wx + Us), n = tanh(W_n x + r ⊙ U_n s), and the state (1 - z) ⊙ n + z ⊙ s.

    Cho et al. (2014); W x are the `input_gates`, U s the `hidden_gates`.
    """
    width = state.shape[1]
    gates = torch.sigmoid(input_gates[:, : 2 * width] + hidden_gates[:, : 2 * width])
    reset, update = gates.chunk(2, dim=1)
    candidate = torch.tanh(input_gates[:, 2 * width :] + reset * hidden_gates[:, 2 * width :])
    # The state stays in float32, also where products are computed in bf16.
    new = torch.lerp(candidate.to(state.dtype), state, update.to(state.dtype))
    return GruStep(reset, update, candidate, new)


class LstmStep(NamedTuple):
    """The values of one LSTM step."""

    input: Float[Tensor, "batch width"]
    forget: Float[Tensor, "batch width"]
    candidate: Float[Tensor, "batch width"]
    output: Float[Tensor, "batch width"]
    cell: Float[Tensor, "batch width"]
    state: Float[Tensor, "batch width"]


def lstm_step(
    input_gates: Float[Tensor, "batch gates"],
    hidden_gates: Float[Tensor, "batch gates"],
    cell: Float[Tensor, "batch width"],
) -> LstmStep:
    """Compute i, f, o = σ(Wx + Us), g = tanh(W_g x + U_g s), c = f ⊙ c + i ⊙ g, state o ⊙ tanh(c).

    Hochreiter and Schmidhuber (1997), with the forget gate of Gers et al. (2000).
    """
    sums = input_gates + hidden_gates
    width = cell.shape[1]
    gates = torch.sigmoid(sums[:, : 2 * width])
    candidate = torch.tanh(sums[:, 2 * width : 3 * width])
    output = torch.sigmoid(sums[:, 3 * width :])
    enter, forget = gates.chunk(2, dim=1)
    cell = forget * cell + enter * candidate
    return LstmStep(enter, forget, candidate, output, cell, output * torch.tanh(cell))


class Recurrence(nn.Module):
    """A GRU or LSTM layer in one direction: state_t = step(W x_t, U state_{t-1})."""

    def __init__(self, config: ModelConfig, width: int, *, is_backward: bool = False) -> None:
        super().__init__()
        self.cell = config.cell
        self.width = width
        self.is_backward = is_backward
        gates = NUM_GATES[config.cell] * width
        self.input_proj = Linear(config.d_model, gates, bias=config.bias)
        self.hidden_proj = Linear(width, gates, bias=config.bias)

    def initial_state(self, inputs: Tensor) -> State:
        """Return the state before the first token: zeros."""
        return (inputs.new_zeros(len(inputs), self.width),) * STATE_TENSORS[self.cell]

    def forward(
        self,
        inputs: Float[Tensor, "batch length d_input"],
        state: State,
        mask: Bool[Tensor, "batch length"] | None = None,
    ) -> tuple[Float[Tensor, "batch length width"], State]:
        """Return the state after each token, and the final state.

        Where the mask is False (padding), the state is carried on unchanged.
        """
        gates = self.input_proj(inputs).unbind(dim=1)  # L times [B, G·W], one product for all
        positions = range(inputs.shape[1])
        states, steps = {}, {}
        for position in reversed(positions) if self.is_backward else positions:
            before = state
            step, state = self.step(gates[position], before)
            if mask is not None:
                is_token = mask[:, position, None]
                pairs = zip(state, before, strict=True)
                state = tuple(torch.where(is_token, new, old) for new, old in pairs)
            states[position] = state[0]
            if is_recording():
                steps[position] = {
                    **step._asdict(),
                    **dict(zip(("before", "cell_before"), before, strict=False)),
                    **dict(zip(("state", "cell"), state, strict=False)),
                }
        if steps:
            columns = {name: [steps[position][name] for position in positions] for name in steps[0]}
            tap(self, **{name: torch.stack(values, dim=1) for name, values in columns.items()})
        return torch.stack([states[position] for position in positions], dim=1), state

    def step(self, input_gates: Tensor, state: State) -> tuple[GruStep | LstmStep, State]:
        """Return the values of one token's step and the state after it."""
        hidden_gates = self.hidden_proj(state[0])
        if self.cell == "gru":
            gru = gru_step(input_gates, hidden_gates, state[0])
            return gru, (gru.state,)
        lstm = lstm_step(input_gates, hidden_gates, state[1])
        return lstm, (lstm.state, lstm.cell)


class EncoderRecurrence(nn.Module):
    """A recurrent encoder layer; a bidirectional one returns [h_forward ; h_backward]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model // 2 if config.bidirectional else config.d_model
        self.forward_rnn = Recurrence(config, width)
        self.backward_rnn = (
            Recurrence(config, width, is_backward=True) if config.bidirectional else None
        )

    def forward(
        self, inputs: Float[Tensor, "batch length d_model"], mask: Bool[Tensor, "batch length"]
    ) -> tuple[Float[Tensor, "batch length d_model"], State]:
        """Return the states of both directions side by side, and likewise their final states."""
        output, final = self.forward_rnn(inputs, self.forward_rnn.initial_state(inputs), mask)
        if self.backward_rnn is not None:
            backward, backward_final = self.backward_rnn(
                inputs, self.backward_rnn.initial_state(inputs), mask
            )
            output = torch.cat((output, backward), dim=-1)  # [B, L, D]
            pairs = zip(final, backward_final, strict=True)
            final = tuple(torch.cat(pair, dim=-1) for pair in pairs)
            tap(self, output=output)
        return output, final


@dataclass
class StateCache:
    """The state of each decoder layer, carried from token to token."""

    states: list[State]
    length: int = 0

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows, in this order; a row may be kept more than once."""
        self.states = [tuple(part[rows] for part in state) for state in self.states]

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Do the same as `select`: nothing in this cache depends on the source alone."""
        self.select(rows)


class SourceAttention(nn.Module):
    """Attention of the decoder's states s to the encoder's states h (Luong et al., 2015, 3.1).

    score = s · h or sᵀ W h; context = Σ softmax(score) h; the output is [context ; s], or
    tanh(W_O [context ; s]) with `output_projection` (their W_c).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.scale_scores = config.scale_scores
        self.dropout = config.cross_attention_dropout
        self.is_off = False  # an intervention: with zeros as values, the context is zero
        # W of the score sᵀ W h
        self.key = (
            Linear(d_model, d_model, bias=False) if config.attention == "multiplicative" else None
        )
        self.output = Linear(2 * d_model, d_model, bias=False) if config.output_projection else None

    def forward(
        self, states: States, memory: Memory
    ) -> Float[Tensor, "batch length d_model_or_twice"]:
        query, source = states[:, None], memory.states[:, None]  # one head: [B, 1, T or S, D]
        value = torch.zeros_like(source) if self.is_off else source
        attention = attend(
            query,
            source,
            value,
            memory.mask,
            weight=None if self.key is None else self.key.weight,
            scale_scores=self.scale_scores,
            dropout=self.dropout if self.training else 0.0,
        )
        joined = torch.cat((attention.context[:, 0], states), dim=-1)  # [B, T, 2D]
        output = joined if self.output is None else torch.tanh(self.output(joined))
        stages = {"query": query, "source": source, "value": value, **attention._asdict()}
        tap(self, **stages, joined=joined, output=output)
        return output


class RecurrentEncoder(Stack):
    """Embedding and recurrent layers: source ids in, the state after each source token out."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = Embedding(config, vocab_size)
        self.layers = nn.ModuleList(
            EncoderRecurrence(config) for _ in range(config.num_encoder_layers)
        )
        self.dropout = config.dropout

    def forward(
        self, source: Int[Tensor, "batch source"], mask: Bool[Tensor, "batch source"]
    ) -> tuple[States, tuple[State, ...]]:
        """Return the last layer's states, and the final state of each layer."""
        states, final_states = self.embedding(source), []
        for layer in self.layers:
            states, final = layer(states, mask)
            states = dropout(states, self.dropout, self.training)
            final_states.append(final)
        tap(self, output=states)
        return states, tuple(final_states)


class RecurrentDecoder(Stack):
    """Embedding, recurrent layers and attention: target ids in, the input of the head out."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = Embedding(config, vocab_size)
        self.layers = nn.ModuleList(
            Recurrence(config, config.d_model) for _ in range(config.num_decoder_layers)
        )
        self.attention = None if config.attention == "none" else SourceAttention(config)
        self.dropout = config.dropout

    def forward(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: StateCache
    ) -> Float[Tensor, "batch target d_model_or_twice"]:
        states = self.embedding(target, cache.length)
        cache.length += target.shape[1]
        for number, layer in enumerate(self.layers):
            states, cache.states[number] = layer(states, cache.states[number])
            states = dropout(states, self.dropout, self.training)
        output: Tensor = states
        if self.attention is not None:
            output = self.attention(states, memory)
            # The s of [context ; s] comes after the first D numbers; its dropout was applied above.
            context, state = output[..., : states.shape[-1]], output[..., states.shape[-1] :]
            output = torch.cat((dropout(context, self.dropout, self.training), state), dim=-1)
        tap(self, output=output)
        return output


class Recurrent(EncoderDecoder):
    """The recurrent encoder-decoder, with attention or without."""

    def __init__(
        self, config: ModelConfig, source_vocab_size: int, target_vocab_size: int, pad_id: int
    ) -> None:
        decoder = RecurrentDecoder(config, target_vocab_size)
        joins = decoder.attention is not None and decoder.attention.output is None
        super().__init__(
            config,
            encoder=RecurrentEncoder(config, source_vocab_size),
            decoder=decoder,
            head=Linear(config.d_model * (1 + joins), target_vocab_size, bias=config.head_bias),
            pad_id=pad_id,
        )

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        mask = padding_mask(source, self.pad_id)  # [B, 1, 1, S]
        states, final_states = self.encoder(source, mask[:, 0, 0])
        return Memory(states, mask, final_states)

    def decode_states(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "batch target d_model_or_twice"]:
        cache = self.new_cache(memory) if cache is None else cache
        assert isinstance(cache, StateCache)
        states: Tensor = self.decoder(target, memory, cache)
        return states

    def new_cache(self, memory: Memory) -> StateCache:
        """Start each decoder layer from the final state of the encoder layer beside it."""
        return StateCache(list(memory.final_states))

    def source_attentions(self) -> list[str]:
        return [] if self.decoder.attention is None else ["decoder.attention"]
