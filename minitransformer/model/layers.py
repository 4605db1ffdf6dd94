"""The blocks of the Transformer: attention, feed-forward, and the two layers made of them.

B batch, S source, T target, H heads, D d_model, K d_head, F d_ff.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from minitransformer.model.attention import attend, merge_heads, split_heads
from minitransformer.model.cache import KeyValues, LayerCache
from minitransformer.model.dropout import drop
from minitransformer.model.positional import rotate
from minitransformer.model.trace import tap

States = Float[Tensor, "batch length d_model"]


class MultiHeadAttention(nn.Module):
    """Queries from one sequence look at keys and values of another, or of the same one."""

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        bias: bool,
        attention_output: bool,
        scale_scores: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale_scores = scale_scores
        self.dropout = dropout
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, d_model, bias=bias)
        self.value = nn.Linear(d_model, d_model, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias) if attention_output else None

    def project(self, states: States, positions: Int[Tensor, " length"] | None = None) -> KeyValues:
        """The keys and values of a sequence, rotated to their positions if any are given."""
        key = split_heads(self.key(states), self.num_heads)  # [B, H, S, K]
        value = split_heads(self.value(states), self.num_heads)  # [B, H, S, K]
        return KeyValues(key if positions is None else rotate(key, positions), value)

    def forward(
        self,
        states: States,
        looked_at: KeyValues,
        mask: Bool[Tensor, "batch 1 #length key"],
        positions: Int[Tensor, " length"] | None = None,
    ) -> States:
        query = split_heads(self.query(states), self.num_heads)  # [B, H, T, K]
        if positions is not None:
            query = rotate(query, positions)
        attended = attend(
            query,
            looked_at.key,
            looked_at.value,
            mask,
            scale_scores=self.scale_scores,
            dropout=self.dropout if self.training else 0.0,
        )
        merged = merge_heads(attended.context)  # [B, T, D]
        output = merged if self.output is None else self.output(merged)
        tap(
            self,
            query=query,
            key=looked_at.key,
            value=looked_at.value,
            **attended._asdict(),
            output=output,
        )
        return output


class FeedForward(nn.Module):
    """Each position by itself: widen, bend, narrow."""

    def __init__(
        self, *, d_model: int, d_ff: int, bias: bool, activation: str, dropout: float
    ) -> None:
        super().__init__()
        self.widen = nn.Linear(d_model, d_ff, bias=bias)
        self.narrow = nn.Linear(d_ff, d_model, bias=bias)
        activations: dict[str, Callable[[Tensor], Tensor]] = {
            "relu": functional.relu,
            "gelu": functional.gelu,
        }
        self.activation = activations[activation]
        self.dropout = dropout

    def forward(self, states: States) -> States:
        widened = self.widen(states)  # [B, T, F]
        hidden = self.activation(widened)
        output: Tensor = self.narrow(drop(hidden, self.dropout, self.training))
        tap(self, widened=widened, hidden=hidden, output=output)
        return output


class Residual(nn.Module):
    """The line everything adds to, with its norm before the block, after the sum, or nowhere."""

    def __init__(self, *, d_model: int, norm: str, bias: bool, dropout: float) -> None:
        super().__init__()
        self.pre_norm = nn.LayerNorm(d_model, bias=bias) if norm == "pre" else None
        self.post_norm = nn.LayerNorm(d_model, bias=bias) if norm == "post" else None
        self.dropout = dropout

    def forward(self, states: States, block: Callable[[States], States]) -> States:
        normed = states if self.pre_norm is None else self.pre_norm(states)
        update = drop(block(normed), self.dropout, self.training)
        total = states + update
        output = total if self.post_norm is None else self.post_norm(total)
        tap(self, states=states, normed=normed, update=update, total=total, output=output)
        return output


class EncoderLayer(nn.Module):
    """
    states ─┬─ self-attention ─(+)─┬─ feed-forward ─(+)─ output
            └───────────────────┘  └─────────────────┘
    """

    def __init__(
        self,
        *,
        self_attention: MultiHeadAttention,
        feed_forward: FeedForward | None,
        new_residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.self_attention_residual = new_residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = new_residual() if feed_forward else None

    def forward(
        self,
        states: States,
        mask: Bool[Tensor, "batch 1 1 length"],
        positions: Int[Tensor, " length"] | None,
    ) -> States:
        def attend_to_itself(states: States) -> States:
            looked_at = self.self_attention.project(states, positions)
            output: Tensor = self.self_attention(states, looked_at, mask, positions)
            return output

        states = self.self_attention_residual(states, attend_to_itself)
        if self.feed_forward_residual is not None:
            states = self.feed_forward_residual(states, self.feed_forward)
        return states


class DecoderLayer(nn.Module):
    """
    states ─┬─ masked self-attention ─(+)─┬─ cross-attention ─(+)─┬─ feed-forward ─(+)─ output
            └──────────────────────────┘  └───────────────────┘   └─────────────────┘
    """

    def __init__(
        self,
        *,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward | None,
        new_residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.self_attention_residual = new_residual()
        self.cross_attention = cross_attention
        self.cross_attention_residual = new_residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = new_residual() if feed_forward else None

    def forward(
        self,
        states: States,
        self_mask: Bool[Tensor, "batch 1 length earlier"],
        cross_mask: Bool[Tensor, "batch 1 1 source"],
        positions: Int[Tensor, " length"] | None,
        cache: LayerCache,
    ) -> States:
        def attend_to_earlier(states: States) -> States:
            cache.self_attention.append(self.self_attention.project(states, positions))
            output: Tensor = self.self_attention(states, cache.self_attention, self_mask, positions)
            return output

        def attend_to_source(states: States) -> States:
            output: Tensor = self.cross_attention(states, cache.cross_attention, cross_mask)
            return output

        states = self.self_attention_residual(states, attend_to_earlier)
        states = self.cross_attention_residual(states, attend_to_source)
        if self.feed_forward_residual is not None:
            states = self.feed_forward_residual(states, self.feed_forward)
        return states
