"""The encoder-decoder Transformer, built of the blocks in layers.py.

B batch, S source, T target, H heads, D d_model, V vocabulary.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from minitransformer.model.attention import causal_mask, padding_mask
from minitransformer.model.cache import KeyValueCache, KeyValues, LayerCache
from minitransformer.model.embedding import Embedding
from minitransformer.model.encoder_decoder import (
    Cache,
    EncoderDecoder,
    Memory,
    Side,
    new_embedding,
)
from minitransformer.model.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    Residual,
)
from minitransformer.model.trace import tap
from minitransformer.settings import ModelConfig


class Encoder(Side):
    """Source ids in, one state per source token out."""

    def __init__(self, embedding: Embedding, layers: list[EncoderLayer], norm: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        mask: Bool[Tensor, "batch 1 1 source"],
        positions: Int[Tensor, " source"] | None,
    ) -> Float[Tensor, "batch source d_model"]:
        states = self.embedding(source)
        for layer in self.layers:
            states = layer(states, mask, positions)
        output: Tensor = self.norm(states)
        tap(self, mask=mask, output=output)
        return output


class Decoder(Side):
    """Target ids in, one state per target token out; each sees only itself and what came before."""

    def __init__(self, embedding: Embedding, layers: list[DecoderLayer], norm: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self,
        target: Int[Tensor, "batch target"],
        self_mask: Bool[Tensor, "batch 1 target key"],
        memory: Memory,
        positions: Int[Tensor, " target"] | None,
        cache: KeyValueCache,
    ) -> Float[Tensor, "batch target d_model"]:
        start = cache.length - target.shape[1]
        states = self.embedding(target, start)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            states = layer(states, self_mask, memory.mask, positions, layer_cache)
        output: Tensor = self.norm(states)
        tap(self, mask=self_mask, output=output)
        return output


class Transformer(EncoderDecoder):
    """The encoder-decoder Transformer."""

    def __init__(
        self, *, encoder: Encoder, decoder: Decoder, head: nn.Linear, pad_id: int, rotary: bool
    ) -> None:
        super().__init__(encoder=encoder, decoder=decoder, head=head, pad_id=pad_id)
        self.rotary = rotary

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int, pad_id: int
    ) -> "Transformer":
        """Build a freshly initialised model; nothing below this method sees the config."""

        def new_attention() -> MultiHeadAttention:
            return MultiHeadAttention(
                d_model=config.d_model,
                num_heads=config.num_heads,
                bias=config.bias,
                attention_output=config.attention_output,
                scale_scores=config.scale_scores,
                dropout=config.inner_dropout,
            )

        def new_feed_forward() -> FeedForward | None:
            if config.d_ff == 0:
                return None
            return FeedForward(
                d_model=config.d_model,
                d_ff=config.d_ff,
                bias=config.bias,
                activation=config.activation,
                dropout=config.inner_dropout,
            )

        def new_residual() -> Residual:
            return Residual(
                d_model=config.d_model, norm=config.norm, bias=config.bias, dropout=config.dropout
            )

        def new_final_norm() -> nn.Module:  # post-norm layers end normed, pre-norm ones do not
            if config.norm == "pre":
                return nn.LayerNorm(config.d_model, bias=config.bias)
            return nn.Identity()

        encoder_layers = [
            EncoderLayer(
                self_attention=new_attention(),
                feed_forward=new_feed_forward(),
                new_residual=new_residual,
            )
            for _ in range(config.num_encoder_layers)
        ]
        decoder_layers = [
            DecoderLayer(
                self_attention=new_attention(),
                cross_attention=new_attention(),
                feed_forward=new_feed_forward(),
                new_residual=new_residual,
            )
            for _ in range(config.num_decoder_layers)
        ]
        model = cls(
            encoder=Encoder(
                new_embedding(config, source_vocab_size), encoder_layers, new_final_norm()
            ),
            decoder=Decoder(
                new_embedding(config, target_vocab_size), decoder_layers, new_final_norm()
            ),
            head=nn.Linear(config.d_model, target_vocab_size, bias=config.head_bias),
            pad_id=pad_id,
            rotary=config.position == "rotary",
        )
        model.share_embeddings(config.share_embeddings)
        return model

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        mask = padding_mask(source, self.pad_id)
        positions = self.positions_for(source, 0)
        return Memory(self.encoder(source, mask, positions), mask)

    def decode_states(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "batch target d_model"]:
        cache = self.new_cache(memory) if cache is None else cache
        assert isinstance(cache, KeyValueCache)
        positions = self.positions_for(target, cache.length)
        cache.target_mask = torch.cat(
            (cache.target_mask, padding_mask(target, self.pad_id)), dim=-1
        )
        mask = cache.target_mask
        if target.shape[1] > 1:  # nothing is later than a single token
            mask = mask & causal_mask(target.shape[1], cache.length, target.device)
        states: Tensor = self.decoder(target, mask, memory, positions, cache)
        return states

    def new_cache(self, memory: Memory) -> KeyValueCache:
        """An empty cache for this memory, the source's keys and values projected once."""
        layers = []
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            cross = layer.cross_attention.project(memory.states)
            nothing = cross.key[:, :, :0]  # [B, H, 0, K]
            layers.append(LayerCache(KeyValues(nothing, nothing), cross))
        return KeyValueCache(layers, memory.mask[..., :0])

    def source_attentions(self) -> list[str]:
        numbers = range(len(self.decoder.layers))
        return [f"decoder.layers.{number}.cross_attention" for number in numbers]

    def positions_for(self, ids: Tensor, start: int) -> Int[Tensor, " length"] | None:
        """The places that rotary attention turns by; None for every other encoding."""
        if not self.rotary:
            return None
        return torch.arange(start, start + ids.shape[1], device=ids.device)
