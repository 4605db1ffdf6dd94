"""Beam search: the best few translations of a sentence side by side, ids in and ids out.

A translation's score is its log probability divided by its length to the power of a penalty: 0
prefers short ones, 1 compares means over tokens. A finished translation keeps its place in the
beam and the rest go on with fewer, until all are finished: a beam that holds everything is an
exhaustive search.
N sentences, R rows (their unfinished translations), W width, K continuations, V vocabulary.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minitransformer.data.tokens import EOS_ID
from minitransformer.model.base import EncoderDecoder
from minitransformer.search import Choice, Search, evaluating, greedy, most_probable


class Hypothesis(NamedTuple):
    """A translation as far as it goes, with the log probability of each token and of all."""

    ids: tuple[int, ...] = ()
    log_probabilities: tuple[float, ...] = ()
    total: float = 0.0

    @property
    def choices(self) -> list[Choice]:
        """Each token as greedy decoding would tell of it."""
        probabilities = map(math.exp, self.log_probabilities)
        return [Choice(id, each, []) for id, each in zip(self.ids, probabilities, strict=True)]

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
    limits: list[int],
    width: int,
    length_penalty: float,
) -> list[list[Hypothesis]]:
    """Up to `width` translations of each row, best first; at a row's limit they are cut.

    One that was cut comes after all that ended: else a loop of likely words had the best mean.
    """
    with evaluating(model), torch.inference_mode():
        beams = beam_loop(model, source, start_id, limits, width)
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
    limits: list[int],
    search: Search,
) -> list[list[int]]:
    """The best translation of each row, however it is looked for."""
    if search.beam == 1:
        produced = greedy(model, source, start_id=start_id, limits=limits, probabilities=False)
        return [[choice.id for choice in choices] for choices in produced]
    found = beam_search(
        model, source, start_id=start_id, limits=limits,
        width=search.beam, length_penalty=search.length_penalty,
    )  # fmt: skip
    return [list(hypotheses[0].ids) for hypotheses in found]


def beam_loop(
    model: EncoderDecoder, source: Tensor, start_id: int, limits: list[int], width: int
) -> list[Beam]:
    memory = model.encode(source)
    cache = model.new_cache(memory)
    beams = [Beam(row, limit) for row, limit in enumerate(limits)]
    active, owners = beams, list(range(len(beams)))
    last = torch.full((len(limits), 1), start_id, device=source.device)  # [R, 1]
    while active:
        logits = model.decode(last, memory, cache)[:, -1]  # [R, V]
        log_sums = logits.logsumexp(dim=1, keepdim=True)  # before some are written over
        values, ids = most_probable(logits, width)  # [R, K]
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
