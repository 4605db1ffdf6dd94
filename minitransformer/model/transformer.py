"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al., 2017).

Read it from top to bottom: embedding, attention, feed-forward network, residual connection, encoder
layer, decoder layer, encoder, decoder, and the model that joins them; (3.2.2) is a section of the
paper. The formulas are pure functions in two other files: masks and softmax(Q Kᵀ / √d_head) V in
attention.py, sinusoids and rotation in positional.py.

The base class in base.py is the rest of the model: `forward` encodes the source and decodes the
target, `decode` applies the dense head to `decode_states`. `build_model`, also there, draws the
weights, which these constructors leave uninitialized. `tap` passes tensors to a recording, if there
is one; walk-throughs and attention maps are made of them.

B batch, S source length, T target length, L either of them, D d_model, H heads, F d_ff;
d_head = D / H. In signatures, `#` before a size means that it may also be 1.
Masks are boolean, True = may attend: [B, 1, query, key], the same for all heads. Sentences begin
with a token and are padded at their ends, so that every query has a key that it may attend to.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from minitransformer.model.attention import (
    attend,
    causal_mask,
    merge_heads,
    padding_mask,
    split_heads,
)
from minitransformer.model.base import Cache, EncoderDecoder, Linear, Memory, Stack
from minitransformer.model.cache import KeyValueCache, KeyValues, LayerCache
from minitransformer.model.fast import dropout
from minitransformer.model.positional import LearnedPositions, SinusoidalPositions, rotate
from minitransformer.model.trace import tap
from minitransformer.settings import ModelConfig

States = Float[Tensor, "batch length d_model"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu, "gelu": functional.gelu,
}  # fmt: skip


class Embedding(nn.Module):
    """Token embeddings plus positional encodings (3.4, 3.5): E[ids] · scale + PE[positions]."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, config.d_model))
        self.scale = config.d_model**0.5 if config.scale_embeddings else 1.0
        self.dropout = config.dropout
        self.positions: SinusoidalPositions | LearnedPositions | None = None
        if config.positional_encoding == "sinusoidal":
            self.positions = SinusoidalPositions(config.d_model)
        elif config.positional_encoding == "learned":
            self.positions = LearnedPositions(config.d_model, config.max_length)

    def forward(self, ids: Int[Tensor, "batch length"], start: int = 0) -> States:
        """Embed tokens; `start` is the position of the first one in its sentence."""
        tokens = functional.embedding(ids, self.weight) * self.scale  # [B, L, D]
        if self.positions is None:
            total = tokens
            tap(self, tokens=tokens, output=total)
        else:
            positions = self.positions(start, start + ids.shape[1])  # [L, D]
            total = tokens + positions
            tap(self, tokens=tokens, positions=positions, output=total)
        return dropout(total, self.dropout, self.training)


class MultiHeadAttention(nn.Module):
    """Multi-head attention (3.2.2): Concat(head_1 … head_H) W_O, where
    head_h = softmax(Q_h K_hᵀ / √d_head) V_h, Q = x W_Q, K = key_value W_K, V = key_value W_V.

    `key_value` is what keys and values are made of: in self-attention x itself, in cross-attention
    the encoder's output.
    """

    def __init__(self, config: ModelConfig, *, is_cross: bool = False) -> None:
        super().__init__()
        d_model = config.d_model
        self.num_heads = config.num_heads
        self.scale_scores = config.scale_scores
        # Dropout of the weights; rotation of queries and keys by their positions.
        self.dropout = config.cross_attention_dropout if is_cross else config.self_attention_dropout
        self.rotary = config.positional_encoding == "rotary" and not is_cross
        self.query = Linear(d_model, d_model, bias=config.bias)
        self.key = Linear(d_model, d_model, bias=config.bias)
        self.value = Linear(d_model, d_model, bias=config.bias)
        self.output = (
            Linear(d_model, d_model, bias=config.bias) if config.output_projection else None
        )

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        key_value: Float[Tensor, "batch key_value d_model"],
        mask: Bool[Tensor, "batch 1 #query key"],
        cache: KeyValues | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Let each vector of x attend to the keys that the mask allows.

        `cache` holds the keys and values of earlier calls. In self-attention those of the new
        tokens are appended to it, so that there are more keys than vectors in x. In
        cross-attention, whose key_value stays the same, the first call fills it and later calls
        only read it.
        """
        if cache is not None and cache.is_complete:  # cross-attention after the first call
            key, value = cache.contents
        else:
            # Computed before the query: in another order, gradients would be summed in another
            # order, and trained weights would differ in their last bits.
            key = split_heads(self.key(key_value), self.num_heads)  # [B, H, keys, d_head]
            value = split_heads(self.value(key_value), self.num_heads)
        query = split_heads(self.query(x), self.num_heads)  # [B, H, queries, d_head]
        if self.rotary:
            start = 0 if cache is None else cache.length  # the position of the first vector of x
            positions = torch.arange(start, start + x.shape[1], device=x.device)
            query, key = rotate(query, positions), rotate(key, positions)
        if cache is not None and not cache.is_complete:
            key, value = cache.update(key, value)  # now with those of earlier calls
        attention = attend(
            query,
            key,
            value,
            mask,
            scale_scores=self.scale_scores,
            dropout=self.dropout if self.training else 0.0,
        )
        merged = merge_heads(attention.context)  # [B, queries, D]
        output = merged if self.output is None else self.output(merged)
        tap(self, query=query, key=key, value=value, **attention._asdict(), output=output)
        return output


