"""Greedy and beam search, ids in and ids out.

B batch, A alternatives, V vocabulary. In a beam search: N sentences, R rows (their unfinished
hypotheses), W width of the beam, K continuations of a row.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.fast import fast_argmax

MAX_FULL_BATCH_BEAM = 8  # wider beams search fewer sentences at once


class SearchConfig(NamedTuple):
    """The search for a translation: greedy with a beam of 1, else beam search."""

    beam: int = 1
    length_penalty: float = 1.0

    def __str__(self) -> str:
        if self.beam == 1:
            return "greedy"
        return f"beam of {self.beam}, length penalty {self.length_penalty:g}"

    def num_sentences(self, batch_size: int) -> int:
        """Return how many sentences to search at once: fewer for a wide beam, which adds rows."""
        return max(1, batch_size * MAX_FULL_BATCH_BEAM // max(self.beam, MAX_FULL_BATCH_BEAM))


GREEDY_SEARCH = SearchConfig()


def translate_ids(
    model: EncoderDecoder,
    source: Int[Tensor, "batch source"],
    start_id: int,
    max_lengths: list[int],
    search: SearchConfig,
) -> list[list[int]]:
    """Return the ids of the best translation of each row."""
    if search.beam == 1:
        rows = greedy(
            model, source, start_id=start_id, max_lengths=max_lengths, probabilities=False
        )
        return [[token.id for token in tokens] for tokens in rows]
    beams = beam_search(
        model, source, start_id=start_id, max_lengths=max_lengths,
        width=search.beam, length_penalty=search.length_penalty,
    )  # fmt: skip
    return [list(hypotheses[0].ids) for hypotheses in beams]


class TokenScore(NamedTuple):
    """A produced token, its probability, and the next most probable tokens with theirs."""

    id: int
    probability: float
    alternatives: list[tuple[int, float]]


def greedy(
    model: EncoderDecoder,
    source: Int[Tensor, "batch source"],
    *,
    start_id: int,
    max_lengths: list[int],
    alternatives: int = 0,
    probabilities: bool = True,
) -> list[list[TokenScore]]:
    """Take the most probable token until <EOS> or a row's maximum length.

    Finished rows leave the batch. `probabilities=False` skips the softmax over the vocabulary, and
    every probability is NaN.
    """
    produced: list[list[TokenScore]] = [[] for _ in max_lengths]
    active = list(range(len(max_lengths)))  # the rows of `produced` that are still in the batch
    # Dropout left on while decoding is a classic bug, so the caller need not remember it.
    with eval_mode(model), torch.inference_mode():
        memory = model.encode(source)
        cache = model.new_cache(memory)
        last = torch.full((len(max_lengths), 1), start_id, device=source.device)  # [B, 1]
        while active:
            scores = model.decode(last, memory, cache)[:, -1]  # [B, V]
            if probabilities:
                scores = torch.softmax(scores, dim=-1, out=scores)
            values, ids = top_tokens(scores, 1 + alternatives)  # [B, 1 + A]
            if not probabilities:
                values.fill_(torch.nan)
            for row, row_ids, row_values in zip(active, ids.tolist(), values.tolist(), strict=True):
                best, *others = zip(row_ids, row_values, strict=True)
                produced[row].append(TokenScore(*best, others))
            keep = [
                index
                for index, row in enumerate(active)
                if produced[row][-1].id != EOS_ID and len(produced[row]) < max_lengths[row]
            ]
            last = ids[:, :1]
            if len(keep) < len(active):
                rows = torch.tensor(keep, dtype=torch.long, device=source.device)
                memory, last = memory.select(rows), last[rows]
                cache.select(rows)
                active = [active[index] for index in keep]
    return produced


class Hypothesis(NamedTuple):
    """A translation so far, with the log probability of each token and their sum."""

    ids: tuple[int, ...] = ()
    log_probabilities: tuple[float, ...] = ()
    total: float = 0.0

    @property
    def token_scores(self) -> list[TokenScore]:
        """Return the tokens as `greedy` returns them, without alternatives."""
        return [
            TokenScore(id, math.exp(log_probability), [])
            for id, log_probability in zip(self.ids, self.log_probabilities, strict=True)
        ]

    def score(self, length_penalty: float) -> float:
        """Return the log probability / length ** length_penalty."""
        return float(self.total / len(self.ids) ** length_penalty)


@dataclass
class Beam:
    """The hypotheses of one sentence."""

    row: int  # of the source
    max_length: int
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
    """Return up to `width` translations of each row, best first.

    A finished hypothesis keeps its place in the beam, and the search ends when all are finished:
    without early stopping, a beam that is wide enough is an exhaustive search.
    Those that were truncated at the row's maximum length come after all that ended in <EOS>:
    otherwise, a loop of likely words would have the best mean.
    """
    beams = [Beam(row, max_length) for row, max_length in enumerate(max_lengths)]
    active, owners = beams, list(range(len(beams)))
    with eval_mode(model), torch.inference_mode():
        memory = model.encode(source)
        cache = model.new_cache(memory)
        last = torch.full((len(max_lengths), 1), start_id, device=source.device)  # [R, 1]
        while active:
            logits = model.decode(last, memory, cache)[:, -1]  # [R, V]
            log_sums = logits.logsumexp(dim=1, keepdim=True)  # before top_tokens overwrites some
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
    return [
        sorted(
            beam.finished,
            key=lambda each: (each.ids[-1] == EOS_ID, each.score(length_penalty)),
            reverse=True,
        )
        for beam in beams
    ]


def advance(
    beams: list[Beam],
    log_probabilities: Float[Tensor, "rows continuations"],
    ids: Int[Tensor, "rows continuations"],
    width: int,
) -> list[int]:
    """Replace each beam's hypotheses by their best continuations; return the rows continued."""
    totals = [each.total for beam in beams for each in beam.unfinished]
    longer_totals = log_probabilities + torch.tensor(totals, dtype=torch.double)[:, None]  # [R, K]
    by_beam = torch.split(longer_totals, [len(beam.unfinished) for beam in beams])
    grid = pad_sequence(list(by_beam), batch_first=True, padding_value=-torch.inf)  # [N, rows, K]
    best = grid.flatten(1).topk(min(width, grid[0].numel()))  # [N, W]
    token_ids, token_scores = ids.tolist(), log_probabilities.tolist()
    parents: list[int] = []
    first_row = 0
    for beam, values, indices in zip(beams, *(each.tolist() for each in best), strict=True):
        before, beam.unfinished = beam.unfinished, []
        num_open = width - len(beam.finished)  # finished hypotheses keep their places
        for total, index in zip(values[:num_open], indices, strict=False):
            if total == -math.inf:  # a small vocabulary has no more continuations
                break
            number, continuation = divmod(index, ids.shape[1])
            parent, row = before[number], first_row + number
            longer = Hypothesis(
                (*parent.ids, token_ids[row][continuation]),
                (*parent.log_probabilities, token_scores[row][continuation]),
                total,
            )
            if longer.ids[-1] == EOS_ID or len(longer.ids) == beam.max_length:
                beam.finished.append(longer)
            else:
                beam.unfinished.append(longer)
                parents.append(row)
        first_row += len(before)
    return parents


def top_tokens(
    scores: Float[Tensor, "batch vocab"], count: int
) -> tuple[Float[Tensor, "batch best"], Int[Tensor, "batch best"]]:
    """Return the highest logits or probabilities, best first, and their ids.

    Overwrites the scores of <PAD> and <BOS>, which are never labels and so never produced.
    """
    scores[:, PAD_ID] = scores[:, BOS_ID] = -torch.inf
    if count == 1:  # argmax takes the first of equal scores, topk any of them
        ids = fast_argmax(scores)
        return scores.gather(1, ids), ids
    best = scores.topk(min(count, scores.shape[1] - 2))
    return best.values, best.indices


@contextlib.contextmanager
def eval_mode(model: EncoderDecoder) -> Iterator[None]:
    """Switch dropout off within, and restore the model's mode afterwards."""
    if not model.training:  # setting the mode of all modules takes as long as producing a token
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
