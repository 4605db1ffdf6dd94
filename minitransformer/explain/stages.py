"""The stages of one pass through an encoder or a decoder, with the tensors that it computed."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from minitransformer.model.base import Stack
from minitransformer.model.recurrent import (
    EncoderRecurrence,
    Recurrence,
    RecurrentDecoder,
    SourceAttention,
)
from minitransformer.model.transformer import Decoder, Encoder, Residual


@dataclass(frozen=True)
class EmbeddingStage:
    """output = vectors + positions."""

    kind: ClassVar[str] = "embedding"
    path: str  # of the module in the model
    tokens: list[str]
    ids: list[int]
    vectors: Float[Tensor, "tokens d_model"]
    positions: Float[Tensor, "tokens d_model"] | None
    output: Float[Tensor, "tokens d_model"]


@dataclass(frozen=True)
class NormStage:
    """Layer normalization of each token's vector."""

    kind: ClassVar[str] = "norm"
    path: str
    tokens: list[str]
    before: Float[Tensor, "tokens d_model"]
    after: Float[Tensor, "tokens d_model"]


class AttentionNames(NamedTuple):
    """What the sheets call the parts of an attention."""

    query: str
    key: str
    value: str
    score: str
    weight: str


TRANSFORMER_NAMES = AttentionNames("Q", "K", "V", "score", "weight")
RECURRENT_NAMES = AttentionNames("s", "h", "h", "e", "α")
MULTIPLICATIVE_NAMES = RECURRENT_NAMES._replace(key="W h")  # the score is sᵀ W h


@dataclass(frozen=True)
class AttentionStage:
    """weights = softmax(scaled), context = weights V, for each head."""

    kind: ClassVar[str] = "attention"
    path: str
    names: AttentionNames
    attention_type: str  # "self-attention", "masked self-attention" or "cross-attention"
    queries: list[str]
    keys: list[str]
    query: Float[Tensor, "heads tokens d_head"]
    key: Float[Tensor, "heads keys d_head"]
    value: Float[Tensor, "heads keys d_head"]
    scores: Float[Tensor, "heads tokens keys"]
    scaled: Float[Tensor, "heads tokens keys"]
    allowed: Bool[Tensor, "tokens keys"]  # the mask
    weights: Float[Tensor, "heads tokens keys"]
    context: Float[Tensor, "heads tokens d_head"]
    output: Float[Tensor, "tokens d_model"]

    @property
    def is_cross(self) -> bool:
        return self.attention_type == "cross-attention"


@dataclass(frozen=True)
class FeedForwardStage:
    """Position-wise feed-forward network: Linear, activation, Linear."""

    kind: ClassVar[str] = "feed_forward"
    path: str
    tokens: list[str]
    pre_activation: Float[Tensor, "tokens d_ff"]
    hidden: Float[Tensor, "tokens d_ff"]
    output: Float[Tensor, "tokens d_model"]


@dataclass(frozen=True)
class ResidualStage:
    """total = states + update: a block's input plus its output."""

    kind: ClassVar[str] = "residual"
    path: str
    block: str  # "attention" or "feed-forward"
    tokens: list[str]
    states: Float[Tensor, "tokens d_model"]
    update: Float[Tensor, "tokens d_model"]
    total: Float[Tensor, "tokens d_model"]


@dataclass(frozen=True)
class RecurrenceStage:
    """A recurrent layer in one direction: the state after each token."""

    path: str
    tokens: list[str]
    is_backward: bool
    mask: Bool[Tensor, " tokens"]  # False: a hidden token, which leaves the state unchanged
    before: Float[Tensor, "tokens width"]  # the state before each token
    candidate: Float[Tensor, "tokens width"]
    state: Float[Tensor, "tokens width"]


@dataclass(frozen=True)
class GruStage(RecurrenceStage):
    """state = (1 - update) ⊙ candidate + update ⊙ before; `reset` scales U_n s in the candidate."""

    kind: ClassVar[str] = "gru"
    reset: Float[Tensor, "tokens width"]
    update: Float[Tensor, "tokens width"]


