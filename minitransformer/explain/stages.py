"""The stages of one pass through a model, each with the tensors that it really computed."""

import dataclasses
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

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
    """Tokens become vectors, and their places are added."""

    path: str
    tokens: list[str]
    ids: list[int]
    vectors: Float[Tensor, "tokens d_model"]
    positions: Float[Tensor, "tokens d_model"] | None
    output: Float[Tensor, "tokens d_model"]


@dataclass(frozen=True)
class NormStage:
    """Each vector brought to one mean and spread."""

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


BY_QUERIES = AttentionNames("Q", "K", "V", "score", "weight")
BY_STATES = AttentionNames("s", "h", "h", "e", "α")  # of a recurrent model
BY_TURNED_STATES = BY_STATES._replace(key="W h")  # where a matrix stands between: sᵀ W h


@dataclass(frozen=True)
class AttentionStage:
    """Queries look at keys and take their values, head by head."""

    path: str
    names: AttentionNames
    look: str  # "self-attention", "masked self-attention" or "cross-attention"
    queries: list[str]
    keys: list[str]
    query: Float[Tensor, "heads tokens d_head"]
    key: Float[Tensor, "heads seen d_head"]
    value: Float[Tensor, "heads seen d_head"]
    scores: Float[Tensor, "heads tokens seen"]
    scaled: Float[Tensor, "heads tokens seen"]
    allowed: Bool[Tensor, "tokens seen"]
    weights: Float[Tensor, "heads tokens seen"]
    context: Float[Tensor, "heads tokens d_head"]
    output: Float[Tensor, "tokens d_model"]


@dataclass(frozen=True)
class FeedForwardStage:
    """Position-wise feed-forward network: Linear, activation, Linear."""

    path: str
    tokens: list[str]
    pre_activation: Float[Tensor, "tokens d_ff"]
    hidden: Float[Tensor, "tokens d_ff"]
    output: Float[Tensor, "tokens d_model"]


@dataclass(frozen=True)
class ResidualStage:
    """What a block found is added to the vector that entered it."""

    path: str
    block: str  # "attention" or "feed-forward"
    tokens: list[str]
    states: Float[Tensor, "tokens d_model"]
    update: Float[Tensor, "tokens d_model"]
    total: Float[Tensor, "tokens d_model"]


@dataclass(frozen=True)
class RecurrenceStage:
    """A layer reads word by word; each changes the state that the words before it have left."""

    path: str
    tokens: list[str]
    is_backward: bool
    is_read: Bool[Tensor, " tokens"]  # False for words that were taken out: the state stays
    before: Float[Tensor, "tokens width"]  # the state that each word meets
    candidate: Float[Tensor, "tokens width"]
    state: Float[Tensor, "tokens width"]


@dataclass(frozen=True)
class GruStage(RecurrenceStage):
    """(1 - update) ⊙ candidate + update ⊙ before; the candidate sees as much as reset lets it."""

    reset: Float[Tensor, "tokens width"]
    update: Float[Tensor, "tokens width"]


@dataclass(frozen=True)
class LstmStage(RecurrenceStage):
    """The cell is forget ⊙ cell before + input ⊙ candidate; the state is output ⊙ tanh(cell)."""

    input: Float[Tensor, "tokens width"]
    forget: Float[Tensor, "tokens width"]
    output: Float[Tensor, "tokens width"]
    cell_before: Float[Tensor, "tokens width"]
    cell: Float[Tensor, "tokens width"]


@dataclass(frozen=True)
class JoinedStage:
    """Two vectors side by side: both directions of an encoder, or [context ; s]."""

    path: str
    tokens: list[str]
    parts: tuple[str, str]
    first: Float[Tensor, "tokens width"]
    second: Float[Tensor, "tokens width"]
    output: Float[Tensor, "tokens both"]


@dataclass(frozen=True)
class NarrowedStage:
    """What was joined, as wide as a state again: tanh(W_O [context ; s])."""

    path: str
    tokens: list[str]
    joined: Float[Tensor, "tokens both"]
    output: Float[Tensor, "tokens d_model"]


