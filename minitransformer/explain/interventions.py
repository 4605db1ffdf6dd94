"""What if? A head or the positions switched off, a source word hidden, a word forced."""

import copy
import re
from dataclasses import dataclass, replace

import torch

from minitransformer.errors import UsageError
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.recurrent import Recurrent, SourceAttention
from minitransformer.model.transformer import DecoderLayer, EncoderLayer, MultiHeadAttention

HEAD = re.compile(r"(encoder|decoder|cross)\.(\d{1,4})\.(\d{1,4})")


@dataclass(frozen=True)
class Experiment:
    """What is changed before a sentence is translated."""

    hidden: frozenset[int] = frozenset()  # source tokens, counted from 1
    heads_off: frozenset[str] = frozenset()  # such as encoder.0.1: layer 0, head 1
    positions_off: bool = False
    forced: str = ""  # how the translation must begin

    def __str__(self) -> str:
        parts = [f"token {place} hidden" for place in sorted(self.hidden)]
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


def changed_model(model: EncoderDecoder, experiment: Experiment) -> EncoderDecoder:
    """A copy of the model with parts switched off, or the model itself where none are."""
    if not experiment.heads_off and not experiment.positions_off:
        return model
    model = copy.deepcopy(model)
    for name in experiment.heads_off:
        switch_off(model, name)
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


@torch.no_grad()
def switch_off(model: EncoderDecoder, name: str) -> None:
    """Let a head find nothing: its values are all zero."""
    attention, head = head_of(model, name)
    if isinstance(attention, SourceAttention):
        attention.is_off = True
        return
    width = attention.value.out_features // attention.num_heads
    attention.value.weight[head * width : (head + 1) * width] = 0
    if attention.value.bias is not None:
        attention.value.bias[head * width : (head + 1) * width] = 0


def head_of(model: EncoderDecoder, name: str) -> tuple[MultiHeadAttention | SourceAttention, int]:
    """The attention and the head that a name such as encoder.0.1 means; counted from 0."""
    match = HEAD.fullmatch(name)
    if match is None:
        raise UsageError(
            f"'{name}' is no head; name one as encoder.LAYER.HEAD, decoder.LAYER.HEAD "
            "or cross.LAYER.HEAD, counted from 0"
        )
    side, number, head = match[1], int(match[2]), int(match[3])
    if isinstance(model, Recurrent):
        return only_attention(model, name, is_meant=(side, number, head) == ("cross", 0, 0)), 0
    layers = {"encoder": model.encoder.layers, "decoder": model.decoder.layers,
              "cross": model.decoder.layers}  # fmt: skip
    if number >= len(layers[side]):
        raise UsageError(f"{name}: of {side} layers there are {len(layers[side])}, counted from 0")
    layer = layers[side][number]
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    attention = layer.self_attention
    if side == "cross":
        assert isinstance(layer, DecoderLayer)
        attention = layer.cross_attention
    if head >= attention.num_heads:
        raise UsageError(f"{name}: of heads there are {attention.num_heads}, counted from 0")
    return attention, head


def only_attention(model: Recurrent, name: str, *, is_meant: bool) -> SourceAttention:
    """The one place where a recurrent model looks at anything."""
    attention = model.decoder.attention
    if attention is None:
        raise UsageError(f"{name}: this model has no heads (model.attention is none)")
    if not is_meant:
        raise UsageError(f"{name}: of heads a recurrent model has one, cross.0.0")
    assert isinstance(attention, SourceAttention)
    return attention
