"""Seven classic mistakes, each made in this model's own code for a while, and undone again."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from minitransformer import beam, judging, search
from minitransformer.data import batching
from minitransformer.model import attention, base, recurrent, transformer
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.fast import dropout
from minitransformer.model.transformer import Embedding
from minitransformer.settings import ModelConfig

init_weights = base.init_weights


@dataclass(frozen=True)
class Breakage:
    """One mistake: what it is, the line as it is wrongly and rightly written, how it shows."""

    title: str
    file: str
    wrong: tuple[str, ...]
    right: tuple[str, ...]
    shows: str
    check: str  # the name of the finding that catches it
    places: tuple[tuple[Any, str, Callable[..., Any]], ...]
    settings: tuple[str, ...] = ()  # that both twins need, so that it can show
    steps: int = 300  # enough to show it
    recurrent: str = ""  # why a recurrent model cannot make it
    needs_attention: bool = False

    def why_not(self, model: ModelConfig) -> str:
        """Why a model cannot make this mistake; empty where it can."""
        if self.needs_attention and model.attention == "none":
            return "this model has no attention (model.attention is none)"
        return self.recurrent if model.kind == "recurrent" else ""

    @contextmanager
    def made(self) -> Iterator[None]:
        """Everything that runs within makes this mistake."""
        with ExitStack() as undo:
            for owner, name, wrong in self.places:
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, wrong)
            yield


def see_everything(num_queries: int, num_keys: int, device: torch.device | None = None) -> Tensor:
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)


def see_padding(ids: Tensor, pad_id: int) -> Tensor:
    return torch.ones_like(ids, dtype=torch.bool)[:, None, None, :]


def not_shifted(target: Tensor, start_id: int) -> Tensor:
    return target


def embed_without_positions(self: Embedding, ids: Tensor, start: int = 0) -> Tensor:
    tokens = functional.embedding(ids, self.weight) * self.scale
    return dropout(tokens, self.dropout, self.training)


def without_angles(self: transformer.Transformer, ids: Tensor, start: int) -> None:
    return None


def start_too_large(model: EncoderDecoder) -> None:
    for stack in (model.encoder, model.decoder):
        stack.embedding.scale = stack.embedding.weight.shape[1] ** 0.5
    model.embedding_std = 1.0
    init_weights(model)


def mask_with_a_large_number(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, scores, -1e9)


def softmax_over_queries(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-2)


def as_it_is(model: EncoderDecoder) -> nullcontext[None]:
    return nullcontext()


BREAKAGES = {
    "causal": Breakage(
        title="the decoder's causal mask is forgotten",
        file="model/transformer.py",
        wrong=("mask = padding_mask(target, self.pad_id)",),
        right=(
            "mask = padding_mask(target, self.pad_id)",
            "mask = mask & causal_mask(target.shape[1], mask.shape[-1], target.device)",
        ),
        shows="While it learns, each place can look at the next token, which is the answer. When "
        "it translates, nothing stands there yet.",
        check="no look ahead",
        recurrent="a recurrent decoder has no causal mask: word by word, it has not read what is "
        "later",
        places=((transformer, "causal_mask", see_everything),),
    ),
    "padding": Breakage(
        title="padding is not hidden",
        file="model/attention.py",
        wrong=("return torch.ones_like(ids, dtype=torch.bool)[:, None, None, :]",),
        right=("return (ids != pad_id)[:, None, None, :]",),
        shows="It learns all the same. But a sentence is then translated one way alone and another "
        "way beside longer ones.",
        check="padding, neighbours",
        places=tuple((kind, "padding_mask", see_padding) for kind in (transformer, recurrent)),
    ),
    "shift": Breakage(
        title="the decoder's input is not shifted",
        file="data/batching.py",
        wrong=("later = target",),
        right=("later = torch.cat([start, target[:, :-1]], dim=1)",),
        shows="It learns to copy what it reads, which is the answer. When it translates, it reads "
        "the start token and copies that.",
        check="decoder's input",
        places=((batching, "shifted", not_shifted),),
    ),
    "positions": Breakage(
        title="the positional encoding is forgotten",
        file="model/transformer.py",
        wrong=("total = tokens",),
        right=("total = tokens + positions",),
        shows="A sentence is a bag of words: in any order they get the same translation. Scores "
        "may hide it: on en-es, whose words hardly ever change places, this twin scores as well. "
        "On digits that are to be reversed, it cannot.",
        check="word order",
        places=(
            (Embedding, "forward", embed_without_positions),
            (transformer.Transformer, "rotary_positions", without_angles),
        ),
        recurrent="a recurrent encoder notices the order of words without positions",
        settings=("data.source=reverse", "data.limit=600"),
        steps=600,
    ),
    "scale": Breakage(
        title="embeddings start at N(0, 1), and are multiplied by √d_model besides",
        file="model/base.py and model/transformer.py",
        wrong=(
            "table.copy_(torch.randn(table.shape))",
            "tokens = functional.embedding(ids, self.weight) * d_model**0.5",
        ),
        right=(
            "table.copy_(torch.randn(table.shape) * model.embedding_std)",
            "tokens = functional.embedding(ids, self.weight) * self.scale",
        ),
        shows="(Right is a spread of 0.3 and a scale of 1 here.) The first logits are large and "
        "wrong, the softmax of attention is all or nothing, "
        "and positions drown. It learns by heart and generalises badly.",
        check="loss at start",
        recurrent="the states of a recurrent model stay between -1 and 1, however large its "
        "embeddings are",
        places=((base, "init_weights", start_too_large),),
    ),
    "softmax": Breakage(
        title="the softmax of attention goes over the wrong axis",
        file="model/attention.py and model/fast.py",
        wrong=("return torch.where(mask, scores, -1e9)", "return scores.softmax(dim=-2)"),
        right=('return torch.where(mask, scores, float("-inf"))', "return scores.softmax(dim=-1)"),
        shows="Each key is shared out among the queries, later ones included. When it translates, "
        "there is one query at a time, which gets all of every key. (With -inf instead of the "
        "customary -1e9 it would be noticed at once: not-a-number wherever there is padding.)",
        check="attention",
        needs_attention=True,
        places=(
            (attention, "apply_mask", mask_with_a_large_number),
            (attention, "softmax", softmax_over_queries),
        ),
    ),
    "eval": Breakage(
        title="dropout stays on when translating",
        file="search.py",
        wrong=("with torch.inference_mode():",),
        right=("with evaluating(model), torch.inference_mode():",),
        shows="Every translation is made by a model with holes, and by another one each time.",
        check="same twice",
        places=tuple((module, "evaluating", as_it_is) for module in (search, judging, beam)),
        settings=("model.dropout=0.3", "model.inner_dropout=0.3"),
    ),
}
