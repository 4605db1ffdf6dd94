"""Attention over a whole sentence: weights with the words of their rows and columns."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from minitransformer.explain.stages import AttentionStage, Stage
from minitransformer.explain.walkthrough import Walkthrough


@dataclass(frozen=True)
class AttentionView:
    """One layer's attention over a whole sentence; one whose words do not fit cannot be built."""

    name: str  # such as decoder.layers.0.cross_attention
    look: str
    queries: list[str]  # of a cross-attention: the tokens that were fed in
    produced: list[str]  # the tokens that came of it; empty in the encoder
    keys: list[str]
    weights: Float[Tensor, "heads queries keys"]
    allowed: Bool[Tensor, "queries keys"]
    is_by_words: bool = False  # pieces were put together

    def __post_init__(self) -> None:
        labelled, shape = (len(self.queries), len(self.keys)), tuple(self.weights.shape)
        if shape[1:] != labelled or tuple(self.allowed.shape) != labelled:
            raise ValueError(f"{self.name}: {labelled} words for {shape} weights")
        if len(self.produced) != (0 if self.is_encoder else labelled[0]):
            raise ValueError(f"{self.name}: {len(self.produced)} tokens produced by {labelled[0]}")
        if self.look != "cross-attention" and self.queries != self.keys:
            raise ValueError(f"{self.name}: rows {self.queries}, columns {self.keys}")
        if self.look == "masked self-attention" and self.allowed.triu(1).any():
            raise ValueError(f"{self.name}: a token may look at later ones")
        if self.weights[:, ~self.allowed].any():
            raise ValueError(f"{self.name}: weights where nothing may be looked at")
        if not ((self.weights.sum(-1) - 1).abs() <= 1e-3).all():
            raise ValueError(f"{self.name}: a row does not sum to 1")

    @property
    def is_encoder(self) -> bool:
        return self.name.startswith("encoder.")

    @property
    def layer(self) -> int:
        """Counted from 0; a recurrent model has its one attention after all layers."""
        numbers = [int(part) for part in self.name.split(".") if part.isdigit()]
        return numbers[0] if numbers else 0

    @property
    def where(self) -> str:
        """encoder, decoder or cross: which of the three attentions it is."""
        is_cross = self.look == "cross-attention"
        return "cross" if is_cross else "encoder" if self.is_encoder else "decoder"

    @property
    def title(self) -> str:
        """Which one it is, in words; that of a recurrent model has no other beside it."""
        if ".layers." not in self.name:
            return "attention, decoder"
        return f"{self.look}, {'encoder' if self.is_encoder else 'decoder'} layer {self.layer}"

    @property
    def entropy(self) -> Float[Tensor, " heads"]:
        """How widely each head looks, in bits: 0 at one word, 2 at four alike; rows' mean."""
        bits: Tensor = torch.special.entr(self.weights).sum(-1).mean(-1) / math.log(2)
        return bits


def pass_views(stages: Iterable[Stage], produced: list[str]) -> Iterator[AttentionView]:
    """The attentions of one pass over a whole sentence."""
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
    """Every attention of a walk-through, the decoder's put together from its steps."""
    yield from pass_views(walk.encoder, [])
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
        yield AttentionView(first.path, first.attention_type, fed, produced, keys, weights, allowed)