@dataclass(frozen=True)
class LstmStage(RecurrenceStage):
    """cell = forget ⊙ cell_before + input ⊙ candidate; state = output ⊙ tanh(cell)."""

    kind: ClassVar[str] = "lstm"
    input: Float[Tensor, "tokens width"]
    forget: Float[Tensor, "tokens width"]
    output: Float[Tensor, "tokens width"]
    cell_before: Float[Tensor, "tokens width"]
    cell: Float[Tensor, "tokens width"]


@dataclass(frozen=True)
class JoinedStage:
    """Two vectors concatenated: both directions of an encoder layer, or [context ; s]."""

    kind: ClassVar[str] = "joined"
    path: str
    tokens: list[str]
    parts: tuple[str, str]
    first: Float[Tensor, "tokens width"]
    second: Float[Tensor, "tokens width"]
    output: Float[Tensor, "tokens both"]


@dataclass(frozen=True)
class OutputProjectionStage:
    """output = tanh(W_O [context ; s])."""

    kind: ClassVar[str] = "output_projection"
    path: str
    tokens: list[str]
    joined: Float[Tensor, "tokens both"]
    output: Float[Tensor, "tokens d_model"]


Stage = (
    EmbeddingStage
    | NormStage
    | AttentionStage
    | FeedForwardStage
    | ResidualStage
    | GruStage
    | LstmStage
    | JoinedStage
    | OutputProjectionStage
)


@dataclass(frozen=True)
class HeadStage:
    """The dense head: a logit for every token of the vocabulary, and their softmax."""

    kind: ClassVar[str] = "head"
    path: str
    state: Float[Tensor, " d_model"]
    logits: Float[Tensor, " vocab"]
    probabilities: Float[Tensor, " vocab"]


@dataclass(frozen=True)
class Labels:
    """The words that the rows and columns of one call's tensors belong to."""

    tokens: list[str]  # the input
    ids: list[int]
    earlier: list[str]  # the keys of self-attention: cached tokens and the input
    source: list[str]
    source_mask: Bool[Tensor, "1 source"]  # False for hidden words


def stages_of(
    stack: Stack, name: str, tensors: dict[str, Tensor], labels: Labels
) -> Iterator[Stage]:
    """Yield the stages of a recorded encoder or decoder call, in the order of computation."""
    yield EmbeddingStage(
        path=f"{name}.embedding",
        tokens=labels.tokens,
        ids=labels.ids,
        vectors=tensors[f"{name}.embedding.tokens"][0],
        positions=tensors.get(f"{name}.embedding.positions"),
        output=tensors[f"{name}.embedding.output"][0],
    )
    if isinstance(stack, Encoder | Decoder):
        yield from transformer_stages(stack, name, tensors, labels)
    else:
        yield from recurrent_stages(stack, name, tensors, labels)


def recorded(tensors: dict[str, Tensor], path: str, *names: str) -> dict[str, Tensor]:
    """Return the tensors of a module by name, for the one sentence of the batch."""
    return {name: tensors[f"{path}.{name}"][0] for name in names}


def transformer_stages(
    stack: Encoder | Decoder, name: str, tensors: dict[str, Tensor], labels: Labels
) -> Iterator[Stage]:
    tokens, last = labels.tokens, f"{name}.embedding.output"
    self_attention = "masked self-attention" if isinstance(stack, Decoder) else "self-attention"
    attentions = {
        "self_attention": (self_attention, labels.earlier, tensors[f"{name}.mask"][0, 0]),
        "cross_attention": ("cross-attention", labels.source, labels.source_mask),
    }
    for number, layer in enumerate(stack.layers):
        path = f"{name}.layers.{number}"
        blocks: dict[str, AttentionStage | FeedForwardStage] = {}
        for block, (attention_type, keys, mask) in attentions.items():
            if hasattr(layer, block):
                blocks[block] = AttentionStage(
                    path=f"{path}.{block}",
                    names=TRANSFORMER_NAMES,
                    attention_type=attention_type,
                    queries=tokens,
                    keys=keys,
                    allowed=mask.expand(len(tokens), len(keys)).clone(),
                    **recorded(
                        tensors, f"{path}.{block}",
                        "query", "key", "value", "scores", "scaled", "weights", "context", "output",
                    ),
                )  # fmt: skip
        if layer.feed_forward is not None:
            feed_forward = f"{path}.feed_forward"
            values = recorded(tensors, feed_forward, "pre_activation", "hidden", "output")
            blocks["feed_forward"] = FeedForwardStage(path=feed_forward, tokens=tokens, **values)
        for block, stage in blocks.items():
            residual = layer.get_submodule(f"{block}_residual")
            assert isinstance(residual, Residual)
            around = f"{path}.{block}_residual"
            values = recorded(tensors, around, "states", "update", "total")
            if residual.pre_norm is not None:
                normed = tensors[f"{around}.normed"][0]
                yield NormStage(f"{around}.pre_norm", tokens, values["states"].clone(), normed)
            yield stage
            kind = "feed-forward" if block == "feed_forward" else "attention"
            yield ResidualStage(path=around, block=kind, tokens=tokens, **values)
            last = f"{around}.output"
            if residual.post_norm is not None:
                output = tensors[last][0]
                yield NormStage(f"{around}.post_norm", tokens, values["total"].clone(), output)
    if not isinstance(stack.norm, nn.Identity):
        yield NormStage(f"{name}.norm", tokens, tensors[last][0], tensors[f"{name}.output"][0])


