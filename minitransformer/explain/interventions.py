"""Interventions: heads or positions off, source tokens hidden, translations forced; occlusion.

N sources, S source, T target, V vocabulary.
"""

import copy
import re
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import UsageError
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.recurrent import Recurrent, SourceAttention
from minitransformer.model.transformer import DecoderLayer, EncoderLayer, MultiHeadAttention

HEAD = re.compile(r"(encoder|decoder|cross)\.(\d{1,4})\.(\d{1,4})")


@dataclass(frozen=True)
class Experiment:
    """The changes with which a sentence is translated."""

    hidden: frozenset[int] = frozenset()  # source tokens, counted from 1
    heads_off: frozenset[str] = frozenset()  # such as encoder.0.1: layer 0, head 1
    positions_off: bool = False
    forced: str = ""  # how the translation must begin

    def __str__(self) -> str:
        parts = [f"token {number} hidden" for number in sorted(self.hidden)]
        parts += [f"head {name} off" for name in sorted(self.heads_off)]
        parts += ["positions off"] * self.positions_off
        parts += [f"forced: {self.forced}"] if self.forced else []
        return ", ".join(parts)

    def with_head(self, name: str, *, is_on: bool) -> "Experiment":
        side, *numbers = name.split(".")
        name = ".".join([side, *(str(int(number)) for number in numbers)])  # 00 is 0
        off = self.heads_off - {name} if is_on else self.heads_off | {name}
        return replace(self, heads_off=off)


NOTHING = Experiment()


@torch.no_grad()
def changed_model(model: EncoderDecoder, experiment: Experiment) -> EncoderDecoder:
    """Return a copy of the model with parts switched off, or the model itself if none are."""
    if not experiment.heads_off and not experiment.positions_off:
        return model
    model = copy.deepcopy(model)
    for name in experiment.heads_off:
        attention, head = head_of(model, name)
        if isinstance(attention, SourceAttention):
            attention.is_off = True
            continue
        width = attention.value.out_features // attention.num_heads
        attention.value.weight[head * width : (head + 1) * width] = 0
        if attention.value.bias is not None:
            attention.value.bias[head * width : (head + 1) * width] = 0
    if experiment.positions_off:
        model.encoder.embedding.positions = None
        model.decoder.embedding.positions = None
        for attention in rotary_attentions(model):
            attention.rotary = False
    return model


def rotary_attentions(model: EncoderDecoder) -> list[MultiHeadAttention]:
    """Return the attentions that rotate queries and keys by their positions."""
    modules = model.modules()
    return [each for each in modules if isinstance(each, MultiHeadAttention) and each.rotary]


def head_of(model: EncoderDecoder, name: str) -> tuple[MultiHeadAttention | SourceAttention, int]:
    """Return the attention and the number of the head that a name such as encoder.0.1 means."""
    match = HEAD.fullmatch(name)
    if match is None:
        raise UsageError(
            f"'{name}' is not a head; write encoder.LAYER.HEAD, decoder.LAYER.HEAD "
            "or cross.LAYER.HEAD, counted from 0"
        )
    side, number, head = match[1], int(match[2]), int(match[3])
    if isinstance(model, Recurrent):
        source_attention = model.decoder.attention
        if source_attention is None:
            raise UsageError(f"{name}: this model has no heads (model.attention is none)")
        if (side, number, head) != ("cross", 0, 0):
            raise UsageError(f"{name}: the only head of a recurrent model is cross.0.0")
        assert isinstance(source_attention, SourceAttention)
        return source_attention, 0
    layers = model.encoder.layers if side == "encoder" else model.decoder.layers
    if number >= len(layers):
        raise UsageError(f"{name}: no layer {number}; the last one is {len(layers) - 1}")
    layer = layers[number]
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    attention = layer.self_attention
    if side == "cross":
        assert isinstance(layer, DecoderLayer)
        attention = layer.cross_attention
    if head >= attention.num_heads:
        raise UsageError(f"{name}: no head {head}; the last one is {attention.num_heads - 1}")
    return attention, head


def changes_without(
    model: EncoderDecoder,
    source: list[int],
    fed: list[int],
    produced: list[int],
    words: list[list[int]] | None = None,
) -> list[list[float | None]]:
    """Return the change of each produced token's log-probability without each source word.

    A word is occluded as padding: no attention and no recurrence reads it, and others keep their
    positions. `words` are the indices of tokens that are occluded together; by default, each alone.
    """
    if words is None:
        words = [[index] for index in range(len(source))]
    present = [
        number
        for number, word in enumerate(words)
        if any(source[index] != PAD_ID for index in word)
    ]
    if len(present) == 1:  # without it there would be no source
        return [[None] * len(words) for _ in produced]
    occluded = [
        [PAD_ID if index in words[number] else id for index, id in enumerate(source)]
        for number in present
    ]
    chosen = log_probabilities(model, [source, *occluded], fed, produced)  # [1 + S, T]
    changes = (chosen[1:] - chosen[:1]).T.tolist()  # [T, S]
    by_word = [dict(zip(present, change, strict=True)) for change in changes]
    return [[change.get(number) for number in range(len(words))] for change in by_word]


@torch.no_grad()
def log_probabilities(
    model: EncoderDecoder, sources: list[list[int]], fed: list[int], produced: list[int]
) -> Float[Tensor, "sources target"]:
    """Return log p(token) of each token of a translation, given each of several sources."""
    device = device_of(model)
    target = torch.tensor([fed] * len(sources), device=device)  # [N, T]
    logits = model(torch.tensor(sources, device=device), target).log_softmax(-1)  # [N, T, V]
    chosen: Tensor = logits[:, range(len(produced)), produced]
    return chosen


def device_of(model: EncoderDecoder) -> torch.device:
    return next(model.parameters()).device
