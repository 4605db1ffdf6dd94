"""Attention over a whole sentence, with the tokens or the words of its rows and columns.

Where a tokenizer has split words, their subwords can be merged: the weights of a key's subwords
are added, the rows of a query's subwords are averaged, so that each row still sums to 1. Rows of
cross-attention are merged by the words produced, rows of self-attention by the words fed in, as
its columns are.
H heads, T target tokens, S source tokens, W words.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from minitransformer.data.tokenizer import Word
from minitransformer.explain.interventions import changes_without
from minitransformer.explain.stages import AttentionStage, Stage
from minitransformer.explain.walkthrough import Walkthrough
from minitransformer.search import eval_mode


@dataclass(frozen=True)
class AttentionView:
    """The attention of one layer over a whole sentence; validated when it is built."""

    name: str  # such as decoder.layers.0.cross_attention
    kind: str  # "self-attention", "masked self-attention" or "cross-attention"
    queries: list[str]  # in the decoder, the tokens fed in
    produced: list[str]  # the token that follows from each row; empty in the encoder
    keys: list[str]
    weights: Float[Tensor, "heads queries keys"]
    allowed: Bool[Tensor, "queries keys"]
    is_by_words: bool = False  # subwords were merged

    def __post_init__(self) -> None:
        labelled, shape = (len(self.queries), len(self.keys)), tuple(self.weights.shape)
        if shape[1:] != labelled or tuple(self.allowed.shape) != labelled:
            raise ValueError(f"{self.name}: {labelled} words for {shape} weights")
        if len(self.produced) != (0 if self.is_encoder else labelled[0]):
            raise ValueError(f"{self.name}: {len(self.produced)} tokens produced by {labelled[0]}")
        if self.kind != "cross-attention" and self.queries != self.keys:
            raise ValueError(f"{self.name}: rows {self.queries}, columns {self.keys}")
        if self.kind == "masked self-attention" and self.allowed.triu(1).any():
            raise ValueError(f"{self.name}: a token may attend to later ones")
        if self.weights[:, ~self.allowed].any():
            raise ValueError(f"{self.name}: weights at masked positions")
        if not ((self.weights.sum(-1) - 1).abs() <= 1e-3).all():
            raise ValueError(f"{self.name}: a row does not sum to 1")

    @property
    def is_encoder(self) -> bool:
        return self.name.startswith("encoder.")

    @property
    def layer(self) -> int:
        """Return the number of the layer, from 0; the one attention of a recurrent model has 0."""
        numbers = [int(part) for part in self.name.split(".") if part.isdigit()]
        return numbers[0] if numbers else 0

    @property
    def where(self) -> str:
        """Return encoder, decoder or cross: which of the three attentions it is."""
        is_cross = self.kind == "cross-attention"
        return "cross" if is_cross else "encoder" if self.is_encoder else "decoder"

    @property
    def title(self) -> str:
        """Return kind, side and layer in words; a recurrent model has only one attention."""
        if ".layers." not in self.name:
            return "attention, decoder"
        return f"{self.kind}, {'encoder' if self.is_encoder else 'decoder'} layer {self.layer}"

    @property
    def entropy(self) -> Float[Tensor, " heads"]:
        """Return the entropy of each head in bits, -Σ w log₂ w, as the mean of its rows."""
        bits: Tensor = torch.special.entr(self.weights).sum(-1).mean(-1) / math.log(2)
        return bits


def pass_views(stages: Iterable[Stage], produced: list[str]) -> Iterator[AttentionView]:
    """Yield the attentions of one pass over a whole sentence."""
    for stage in stages:
        if isinstance(stage, AttentionStage):
            yield AttentionView(
                stage.path,
                stage.attention_type,
                stage.queries,
                produced,
                stage.keys,
                stage.weights.cpu(),
                stage.allowed.cpu(),
            )


def attention_views(walk: Walkthrough) -> Iterator[AttentionView]:
    """Yield every attention of a walk-through; the decoder's rows come from its steps."""
    yield from pass_views(walk.encoder, [])
    fed, produced = [step.fed for step in walk.steps], [step.produced for step in walk.steps]
    for first in walk.steps[0].stages:
        if not isinstance(first, AttentionStage):
            continue
        rows = [
            stage
            for step in walk.steps
            for stage in step.stages
            if isinstance(stage, AttentionStage) and stage.path == first.path
        ]
        keys = rows[-1].keys
        weights = torch.zeros(len(first.weights), len(rows), len(keys))
        allowed = torch.zeros(len(rows), len(keys), dtype=torch.bool)
        for number, stage in enumerate(rows):
            seen = len(stage.keys)  # in masked self-attention, one more at every step
            weights[:, number, :seen] = stage.weights[:, 0].cpu()
            allowed[number, :seen] = stage.allowed[0].cpu()
        yield AttentionView(first.path, first.attention_type, fed, produced, keys, weights, allowed)


