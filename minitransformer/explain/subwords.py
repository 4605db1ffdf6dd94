"""Whole words where a tokenizer has cut them into pieces: where they look, and why they came.

A column is a word that is looked at: the weights of its pieces add up. A row is the mean of its
pieces' rows, so that it still sums to 1. Rows of a cross-attention are grouped by the words that
were produced, those of a self-attention by the words that were fed in, as its columns are.
H heads, T tokens, S source, W words.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from minitransformer.data.tokenizer import Word
from minitransformer.explain.attention_maps import AttentionView, attention_views
from minitransformer.explain.occlusion import changes_without
from minitransformer.explain.walkthrough import Walkthrough
from minitransformer.search import eval_mode


@dataclass(frozen=True)
class SentenceWords:
    """The words of a translation, by the places of their tokens on each side."""

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
    """Every attention of a walk-through between words."""
    words = words_of_walk(walk)
    return [merged(view, words, rows_by_fed=rows_by_fed) for view in attention_views(walk)]


def merged(
    view: AttentionView, words: SentenceWords, *, rows_by_fed: bool = False
) -> AttentionView:
    """A view between words; `rows_by_fed` groups a cross-attention by what was fed in, too.

    A row that is a produced word was fed the word before it when the word began; a row that is a
    word fed in has produced the word after it when the word was whole.
    """
    if view.is_encoder:
        rows, keys = words.source, words.source
    elif view.where == "decoder":
        rows, keys = words.fed, words.fed
    else:
        rows, keys = words.fed if rows_by_fed else words.produced, words.source
    row_pieces = pieces_of(rows, len(view.queries))  # [W, T]
    key_pieces = pieces_of(keys, len(view.keys))  # [W, S]
    may_look = row_pieces @ view.allowed.float() @ key_pieces.T > 0
    return AttentionView(
        name=view.name,
        look=view.look,
        queries=[word_at(word.indices[0], words.source if view.is_encoder else words.fed)
                 for word in rows],
        produced=[word_at(word.indices[-1], words.produced) for word in rows if view.produced],
        keys=[word.text for word in keys],
        weights=means(row_pieces) @ view.weights @ key_pieces.T,
        allowed=may_look,
        is_by_words=True,
    )  # fmt: skip


def pieces_of(words: list[Word], length: int) -> Float[Tensor, "words tokens"]:
    """1 where a token is a piece of a word."""
    pieces = torch.zeros(len(words), length)
    for number, word in enumerate(words):
        pieces[number, word.indices] = 1
    return pieces


def means(pieces: Float[Tensor, "words tokens"]) -> Float[Tensor, "words tokens"]:
    """What a word's tokens are multiplied with, so that their mean comes out."""
    return pieces / pieces.sum(-1, keepdim=True)


def word_at(place: int, words: list[Word]) -> str:
    return next(word.text for word in words if place in word.indices)


@dataclass(frozen=True)
class ProducedWord:
    """A word of a translation; lists have an entry for each source word."""

    text: str
    fed: str  # the word before it
    steps: list[int]  # that produced its pieces
    probability: float  # of all its pieces, one after the other
    attention: list[float] | None  # of the last layer, mean of its heads; None without attention
    why: list[float | None]  # the change of its log-probability without a source word


def produced_words(walk: Walkthrough) -> list[ProducedWord]:
    """The words of a translation with their reasons: source words are taken out whole."""
    words, steps = words_of_walk(walk), walk.steps
    views = [each for each in views_by_words(walk) if each.where == "cross"]
    attention = views[-1].weights.mean(dim=0).tolist() if views else None  # [W, W]
    with eval_mode(walk.model):
        by_piece = changes_without(
            walk.model,
            walk.source_ids,
            [step.fed_id for step in steps],
            [step.produced_id for step in steps],
            [word.indices for word in words.source],
        )
    return [
        ProducedWord(
            text=word.text,
            fed=word_at(word.indices[0], words.fed),
            steps=[steps[place].number for place in word.indices],
            probability=math.prod(steps[place].probability for place in word.indices),
            attention=None if attention is None else attention[number],
            why=[
                summed(changes)
                for changes in zip(*(by_piece[n] for n in word.indices), strict=True)
            ],
        )
        for number, word in enumerate(words.produced)
    ]  # fmt: skip


def summed(changes: tuple[float | None, ...]) -> float | None:
    """The change of a word, whose log-probability is the sum of its pieces'."""
    known = [change for change in changes if change is not None]
    return sum(known) if len(known) == len(changes) else None
