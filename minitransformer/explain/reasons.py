"""Why this word? What happens to it when a source word is taken out.

N sources, S source, T target, V vocabulary.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minitransformer.data.tokens import PAD_ID
from minitransformer.model.transformer import Transformer


@torch.no_grad()
def log_probabilities(
    model: Transformer, sources: Int[Tensor, "sources source"], fed: list[int], produced: list[int]
) -> Float[Tensor, "sources target"]:
    """How probable each token of a translation is, for each of several sources."""
    target = torch.tensor([fed], device=sources.device).expand(len(sources), -1)  # [N, T]
    logits = model(sources, target).log_softmax(-1)  # [N, T, V]
    chosen: Tensor = logits[:, range(len(produced)), produced]
    return chosen


def losses_without(
    model: Transformer, source: list[int], fed: list[int], produced: list[int]
) -> list[list[float | None]]:
    """For each produced token, the change of its log-probability without each source word.

    A word is taken out as padding is: nobody may look at it, and the others keep their places.
    """
    words = [place for place, id in enumerate(source) if id != PAD_ID]
    if len(words) == 1:  # without it nothing would be left to translate
        return [[None] * len(source) for _ in produced]
    rows = torch.tensor([source] * (len(words) + 1), device=next(model.parameters()).device)
    for row, place in enumerate(words, start=1):
        rows[row, place] = PAD_ID
    chosen = log_probabilities(model, rows, fed, produced)  # [1 + S, T]
    changes = (chosen[1:] - chosen[:1]).T.tolist()  # [T, S]
    by_place = [dict(zip(words, change, strict=True)) for change in changes]
    return [[change.get(place) for place in range(len(source))] for change in by_place]