def recurrent_stages(
    stack: Stack, name: str, tensors: dict[str, Tensor], labels: Labels
) -> Iterator[Stage]:
    tokens, mask = labels.tokens, labels.source_mask[0]
    states = tensors[f"{name}.embedding.output"][0]
    for number, layer in enumerate(stack.layers):
        path = f"{name}.layers.{number}"
        if isinstance(layer, Recurrence):  # of a decoder
            mask = torch.ones(len(tokens), dtype=torch.bool, device=states.device)
            stage = recurrence_stage(layer, path, tensors, tokens, mask)
            yield stage
            states = stage.state
            continue
        assert isinstance(layer, EncoderRecurrence)
        forward = recurrence_stage(layer.forward_rnn, f"{path}.forward_rnn", tensors, tokens, mask)
        yield forward
        states = forward.state
        if layer.backward_rnn is not None:
            backward = recurrence_stage(
                layer.backward_rnn, f"{path}.backward_rnn", tensors, tokens, mask
            )
            yield backward
            states = tensors[f"{path}.output"][0]
            yield JoinedStage(
                path=f"{path}.joined",
                tokens=tokens,
                parts=("left to right", "right to left"),
                first=forward.state.clone(),
                second=backward.state.clone(),
                output=states,
            )
    if isinstance(stack, RecurrentDecoder) and stack.attention is not None:
        yield from source_attention_stages(
            stack.attention, f"{name}.attention", tensors, labels, states
        )


def recurrence_stage(
    layer: Recurrence, path: str, tensors: dict[str, Tensor], tokens: list[str], mask: Tensor
) -> GruStage | LstmStage:
    stage = GruStage if layer.cell == "gru" else LstmStage
    names = [each.name for each in dataclasses.fields(stage) if f"{path}.{each.name}" in tensors]
    return stage(
        path=path,
        tokens=tokens,
        is_backward=layer.is_backward,
        mask=mask.clone(),
        **recorded(tensors, path, *names),
    )


def source_attention_stages(
    attention: SourceAttention,
    path: str,
    tensors: dict[str, Tensor],
    labels: Labels,
    states: Tensor,
) -> Iterator[Stage]:
    """Yield a recurrent decoder's attention, [context ; s], and its output projection."""
    values = recorded(tensors, path, "query", "value", "scores", "scaled", "weights", "context")
    context = values["context"][0]  # [T, D]; there is one head
    source = tensors[f"{path}.source"][0]
    yield AttentionStage(
        path=path,
        names=RECURRENT_NAMES if attention.key is None else MULTIPLICATIVE_NAMES,
        attention_type="cross-attention",
        queries=labels.tokens,
        keys=labels.source,
        key=source.clone() if attention.key is None else attention.key(source),
        allowed=labels.source_mask.expand(len(labels.tokens), len(labels.source)).clone(),
        output=context.clone(),
        **values,
    )
    joined, output = tensors[f"{path}.joined"][0], tensors[f"{path}.output"][0]
    yield JoinedStage(
        path=f"{path}.joined",
        tokens=labels.tokens,
        parts=("context", "s"),
        first=context.clone(),
        second=states.clone(),
        output=joined,
    )
    if attention.output is not None:
        yield OutputProjectionStage(f"{path}.output", labels.tokens, joined.clone(), output)
