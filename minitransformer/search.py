"""Greedy and beam search, ids in and ids out.

B batch, R runners-up, V vocabulary. In a beam: N sentences, R rows (their unfinished
translations), W width, K continuations.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.fast import argmax

WIDTH_IN_FULL = 8  # the widest beam that still searches whole batches


class SearchConfig(NamedTuple):
    """How a translation is looked for: token by token, or with a beam of several at a time."""

    beam: int = 1
    length_penalty: float = 1.0

    def __str__(self) -> str:
        beam = f"beam of {self.beam}, length penalty {self.length_penalty:g}"
        return "greedy" if self.beam == 1 else beam

    def sentences_at_a_time(self, batch_size: int) -> int:
        """Fewer than a batch for a wide beam, each of whose translations takes a row."""
        return max(1, batch_size * WIDTH_IN_FULL // max(self.beam, WIDTH_IN_FULL))


GREEDY = SearchConfig()


class TokenScore(NamedTuple):
    """One produced token: its probability, and the tokens that came nearest to it."""

    id: int
    probability: float
    alternatives: list[tuple[int, float]]


@contextlib.contextmanager
def eval_mode(model: EncoderDecoder) -> Iterator[None]:
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
    max_lengths: list[int],
    alternatives: int = 0,
    probabilities: bool = True,
) -> list[list[TokenScore]]:
    """Take the most probable token until <EOS> or a row's limit; finished rows leave the batch.

    Without probabilities, which cost a softmax over the vocabulary, they are not-a-number.
    """
    # Dropout in decoding is a classic bug, so it is not left to the caller.
    with eval_mode(model), torch.inference_mode():
        return greedy_loop(model, source, start_id, max_lengths, alternatives, probabilities)


def greedy_loop(
    model: EncoderDecoder,
    source: Tensor,
    start_id: int,
    max_lengths: list[int],
    alternatives: int,
    probabilities: bool,
) -> list[list[TokenScore]]:
    memory = model.encode(source)
    cache = model.new_cache(memory)
    produced: list[list[TokenScore]] = [[] for _ in max_lengths]
    active = list(range(len(max_lengths)))  # rows of `produced` that the batch still holds
    last = torch.full((len(max_lengths), 1), start_id, device=source.device)  # [B, 1]
    while active:
        scores = model.decode(last, memory, cache)[:, -1]  # [B, V]
        if probabilities:
            scores = torch.softmax(scores, dim=-1, out=scores)
        best, ids = top_tokens(scores, 1 + alternatives)  # [B, 1 + R]
        if not probabilities:
            best.fill_(torch.nan)
        for row, values, choices in zip(active, best.tolist(), ids.tolist(), strict=True):
            runners = list(zip(choices[1:], values[1:], strict=True))
            produced[row].append(TokenScore(choices[0], values[0], runners))
        keep = [
            place
            for place, row in enumerate(active)
            if produced[row][-1].id != EOS_ID and len(produced[row]) < max_lengths[row]
        ]
        last = ids[:, :1]
        if len(keep) < len(active):
            rows = torch.tensor(keep, dtype=torch.long, device=source.device)
            memory, last = memory.select(rows), last[rows]
            cache.select(rows)
            active = [active[place] for place in keep]
    return produced


def top_tokens(
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


class Hypothesis(NamedTuple):
    """A translation as far as it goes, with the log probability of each token and of all."""

    ids: tuple[int, ...] = ()
    log_probabilities: tuple[float, ...] = ()
    total: float = 0.0

    @property
    def token_scores(self) -> list[TokenScore]:
        """Each token as greedy decoding would tell of it."""
        probabilities = map(math.exp, self.log_probabilities)
        return [TokenScore(id, each, []) for id, each in zip(self.ids, probabilities, strict=True)]

    def score(self, length_penalty: float) -> float:
        """What translations of different lengths are compared by."""
        return float(self.total / len(self.ids) ** length_penalty)


@dataclass
class Beam:
    """The translations of one sentence."""

    row: int  # of the source
    limit: int
    unfinished: list[Hypothesis] = field(default_factory=lambda: [Hypothesis()])
    finished: list[Hypothesis] = field(default_factory=list)


def beam_search(
    model: EncoderDecoder,
    source: Int[Tensor, "batch source"],
    *,
    start_id: int,
    max_lengths: list[int],
    width: int,
    length_penalty: float,
) -> list[list[Hypothesis]]:
    """Up to `width` translations of each row, best first; at a row's limit they are cut.

    One that was cut comes after all that ended: else a loop of likely words had the best mean.
    """
    with eval_mode(model), torch.inference_mode():
        beams = beam_loop(model, source, start_id, max_lengths, width)
    return [
        sorted(
            beam.finished,
            key=lambda each: (each.ids[-1] == EOS_ID, each.score(length_penalty)),
            reverse=True,
        )
        for beam in beams
    ]


def produced_ids(
    model: EncoderDecoder,
    source: Int[Tensor, "batch source"],
    start_id: int,
    max_lengths: list[int],
    search: SearchConfig,
) -> list[list[int]]:
    """The best translation of each row, however it is looked for."""
    if search.beam == 1:
        produced = greedy(
            model, source, start_id=start_id, max_lengths=max_lengths, probabilities=False
        )
        return [[choice.id for choice in choices] for choices in produced]
    found = beam_search(
        model, source, start_id=start_id, max_lengths=max_lengths,
        width=search.beam, length_penalty=search.length_penalty,
    )  # fmt: skip
    return [list(hypotheses[0].ids) for hypotheses in found]


def beam_loop(
    model: EncoderDecoder, source: Tensor, start_id: int, max_lengths: list[int], width: int
) -> list[Beam]:
    memory = model.encode(source)
    cache = model.new_cache(memory)
    beams = [Beam(row, limit) for row, limit in enumerate(max_lengths)]
    active, owners = beams, list(range(len(beams)))
    last = torch.full((len(max_lengths), 1), start_id, device=source.device)  # [R, 1]
    while active:
        logits = model.decode(last, memory, cache)[:, -1]  # [R, V]
        log_sums = logits.logsumexp(dim=1, keepdim=True)  # before some are written over
        values, ids = top_tokens(logits, width)  # [R, K]
        parents = advance(active, (values - log_sums).cpu(), ids.cpu(), width)
        active = [beam for beam in active if beam.unfinished]
        rows = torch.tensor(parents, dtype=torch.long, device=source.device)
        owners_before, owners = owners, [beam.row for beam in active for _ in beam.unfinished]
        if owners == owners_before:
            cache.reorder(rows)
        else:
            cache.select(rows)
            memory = memory.select(rows)
        chosen = [each.ids[-1:] for beam in active for each in beam.unfinished]
        last = torch.tensor(chosen, dtype=torch.long, device=source.device)
    return beams


def advance(
    beams: list[Beam],
    log_probabilities: Float[Tensor, "rows continuations"],
    ids: Int[Tensor, "rows continuations"],
    width: int,
) -> list[int]:
    """Replace each beam's translations by their best continuations; returns the rows continued."""
    most, (_, num_continuations) = max(len(beam.unfinished) for beam in beams), ids.shape
    totals = [each.total for beam in beams for each in beam.unfinished]
    grid = torch.full((len(beams), most, num_continuations), -torch.inf, dtype=torch.double)
    counts = torch.tensor([len(beam.unfinished) for beam in beams])
    is_row = torch.arange(most) < counts[:, None]  # [N, most]
    grid[is_row] = log_probabilities + torch.tensor(totals, dtype=torch.double)[:, None]
    best = grid.flatten(1).topk(min(width, most * num_continuations))  # [N, W]
    tokens, added = ids.tolist(), log_probabilities.tolist()
    parents: list[int] = []
    first_row = 0
    for beam, values, places in zip(beams, *(each.tolist() for each in best), strict=True):
        before, beam.unfinished = beam.unfinished, []
        places_left = width - len(beam.finished)
        for total, place in zip(values[:places_left], places, strict=False):
            if total == -math.inf:  # a small vocabulary has run out
                break
            number, continuation = divmod(place, num_continuations)
            parent, row = before[number], first_row + number
            longer = Hypothesis(
                (*parent.ids, tokens[row][continuation]),
                (*parent.log_probabilities, added[row][continuation]),
                total,
            )
            if longer.ids[-1] == EOS_ID or len(longer.ids) == beam.limit:
                beam.finished.append(longer)
            else:
                beam.unfinished.append(longer)
                parents.append(row)
        first_row += len(before)
    return parents