@dataclass(frozen=True)
class SentenceWords:
    """The words of a source and its translation, with the indices of their tokens."""

    source: list[Word]
    fed: list[Word]
    produced: list[Word]


def words_of_walk(walk: Walkthrough) -> SentenceWords:
    target, steps = walk.tokenizer.target, walk.steps
    return SentenceWords(
        walk.tokenizer.source.words_of(walk.source_ids, walk.source),
        target.words_of([step.fed_id for step in steps], [step.fed for step in steps]),
        target.words_of([step.produced_id for step in steps], [step.produced for step in steps]),
    )


def views_by_words(walk: Walkthrough, *, rows_by_fed: bool = False) -> list[AttentionView]:
    """Return every attention of a walk-through with its subwords merged."""
    words = words_of_walk(walk)
    return [merge_subwords(view, words, rows_by_fed=rows_by_fed) for view in attention_views(walk)]


def merge_subwords(
    view: AttentionView, words: SentenceWords, *, rows_by_fed: bool = False
) -> AttentionView:
    """Merge a view's subwords; `rows_by_fed` merges rows of cross-attention by words fed in, too.

    The row of a produced word has the word before it as its query: that one was fed in when the
    word began. The row of a word fed in has produced the word after it, in its last step.
    """
    if view.is_encoder:
        rows = keys = words.source
    elif view.where == "decoder":
        rows = keys = words.fed
    else:
        rows, keys = words.fed if rows_by_fed else words.produced, words.source
    row_members = membership(rows, len(view.queries))
    key_members = membership(keys, len(view.keys))
    queries = words.source if view.is_encoder else words.fed
    return AttentionView(
        name=view.name,
        kind=view.kind,
        queries=[word_at(word.indices[0], queries) for word in rows],
        produced=[word_at(word.indices[-1], words.produced) for word in rows if view.produced],
        keys=[word.text for word in keys],
        weights=merge_weights(view.weights, row_members, key_members),
        allowed=row_members @ view.allowed.float() @ key_members.T > 0,
        is_by_words=True,
    )


def merge_weights(
    weights: Float[Tensor, "heads queries keys"],
    rows: Float[Tensor, "row_words queries"],
    columns: Float[Tensor, "column_words keys"],
) -> Float[Tensor, "heads row_words column_words"]:
    """Average the rows of each word's subwords and add up its columns."""
    merged: Tensor = rows / rows.sum(-1, keepdim=True) @ weights @ columns.T
    return merged


def membership(words: list[Word], num_tokens: int) -> Float[Tensor, "words tokens"]:
    """Return a matrix with 1 where a token is a subword of a word."""
    matrix = torch.zeros(len(words), num_tokens)
    for number, word in enumerate(words):
        matrix[number, word.indices] = 1
    return matrix


def word_at(index: int, words: list[Word]) -> str:
    return next(word.text for word in words if index in word.indices)


@dataclass(frozen=True)
class ProducedWord:
    """A word of a translation; its lists have an entry for each source word."""

    text: str
    fed: str  # the word before it
    steps: list[int]  # that produced its subwords
    probability: float  # the product of its subwords'
    attention: list[float] | None  # in the last layer, mean of its heads; None without attention
    why: list[float | None]  # the change of its log-probability without a source word


def produced_words(walk: Walkthrough) -> list[ProducedWord]:
    """Return the words of a translation, with attention and occlusion of whole source words."""
    words, steps = words_of_walk(walk), walk.steps
    views = [each for each in views_by_words(walk) if each.where == "cross"]
    attention = views[-1].weights.mean(dim=0).tolist() if views else None  # [W, W]
    with eval_mode(walk.model):
        changes = changes_without(
            walk.model,
            walk.source_ids,
            [step.fed_id for step in steps],
            [step.produced_id for step in steps],
            [word.indices for word in words.source],
        )  # [T, W]
    return [
        ProducedWord(
            text=word.text,
            fed=word_at(word.indices[0], words.fed),
            steps=[steps[index].number for index in word.indices],
            probability=math.prod(steps[index].probability for index in word.indices),
            attention=None if attention is None else attention[number],
            why=[
                None if None in column else sum(column)
                for column in zip(*(changes[index] for index in word.indices), strict=True)
            ],
        )
        for number, word in enumerate(words.produced)
    ]
