"""Why this word? What happens to it when a source word is taken out."""

import torch
from jaxtyping import Float
from torch import Tensor

from minitransformer.data.tokenizer import PAD_ID
from minitransformer.model.base import EncoderDecoder


@torch.no_grad()
def log_probabilities(
    model: EncoderDecoder, sources: list[list[int]], fed: list[int], produced: list[int]
) -> Float[Tensor, "sources target"]:
    """How probable each token of a translation is, for each of several sources."""
    device = device_of(model)
    target = torch.tensor([fed] * len(sources), device=device)  # [N, T]
    logits = model(torch.tensor(sources, device=device), target).log_softmax(-1)  # [N, T, V]
    chosen: Tensor = logits[:, range(len(produced)), produced]
    return chosen


def device_of(model: EncoderDecoder) -> torch.device:
    return next(model.parameters()).device


def changes_without(
    model: EncoderDecoder,
    source: list[int],
    fed: list[int],
    produced: list[int],
    words: list[list[int]] | None = None,
) -> list[list[float | None]]:
    """For each produced token, the change of its log-probability without each source word.

    A word is taken out as padding is: nobody may look at it, and the others keep their places.
    `words` are the places of tokens that are taken out together; by default, each one alone.
    """
    if words is None:
        words = [[place] for place in range(len(source))]
    present = [
        number
        for number, word in enumerate(words)
        if any(source[place] != PAD_ID for place in word)
    ]
    if len(present) == 1:  # without it nothing would be left to translate
        return [[None] * len(words) for _ in produced]
    rows = [source, *(without(source, words[number]) for number in present)]
    chosen = log_probabilities(model, rows, fed, produced)  # [1 + S, T]
    changes = (chosen[1:] - chosen[:1]).T.tolist()  # [T, S]
    by_word = [dict(zip(present, change, strict=True)) for change in changes]
    return [[change.get(number) for number in range(len(words))] for change in by_word]


def without(source: list[int], places: list[int]) -> list[int]:
    return [PAD_ID if place in places else id for place, id in enumerate(source)]
