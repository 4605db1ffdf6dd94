"""Attention as a picture shows it: weights with the words of their rows and columns.

H heads, T queries, S keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from minitransformer.explain.stages import AttentionStage
from minitransformer.explain.walkthrough import Walkthrough


@dataclass(frozen=True)
class AttentionView:
    """One layer's attention over a whole sentence."""

    name: str  # such as decoder.layers.0.cross_attention
    look: str
    queries: list[str]  # of a cross-attention: the tokens that were fed in
    produced: list[str]  # the tokens that came of it; empty in the encoder
    keys: list[str]
    weights: Float[Tensor, "heads queries keys"]
    allowed: Bool[Tensor, "queries keys"]

    def __post_init__(self) -> None:
        labelled, shape = (len(self.queries), len(self.keys)), tuple(self.weights.shape)
        if shape[1:] != labelled or tuple(self.allowed.shape) != labelled:
            raise ValueError(f"{self.name}: {labelled} words for {shape} weights")
        if self.produced and len(self.produced) != len(self.queries):
            raise ValueError(f"{self.name}: {len(self.produced)} tokens produced by {labelled[0]}")


def attention_views(walk: Walkthrough) -> Iterator[AttentionView]:
    """Every attention of a walk-through, the decoder's put together from its steps."""
    for stage in walk.encoder:
        if isinstance(stage, AttentionStage):
            yield AttentionView(
                stage.path, stage.look, stage.queries, [], stage.keys, stage.weights, stage.allowed
            )
    produced = [step.produced for step in walk.steps]
    fed = [step.fed for step in walk.steps]
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
            seen = len(stage.keys)  # of masked self-attention, more at every step
            weights[:, number, :seen] = stage.weights[:, 0].cpu()
            allowed[number, :seen] = stage.allowed[0].cpu()
        yield AttentionView(first.path, first.look, fed, produced, keys, weights, allowed)
