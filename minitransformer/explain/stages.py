"""The stages of one pass through a model, each with the tensors that it really computed.

A leading batch dimension of 1 is left out.
"""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor


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
class RecurrenceStage:
    """A layer reads word by word; each changes the state that the words before it have left."""

    path: str
    tokens: list[str]
    is_leftward: bool
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