@dataclass(frozen=True)
class HeadStage:
    """The dense head: a score for every word of the vocabulary, and the softmax of them."""

    path: str
    state: Float[Tensor, " d_model"]
    logits: Float[Tensor, " vocab"]
    probabilities: Float[Tensor, " vocab"]


Stage = (
    EmbeddingStage
    | NormStage
    | AttentionStage
    | FeedForwardStage
    | ResidualStage
    | GruStage
    | LstmStage
    | JoinedStage
    | NarrowedStage
    | HeadStage
)


@dataclass(frozen=True)
class Labels:
    """The words that stand beside the tensors of one call."""

    tokens: list[str]  # those that were fed in
    ids: list[int]
    earlier: list[str]  # those that self-attention looks at
    source: list[str]
    source_mask: Bool[Tensor, "1 source"]  # False for words that were taken out


def stages_of(
    side: Stack, name: str, tensors: dict[str, Tensor], labels: Labels
) -> Iterator[Stage]:
    """The stages of an encoder or a decoder, in the order in which they were computed."""
    yield EmbeddingStage(
        path=f"{name}.embedding",
        tokens=labels.tokens,
        ids=labels.ids,
        vectors=tensors[f"{name}.embedding.tokens"][0],
        positions=tensors.get(f"{name}.embedding.positions"),
        output=tensors[f"{name}.embedding.output"][0],
    )
    if isinstance(side, Encoder | Decoder):
        yield from transformer_stages(side, name, tensors, labels)
    else:
        yield from recurrent_stages(side, name, tensors, labels)


def transformer_stages(
    side: Encoder | Decoder, name: str, tensors: dict[str, Tensor], labels: Labels
) -> Iterator[Stage]:
    looks = {
        "self_attention": (
            "masked self-attention" if isinstance(side, Decoder) else "self-attention",
            labels.earlier,
            tensors[f"{name}.mask"][0, 0],
        ),
        "cross_attention": ("cross-attention", labels.source, labels.source_mask),
    }
    last = f"{name}.embedding.output"
    for number, layer in enumerate(side.layers):
        path = f"{name}.layers.{number}"
        for block, (look, keys, allowed) in looks.items():
            if hasattr(layer, block):
                stage: AttentionStage | FeedForwardStage = attention_stage(
                    f"{path}.{block}", look, tensors, labels.tokens, keys, allowed
                )
                yield from around(layer, path, block, stage, tensors, labels.tokens)
                last = f"{path}.{block}_residual.output"
        if layer.feed_forward is not None:
            stage = FeedForwardStage(
                path=f"{path}.feed_forward",
                tokens=labels.tokens,
                pre_activation=tensors[f"{path}.feed_forward.pre_activation"][0],
                hidden=tensors[f"{path}.feed_forward.hidden"][0],
                output=tensors[f"{path}.feed_forward.output"][0],
            )
            yield from around(layer, path, "feed_forward", stage, tensors, labels.tokens)
            last = f"{path}.feed_forward_residual.output"
    if not isinstance(side.norm, nn.Identity):
        output = tensors[f"{name}.output"][0]
        yield NormStage(f"{name}.norm", labels.tokens, tensors[last][0], output)


def around(
    layer: nn.Module,
    path: str,
    block: str,
    stage: AttentionStage | FeedForwardStage,
    tensors: dict[str, Tensor],
    tokens: list[str],
) -> Iterator[Stage]:
    """A block with the norms and the sum that its residual puts around it."""
    name = f"{path}.{block}_residual"
    residual = layer.get_submodule(f"{block}_residual")
    assert isinstance(residual, Residual)
    states, total = tensors[f"{name}.states"][0], tensors[f"{name}.total"][0]
    if residual.pre_norm is not None:
        normed = tensors[f"{name}.normed"][0]
        yield NormStage(f"{name}.pre_norm", tokens, states.clone(), normed)
    yield stage
    yield ResidualStage(
        path=name,
        block="feed-forward" if block == "feed_forward" else "attention",
        tokens=tokens,
        states=states,
        update=tensors[f"{name}.update"][0],
        total=total,
    )
    if residual.post_norm is not None:
        output = tensors[f"{name}.output"][0]
        yield NormStage(f"{name}.post_norm", tokens, total.clone(), output)


