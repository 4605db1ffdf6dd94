"""The most probable translation, token by token: greedy, ids in and ids out.

B batch, R runners-up, V vocabulary.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minitransformer.data.tokens import BOS_ID, EOS_ID, PAD_ID
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.fast import argmax

WIDTH_IN_FULL = 8  # the widest beam that still searches whole batches


class Search(NamedTuple):
    """How a translation is looked for: token by token, or with a beam of several at a time."""

    beam: int = 1
    length_penalty: float = 1.0

    def __str__(self) -> str:
        beam = f"beam of {self.beam}, length penalty {self.length_penalty:g}"
        return "greedy" if self.beam == 1 else beam

    def sentences_at_a_time(self, batch_size: int) -> int:
        """Fewer than a batch for a wide beam, each of whose translations takes a row."""
        return max(1, batch_size * WIDTH_IN_FULL // max(self.beam, WIDTH_IN_FULL))


GREEDY = Search()


class Choice(NamedTuple):
    """One produced token: its probability, and the tokens that came nearest to it."""

    id: int
    probability: float
    runners_up: list[tuple[int, float]]


@contextlib.contextmanager
def evaluating(model: EncoderDecoder) -> Iterator[None]:
    """No dropout for a while; afterwards the model's mode is what it was."""
    if not model.training:  # to tell all modules so again takes as long as to produce a token
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


def greedy(
    model: EncoderDecoder,
    source: Int[Tensor, "batch source"],
    *,
    start_id: int,
    limits: list[int],
    runners_up: int = 0,
    probabilities: bool = True,
) -> list[list[Choice]]:
    """Take the most probable token until <EOS> or a row's limit; finished rows leave the batch.

    Without probabilities, which cost a softmax over the vocabulary, they are not-a-number.
    """
    # Dropout in decoding is a classic bug, so it is not left to the caller.
    with evaluating(model), torch.inference_mode():
        return greedy_loop(model, source, start_id, limits, runners_up, probabilities)


def greedy_loop(
    model: EncoderDecoder,
    source: Tensor,
    start_id: int,
    limits: list[int],
    runners_up: int,
    probabilities: bool,
) -> list[list[Choice]]:
    memory = model.encode(source)
    cache = model.new_cache(memory)
    produced: list[list[Choice]] = [[] for _ in limits]
    active = list(range(len(limits)))  # rows of `produced` that the batch still holds
    last = torch.full((len(limits), 1), start_id, device=source.device)  # [B, 1]
    while active:
        scores = model.decode(last, memory, cache)[:, -1]  # [B, V]
        if probabilities:
            scores = torch.softmax(scores, dim=-1, out=scores)
        best, ids = most_probable(scores, 1 + runners_up)  # [B, 1 + R]
        if not probabilities:
            best.fill_(torch.nan)
        for row, values, choices in zip(active, best.tolist(), ids.tolist(), strict=True):
            runners = list(zip(choices[1:], values[1:], strict=True))
            produced[row].append(Choice(choices[0], values[0], runners))
        keep = [
            place
            for place, row in enumerate(active)
            if produced[row][-1].id != EOS_ID and len(produced[row]) < limits[row]
        ]
        last = ids[:, :1]
        if len(keep) < len(active):
            rows = torch.tensor(keep, dtype=torch.long, device=source.device)
            memory, last = memory.select(rows), last[rows]
            cache.select(rows)
            active = [active[place] for place in keep]
    return produced


def most_probable(
    scores: Float[Tensor, "batch vocab"], count: int
) -> tuple[Float[Tensor, "batch best"], Int[Tensor, "batch best"]]:
    """The best of logits or probabilities that may be produced, best first, and their ids.

    Writes over the two that may not.
    """
    scores[:, PAD_ID] = scores[:, BOS_ID] = -torch.inf  # never labels, so never answers
    if count == 1:  # argmax takes the first of equal scores, topk any of them
        ids = argmax(scores)
        return scores.gather(1, ids), ids
    best = scores.topk(min(count, scores.shape[1] - 2))
    return best.values, best.indices
