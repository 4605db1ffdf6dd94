"""The ancestor: an encoder and a decoder that read word by word, and attention between them.

h_1 … h_n are the encoder's states, s_t is the decoder's; e_i = s_t · h_i or s_tᵀ W h_i, and the
head reads [context ; s_t]. Without attention, all that the decoder knows is where it begins.
B batch, S source, T target, D d_model.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from minitransformer.model.attention import attend, padding_mask
from minitransformer.model.dropout import drop
from minitransformer.model.embedding import Embedding
from minitransformer.model.encoder_decoder import (
    Cache,
    EncoderDecoder,
    Memory,
    Side,
    new_embedding,
)
from minitransformer.model.recurrence import EncoderRecurrence, Recurrence, State
from minitransformer.model.trace import tap
from minitransformer.settings import ModelConfig

States = Float[Tensor, "batch length d_model"]


@dataclass
class StateCache:
    """What a decoding carries from token to token: the state of each layer."""

    states: list[State]
    length: int = 0

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows, in this order; a row may be kept more than once."""
        self.states = [tuple(part[rows] for part in state) for state in self.states]

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """The same: nothing here is the source's alone."""
        self.select(rows)


class SourceAttention(nn.Module):
    """The decoder's state looks at the encoder's states, and is joined by what it finds."""

    def __init__(
        self,
        *,
        d_model: int,
        score: str,
        attention_output: bool,
        scale_scores: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.scale_scores = scale_scores
        self.dropout = dropout
        self.is_off = False  # switched off, it finds nothing wherever it looks
        # W of e = sᵀ W h; applied to h it makes the key that s is compared with
        self.key = nn.Linear(d_model, d_model, bias=False) if score == "multiplicative" else None
        self.output = nn.Linear(2 * d_model, d_model, bias=False) if attention_output else None

    def forward(
        self, states: States, memory: Memory
    ) -> Float[Tensor, "batch length d_model_or_twice"]:
        query, source = states[:, None], memory.states[:, None]  # one head: [B, 1, T or S, D]
        value = torch.zeros_like(source) if self.is_off else source
        attended = attend(
            query,
            source,
            value,
            memory.mask,
            weight=None if self.key is None else self.key.weight,
            scale_scores=self.scale_scores,
            dropout=self.dropout if self.training else 0.0,
        )
        joined = torch.cat((attended.context[:, 0], states), dim=-1)  # [B, T, 2D]
        output = joined if self.output is None else torch.tanh(self.output(joined))
        looked = {"query": query, "source": source, "value": value, **attended._asdict()}
        tap(self, **looked, joined=joined, output=output)
        return output


class RecurrentEncoder(Side):
    """Source ids in, the state after each source token out."""

    def __init__(
        self, embedding: Embedding, layers: list[EncoderRecurrence], dropout: float
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.dropout = dropout

    def forward(
        self, source: Int[Tensor, "batch source"], is_read: Bool[Tensor, "batch source"]
    ) -> tuple[States, tuple[State, ...]]:
        states, last = self.embedding(source), []
        for layer in self.layers:
            states, last_of_layer = layer(states, is_read)
            states = drop(states, self.dropout, self.training)
            last.append(last_of_layer)
        tap(self, output=states)
        return states, tuple(last)


class RecurrentDecoder(Side):
    """Target ids in, what the head reads of each out; the cache carries the states on."""

    def __init__(
        self,
        embedding: Embedding,
        layers: list[Recurrence],
        attention: SourceAttention | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.attention = attention
        self.dropout = dropout

    def forward(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: StateCache
    ) -> Float[Tensor, "batch target d_model_or_twice"]:
        states = self.embedding(target, cache.length)
        cache.length += target.shape[1]
        for number, layer in enumerate(self.layers):
            states, cache.states[number] = layer(states, cache.states[number])
            states = drop(states, self.dropout, self.training)
        output: Tensor = states
        if self.attention is not None:
            output = self.attention(states, memory)
            # What follows the first D numbers is the s of [context ; s], which was dropped above.
            found, again = output[..., : states.shape[-1]], output[..., states.shape[-1] :]
            output = torch.cat((drop(found, self.dropout, self.training), again), dim=-1)
        tap(self, output=output)
        return output


class Recurrent(EncoderDecoder):
    """The encoder-decoder of GRUs or LSTMs, with attention or without."""

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int, pad_id: int
    ) -> "Recurrent":
        """Build a freshly initialised model; nothing below this method sees the config."""

        encoder_layers = [
            EncoderRecurrence(
                cell=config.cell,
                d_model=config.d_model,
                bias=config.bias,
                bidirectional=config.bidirectional,
            )
            for _ in range(config.num_encoder_layers)
        ]
        decoder_layers = [
            Recurrence(
                cell=config.cell,
                d_input=config.d_model,
                width=config.d_model,
                bias=config.bias,
                is_leftward=False,
            )
            for _ in range(config.num_decoder_layers)
        ]
        attention = None
        if config.attention != "none":
            attention = SourceAttention(
                d_model=config.d_model,
                score=config.attention,
                attention_output=config.attention_output,
                scale_scores=config.scale_scores,
                dropout=config.inner_dropout,
            )
        joins = attention is not None and attention.output is None
        model = cls(
            encoder=RecurrentEncoder(
                new_embedding(config, source_vocab_size), encoder_layers, config.dropout
            ),
            decoder=RecurrentDecoder(
                new_embedding(config, target_vocab_size), decoder_layers, attention, config.dropout
            ),
            head=nn.Linear(config.d_model * (1 + joins), target_vocab_size, bias=config.head_bias),
            pad_id=pad_id,
        )
        model.share_embeddings(config.share_embeddings)
        return model

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        mask = padding_mask(source, self.pad_id)  # [B, 1, 1, S]
        states, last = self.encoder(source, mask[:, 0, 0])
        return Memory(states, mask, last)

    def decode_states(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "batch target d_model_or_twice"]:
        cache = self.new_cache(memory) if cache is None else cache
        assert isinstance(cache, StateCache)
        states: Tensor = self.decoder(target, memory, cache)
        return states

    def new_cache(self, memory: Memory) -> StateCache:
        """The decoder's layers begin with what those of the encoder have ended with."""
        return StateCache(list(memory.last))

    def source_attentions(self) -> list[str]:
        return [] if self.decoder.attention is None else ["decoder.attention"]
