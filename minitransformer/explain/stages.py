"""The stages of one pass through the model, each with the tensors that it really computed.

A leading batch dimension of 1 is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor, nn

from minitransformer.model.layers import Residual
from minitransformer.model.transformer import Decoder, Encoder


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


@dataclass(frozen=True)
class AttentionStage:
    """Queries look at keys and take their values, head by head."""

    path: str
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
    """Each position by itself: widened, bent, narrowed."""

    path: str
    tokens: list[str]
    widened: Float[Tensor, "tokens d_ff"]
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
class HeadStage:
    """The dense head: a score for every word of the vocabulary, and the softmax of them."""

    path: str
    state: Float[Tensor, " d_model"]
    logits: Float[Tensor, " vocab"]
    probabilities: Float[Tensor, " vocab"]


Stage = EmbeddingStage | NormStage | AttentionStage | FeedForwardStage | ResidualStage | HeadStage


@dataclass(frozen=True)
class Labels:
    """The words that stand beside the tensors of one call."""

    tokens: list[str]  # those that were fed in
    ids: list[int]
    earlier: list[str]  # those that self-attention looks at
    source: list[str]
    source_mask: Bool[Tensor, "1 source"]  # False for words that were taken out


def stages_of(
    side: Encoder | Decoder, name: str, tensors: dict[str, Tensor], labels: Labels
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
                widened=tensors[f"{path}.feed_forward.widened"][0],
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
        look=look,
        queries=queries,
        keys=keys,
        allowed=allowed.expand(values["scores"].shape[1:]).clone(),
        **values,
    )
