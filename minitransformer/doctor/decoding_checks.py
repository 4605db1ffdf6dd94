"""What must hold when a model translates on its own: caches and dropout change no answer.

B batch, T target, V vocabulary.
"""

import torch
from torch import Tensor

from minitransformer.data.batching import pad
from minitransformer.data.tokens import BOS_ID, PAD_ID
from minitransformer.doctor.findings import Finding, judged, shown
from minitransformer.doctor.patient import ROUNDING, Patient, rounding, training, worse
from minitransformer.search import Choice, evaluating, greedy

TOKENS = 8  # at most so many are produced
CACHE = {
    "transformer": "a cached token must stand at its true place and see all keys before it",
    "recurrent": "the cache must carry the state of every layer on, row by row, from token to "
    "token",
}


def cached_as_uncached(patient: Patient) -> Finding:
    """Decoding from a cache gives the tokens and probabilities of decoding all at once."""
    model, batch, start_id, config = patient
    limits = [min(TOKENS, config.model.max_length)] * len(batch.source)
    target = batch.target_input[:, :TOKENS]
    largest = 0.0
    with evaluating(model), torch.no_grad():
        memory = model.encode(batch.source)
        logits = model.decode(target, memory)
        forced = logits.log_softmax(dim=-1)  # [B, T, V]
        cache = model.new_cache(memory)
        for place in range(target.shape[1]):
            cached = model.decode(target[:, place : place + 1], memory, cache)
            whole = model.decode(target[:, : place + 1], memory)
            for each in (cached, whole):
                gap = each[:, -1].log_softmax(dim=-1) - forced[:, place]
                largest = worse(largest, gap.abs().max())
        produced = greedy(model, batch.source, start_id=start_id, limits=limits)
        read = pad([[start_id, *(choice.id for choice in row[:-1])] for row in produced])
        once_more = model.decode(read.to(target), memory)
    others = other_choices(produced, once_more.log_softmax(dim=-1), rounding(once_more))
    count = sum(map(len, produced))
    return judged(
        "cached, uncached",
        others == 0 and largest <= rounding(logits),
        f"{count - others} of {count} tokens the same, log-probabilities differ by "
        f"{shown(largest)}",
        CACHE[config.model.kind],
    )


def other_choices(produced: list[list[Choice]], forced: Tensor, tolerance: float) -> int:
    """How many tokens a search took that are not the most probable ones, or not as probable."""
    forced = forced.clone()
    forced[..., [PAD_ID, BOS_ID]] = -torch.inf  # never labels, so never answers
    wrong = 0
    for row, choices in enumerate(produced):
        for place, choice in enumerate(choices):
            own = float(forced[row, place, choice.id])
            is_best = float(forced[row, place].max()) - own <= tolerance
            log_probability = float(torch.tensor(choice.probability).log())
            wrong += not (is_best and abs(log_probability - own) <= tolerance)
    return wrong


def same_twice(patient: Patient) -> Finding:
    """A model that was left in training mode translates a sentence the same way every time."""
    model, batch, start_id, config = patient
    dropout = max(config.model.dropout, config.model.inner_dropout)
    limits = [min(TOKENS, config.model.max_length)] * len(batch.source)
    with torch.random.fork_rng(devices=[]), training(model):
        first, second = (
            greedy(model, batch.source, start_id=start_id, limits=limits) for _ in range(2)
        )
    same = sum(are_same(one, other) for one, other in zip(first, second, strict=True))
    return judged(
        "same twice",
        same == len(first),
        f"{same} of {len(first)} sentences come out the same again (dropout {dropout:g})",
        "dropout must be off when decoding: model.eval(), and back to model.train() afterwards",
    )


def are_same(some: list[Choice], others: list[Choice]) -> bool:
    """The same tokens, and as probable."""
    return [one.id for one in some] == [other.id for other in others] and all(
        abs(one.probability - other.probability) <= ROUNDING
        for one, other in zip(some, others, strict=True)
    )