class FeedForward(nn.Module):
    """Position-wise feed-forward network (3.3): activation(x W_1 + b_1) W_2 + b_2."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.d_model, config.d_ff, bias=config.bias)
        self.fc2 = Linear(config.d_ff, config.d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = config.activation_dropout

    def forward(self, x: States) -> States:
        pre_activation = self.fc1(x)  # [B, L, F]
        hidden = self.activation(pre_activation)
        output: Tensor = self.fc2(dropout(hidden, self.dropout, self.training))
        tap(self, pre_activation=pre_activation, hidden=hidden, output=output)
        return output


class Residual(nn.Module):
    """Residual connection around a sublayer (3.1), with post-, pre- or no layer norm:
    LayerNorm(x + sublayer(x)) as in the paper, x + sublayer(LayerNorm(x)), or x + sublayer(x).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model, bias = config.d_model, config.bias
        self.pre_norm = nn.LayerNorm(d_model, bias=bias) if config.norm == "pre" else None
        self.post_norm = nn.LayerNorm(d_model, bias=bias) if config.norm == "post" else None
        self.dropout = config.dropout

    def forward(self, x: States, sublayer: Callable[[States], States]) -> States:
        normed = x if self.pre_norm is None else self.pre_norm(x)
        update = dropout(sublayer(normed), self.dropout, self.training)
        total = x + update
        output = total if self.post_norm is None else self.post_norm(total)
        tap(self, states=x, normed=normed, update=update, total=total, output=output)
        return output


class EncoderLayer(nn.Module):
    """Encoder layer (3.1); each (+) is a Residual.

    x ─┬─ self-attention ─(+)─┬─ feed-forward ─(+)─ output
       └───────────────────┘  └─────────────────┘
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config) if config.d_ff else None
        self.feed_forward_residual = Residual(config) if config.d_ff else None

    def forward(self, x: States, mask: Bool[Tensor, "batch 1 1 length"]) -> States:
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, x, mask))
        if self.feed_forward_residual is not None:
            x = self.feed_forward_residual(x, self.feed_forward)
        return x


class DecoderLayer(nn.Module):
    """Decoder layer (3.1); each (+) is a Residual. Cross-attention takes its keys and values from
    `memory`, the output of the last encoder layer.

                                              memory
                                                │
    x ─┬─ masked self-attention ─(+)─┬─ cross-attention ─(+)─┬─ feed-forward ─(+)─ output
       └──────────────────────────┘  └────────────────────┘  └─────────────────┘
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config, is_cross=True)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config) if config.d_ff else None
        self.feed_forward_residual = Residual(config) if config.d_ff else None

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        self_mask: Bool[Tensor, "batch 1 #target key"],
        memory_mask: Bool[Tensor, "batch 1 1 source"],
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        self_cache, cross_cache = (None, None) if cache is None else cache
        x = self.self_attention_residual(
            x, lambda x: self.self_attention(x, x, self_mask, self_cache)
        )
        x = self.cross_attention_residual(
            x, lambda x: self.cross_attention(x, memory, memory_mask, cross_cache)
        )
        if self.feed_forward_residual is not None:
            x = self.feed_forward_residual(x, self.feed_forward)
        return x