def attention_stage(
    path: str,
    look: str,
    tensors: dict[str, Tensor],
    queries: list[str],
    keys: list[str],
    allowed: Tensor,
) -> AttentionStage:
    names = ("query", "key", "value", "scores", "scaled", "weights", "context", "output")
    values = {name: tensors[f"{path}.{name}"][0] for name in names}
    return AttentionStage(
        path=path,
        names=BY_QUERIES,
        look=look,
        queries=queries,
        keys=keys,
        allowed=allowed.expand(values["scores"].shape[1:]).clone(),
        **values,
    )


def recurrent_stages(
    side: Stack, name: str, tensors: dict[str, Tensor], labels: Labels
) -> Iterator[Stage]:
    last = tensors[f"{name}.embedding.output"][0]
    for number, layer in enumerate(side.layers):
        path = f"{name}.layers.{number}"
        if isinstance(layer, Recurrence):
            everything = torch.ones(len(labels.tokens), dtype=torch.bool, device=last.device)
            stage = recurrence_stage(layer, path, tensors, labels.tokens, everything)
            last = stage.state
            yield stage
        else:
            assert isinstance(layer, EncoderRecurrence)
            last = yield from encoder_layer(layer, path, tensors, labels)
    if isinstance(side, RecurrentDecoder) and side.attention is not None:
        yield from joined_attention(side.attention, f"{name}.attention", tensors, labels, last)


def encoder_layer(
    layer: EncoderRecurrence, path: str, tensors: dict[str, Tensor], labels: Labels
) -> Generator[Stage, None, Tensor]:
    """A layer's way from left to right, and if it has one, the way back; returns its states."""
    tokens, is_read = labels.tokens, labels.source_mask[0]
    right = recurrence_stage(layer.forward_rnn, f"{path}.forward_rnn", tensors, tokens, is_read)
    yield right
    if layer.backward_rnn is None:
        return right.state
    left = recurrence_stage(layer.backward_rnn, f"{path}.backward_rnn", tensors, tokens, is_read)
    yield left
    both = tensors[f"{path}.output"][0]
    parts = ("left to right", "right to left")
    yield JoinedStage(
        f"{path}.joined", tokens, parts, right.state.clone(), left.state.clone(), both
    )
    return both


def recurrence_stage(
    layer: Recurrence, path: str, tensors: dict[str, Tensor], tokens: list[str], is_read: Tensor
) -> GruStage | LstmStage:
    kinds: dict[str, type[GruStage] | type[LstmStage]] = {"gru": GruStage, "lstm": LstmStage}
    stage = kinds[layer.cell]
    values = {
        each.name: tensors[f"{path}.{each.name}"][0]
        for each in dataclasses.fields(stage)
        if f"{path}.{each.name}" in tensors
    }
    return stage(
        path=path, tokens=tokens, is_backward=layer.is_backward, is_read=is_read.clone(), **values
    )


def joined_attention(
    attention: SourceAttention,
    path: str,
    tensors: dict[str, Tensor],
    labels: Labels,
    states: Tensor,
) -> Iterator[Stage]:
    """The look at the source, what it finds beside the state, and that made narrow again."""
    names = ("query", "value", "scores", "scaled", "weights", "context")
    values = {name: tensors[f"{path}.{name}"][0] for name in names}
    context = values["context"][0]  # [T, D]; there is one head
    states_read = tensors[f"{path}.source"][0]
    yield AttentionStage(
        path=path,
        names=BY_STATES if attention.key is None else BY_TURNED_STATES,
        look="cross-attention",
        queries=labels.tokens,
        keys=labels.source,
        key=states_read.clone() if attention.key is None else attention.key(states_read),
        allowed=labels.source_mask.expand(values["scores"].shape[1:]).clone(),
        output=context.clone(),
        **values,
    )
    joined, output = tensors[f"{path}.joined"][0], tensors[f"{path}.output"][0]
    parts = ("context", "s")
    yield JoinedStage(
        f"{path}.joined", labels.tokens, parts, context.clone(), states.clone(), joined
    )
    if attention.output is not None:
        yield NarrowedStage(f"{path}.output", labels.tokens, joined.clone(), output)