def final_norm(config: ModelConfig) -> nn.Module:
    """Return the final LayerNorm of a pre-norm stack, nn.Identity for the others."""
    if config.norm == "pre":
        return nn.LayerNorm(config.d_model, bias=config.bias)
    return nn.Identity()


class Encoder(Stack):
    """Embedding and N encoder layers (3.1): source ids in, one vector per source token out."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = Embedding(config, vocab_size)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = final_norm(config)

    def forward(
        self, source: Int[Tensor, "batch source"], mask: Bool[Tensor, "batch 1 1 source"]
    ) -> Float[Tensor, "batch source d_model"]:
        x = self.embedding(source)
        for layer in self.layers:
            x = layer(x, mask)
        output: Tensor = self.norm(x)
        tap(self, mask=mask, output=output)
        return output


class Decoder(Stack):
    """Embedding and N decoder layers (3.1): target ids in, one vector per target token out."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = Embedding(config, vocab_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.norm = final_norm(config)

    def forward(
        self,
        target: Int[Tensor, "batch target"],
        memory: Memory,
        mask: Bool[Tensor, "batch 1 #target key"],
        start: int = 0,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the last layer's output; `start` is the position of the first target token."""
        x = self.embedding(target, start)
        for number, layer in enumerate(self.layers):
            layer_cache = None if cache is None else cache.layers[number]
            x = layer(x, memory.states, mask, memory.mask, layer_cache)
        output: Tensor = self.norm(x)
        tap(self, mask=mask, output=output)
        return output


class Transformer(EncoderDecoder):
    """The encoder-decoder Transformer (3.1, figure 1): encoder, decoder and dense head."""

    def __init__(
        self, config: ModelConfig, source_vocab_size: int, target_vocab_size: int, pad_id: int
    ) -> None:
        super().__init__(
            config,
            encoder=Encoder(config, source_vocab_size),
            decoder=Decoder(config, target_vocab_size),
            head=Linear(config.d_model, target_vocab_size, bias=config.head_bias),
            pad_id=pad_id,
        )

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        """Return the encoder's output with the mask of the source's padding."""
        mask = padding_mask(source, self.pad_id)  # [B, 1, 1, S]
        return Memory(self.encoder(source, mask), mask)

    def decode_states(
        self, target: Int[Tensor, "batch target"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's output, which the head reads.

        Without a cache, `target` is all tokens so far. With one, it is the new tokens alone.
        """
        assert cache is None or isinstance(cache, KeyValueCache)
        start = 0 if cache is None else cache.length  # the position of the first token of `target`
        mask = padding_mask(target, self.pad_id)  # [B, 1, 1, T]
        if cache is not None:
            mask = cache.update_mask(mask)  # [B, 1, 1, start + T]: earlier tokens come first
        if target.shape[1] > 1:  # a single new token may attend to everything so far
            # [B, 1, T, start + T]: query i may attend to keys 0 … start + i
            mask = mask & causal_mask(target.shape[1], mask.shape[-1], target.device)
        states: Tensor = self.decoder(target, memory, mask, start, cache)
        return states

    def new_cache(self, memory: Memory) -> KeyValueCache:
        """Return an empty cache; unlike a recurrent model's, it takes nothing from the memory."""
        return KeyValueCache(len(self.decoder.layers))

    def source_attentions(self) -> list[str]:
        """Return the paths of the cross-attention modules, by layer."""
        numbers = range(len(self.decoder.layers))
        return [f"decoder.layers.{number}.cross_attention" for number in numbers]
