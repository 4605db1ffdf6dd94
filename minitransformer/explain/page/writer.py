"""A translation as a page that one can click through: one HTML file that fetches nothing."""

import base64
import hashlib
import io
import json
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import regex
import torch
from torch import Tensor, nn
from torch.nn import functional

from minitransformer import __version__
from minitransformer.checkpoint import model_tensors
from minitransformer.data.tokenizer import UNK_ID
from minitransformer.explain.files import MOST_PARAMETERS, stage_kind
from minitransformer.explain.interventions import rotary_attentions
from minitransformer.explain.narration import head_sentence, read_by_head, sentence_of
from minitransformer.explain.stages import (
    AttentionStage,
    EmbeddingStage,
    FeedForwardStage,
    GruStage,
    JoinedStage,
    LstmStage,
    NarrowedStage,
    NormStage,
    ResidualStage,
    Stage,
)
from minitransformer.explain.terminal import View
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.positional import LearnedPositions, SinusoidalPositions
from minitransformer.model.recurrent import SourceAttention
from minitransformer.model.transformer import FeedForward, MultiHeadAttention
from minitransformer.translator import length_warnings

BLOCKS = {"self_attention": "self", "cross_attention": "cross", "feed_forward": "ff"}
WAYS = {"forward_rnn": "", "backward_rnn": ".back", "joined": ".join"}
AFTER_LAYERS = {"attention": "cross.0", "attention.joined": "join", "attention.output": "narrow"}


def key_of(path: str) -> str:
    """embedding, self.0, self.0.add, cross.1.norm, norm; of a recurrent model read.0, join."""
    _, *parts = path.split(".")
    inside = ".".join(parts)
    if inside in AFTER_LAYERS:
        return AFTER_LAYERS[inside]
    if parts[:1] != ["layers"]:
        return path.rpartition(".")[2]
    number, *names = parts[1:]
    block = names[0] if names else "forward_rnn"  # a decoder's layer has no other way
    if block in WAYS:
        return f"read.{number}{WAYS[block]}"
    name = f"{BLOCKS[block.removesuffix('_residual')]}.{number}"
    if not block.endswith("_residual"):
        return name
    return f"{name}.norm" if names[1:] else f"{name}.add"


class Numbers:
    """Every number of a page, each tensor once; a reference is its place and its shape."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.indices: dict[bytes, int] = {}
        self.length = 0

    def add(self, tensor: Tensor) -> list[int]:
        values = tensor.detach().cpu().to(torch.float32).contiguous().numpy().astype("<f4")
        content = values.tobytes()
        name = hashlib.sha256(content).digest()  # the same numbers may stand in several shapes
        if name not in self.indices:
            self.indices[name] = self.length
            self.parts.append(content)
            self.length += values.size
        return [self.indices[name], *values.shape]

    def encoded(self) -> str:
        return base64.b64encode(b"".join(self.parts)).decode("ascii")


def walk_data(walk: Walkthrough, numbers: Numbers) -> dict[str, Any]:
    """A walk-through, its tensors replaced by references."""
    teller = StageTeller(walk, numbers)
    encoder = [teller.stage(0, stage) for stage in walk.encoder]
    return {
        "text": walk.text,
        "translation": walk.translation,
        "notes": notes_of(walk),
        "source": walk.source,
        "is_unknown": [id == UNK_ID for id in walk.source_ids],
        "encoder": encoder,
        "steps": [teller.step(step) for step in walk.steps],
    }


def notes_of(walk: Walkthrough) -> list[str]:
    """What a reader should know before the first number."""
    given, taken = len(walk.tokenizer.encode_source(walk.text).ids), len(walk.source_ids)
    return length_warnings(given, given - taken, len(walk.steps), is_finished=walk.is_finished)


def places_without(is_there: Tensor) -> list[int]:
    """Where a mask is False."""
    return [place for place, is_true in enumerate(is_there.tolist()) if not is_true]


def has_few_parameters(model: EncoderDecoder) -> bool:
    """May a page hold the weights, too, so that projections can be taken apart?"""
    return sum(each.numel() for each in model_tensors(model).values()) <= MOST_PARAMETERS


class StageTeller:
    """Goes from stage to stage, and adds to each what it was computed from."""

    def __init__(self, walk: Walkthrough, numbers: Numbers) -> None:
        self.model, self.numbers = walk.model, numbers
        self.names = walk.tokenizer.target.tokens
        self.is_small = has_few_parameters(walk.model)
        self.stream: list[int] = []  # the line everything adds to
        self.input: list[int] = []  # what a block reads: the stream, or its norm
        self.memory: list[int] = []

    def step(self, step: DecodingStep) -> dict[str, Any]:
        if step.number == 1:
            self.memory = self.stream
        return {
            "number": step.number,
            "fed": step.fed,
            "produced": step.produced,
            "probability": step.probability,
            "is_forced": step.is_forced,
            "expected": step.expected or None,
            "why": step.why,
            "stages": [self.stage(step.number, stage) for stage in step.stages],
            "head": self.head(step),
        }

    def stage(self, step: int, stage: Stage) -> dict[str, Any]:
        data: dict[str, Any] = {
            "kind": stage_kind(stage),
            "at": key_of(stage.path),
            "path": stage.path,
            "sentence": sentence_of(step, stage),
        }
        if isinstance(stage, AttentionStage | FeedForwardStage | NormStage | NarrowedStage):
            data |= {"input": self.input, **self.linears(stage.path)}
        for name, tensor in self.tensors(step, stage).items():
            data[name] = self.numbers.add(tensor)
        if isinstance(stage, EmbeddingStage):
            data["ids"] = stage.ids
        if isinstance(stage, AttentionStage):
            is_cross = stage.look == "cross-attention"
            data["memory"] = self.memory if is_cross else None
            data["look"] = stage.look
            data["names"] = stage.names._asdict()
            data["hidden_keys"] = places_without(stage.allowed[0])
        if isinstance(stage, GruStage | LstmStage):
            data |= {"is_backward": stage.is_backward, "skipped": places_without(stage.is_read)}
            data |= {"words": self.input, **self.linears(stage.path)}  # an LSTM's input is a gate
        if isinstance(stage, JoinedStage):
            data["parts"] = stage.parts
        self.follow(stage, data)
        return data

    def tensors(self, step: int, stage: Stage) -> dict[str, Tensor]:
        """The tensors of a stage that a page cannot put together from others."""
        found = {name: each for name, each in vars(stage).items() if isinstance(each, Tensor)}
        if isinstance(stage, AttentionStage):
            del found["scaled"], found["allowed"]
            if step > 1:  # earlier steps have the keys and values, all but a new token's
                new = slice(0, 0) if stage.look == "cross-attention" else slice(-1, None)
                found["key"], found["value"] = stage.key[:, new], stage.value[:, new]
        if isinstance(stage, FeedForwardStage):
            block = self.model.get_submodule(stage.path)
            if getattr(block, "activation", None) is functional.relu:
                del found["hidden"]
        if isinstance(stage, GruStage | LstmStage):
            del found["is_read"]
        return found

    def follow(self, stage: Stage, data: dict[str, Any]) -> None:
        """Keep the line that the next stage begins from."""
        match stage:
            case NormStage():
                self.input = data["after"]
                if not stage.path.endswith("pre_norm"):
                    self.stream = data["after"]
            case ResidualStage():
                self.stream = self.input = data["total"]
            case EmbeddingStage() | JoinedStage() | NarrowedStage():
                self.stream = self.input = data["output"]
            case GruStage() | LstmStage():
                self.stream = data["state"]
                layer = self.model.get_submodule(stage.path.rpartition(".")[0])
                if getattr(layer, "backward_rnn", None) is None:  # which reads the same once more
                    self.input = self.stream

    def linears(self, path: str) -> dict[str, Any]:
        """The matrices of a block by name, each with its bias, and how it is to be used."""
        block = self.model.get_submodule(path)
        known: dict[str, Any] = {}
        if isinstance(block, MultiHeadAttention):
            known["scale"] = block.scale_scores
            known["turns"] = block.rotary
            known["has_output"] = block.output is not None
        if isinstance(block, SourceAttention):
            known["scale"] = block.scale_scores
        if isinstance(block, FeedForward):
            known["activation"] = block.activation.__name__
        if isinstance(block, nn.LayerNorm):
            known["epsilon"] = block.eps
        if self.is_small or isinstance(block, nn.LayerNorm):  # whose gains are few
            is_one = isinstance(block, nn.LayerNorm | nn.Linear)
            children = {"own": block} if is_one else dict(block.named_children())
            known["matrices"] = {name: self.pair(child) for name, child in children.items()}

        return known

    def pair(self, module: nn.Module) -> list[list[int] | None]:
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        return [None if each is None else self.numbers.add(each) for each in (weight, bias)]

    def head(self, step: DecodingStep) -> dict[str, Any]:
        """The dense head: every word's logit in a small model, else those of the candidates."""
        head = step.head
        ids = [each.id for each in step.candidates]
        ids += [step.produced_id] * (step.produced_id not in ids)
        shown = sorted(range(len(head.logits)), key=lambda id: -float(head.logits[id]))
        shown = shown if self.is_small else ids
        shift = float(head.logits.max())  # taken off all, or powers of e leave the numbers
        return {
            "kind": "head",
            "at": "head",
            "path": "head",
            "sentence": head_sentence(step),
            "reads": read_by_head(step.stages),
            "tokens": [self.names[id] for id in shown],
            "ids": shown,
            "vocabulary": len(head.logits),
            "state": self.numbers.add(head.state),
            "logits": self.numbers.add(head.logits[shown]),
            "probabilities": self.numbers.add(head.probabilities[shown]),
            # What a softmax divides by, also where most of its terms are not here.
            "shift": shift,
            "total": float((head.logits.double() - shift).exp().sum()),
            "candidates": ids,
            **self.linears("head"),
        }


SCRIPTS = (
    "page_numbers.js", "page_parts.js", "page_sections.js", "page_recurrent.js", "page_map.js",
    "page.js",
)  # fmt: skip
# Letters, digits and signs of scripts that not every machine can show, and their full stops.
UNCOMMON = regex.compile(r"[^\p{Latin}\p{Greek}\p{Cyrillic}\p{Common}\p{Inherited}]|[।॥]")
FONT_FAMILY = "page-font"


def write_page(
    path: Path, walks: dict[str, list[Walkthrough]], precision: int, *, words: bool = False
) -> None:
    """Write walk-throughs of the same sentences, by the name of their checkpoint, as a page."""
    path.write_text(page_html(walks, precision, words=words), encoding="utf-8", newline="\n")


def page_html(walks: dict[str, list[Walkthrough]], precision: int, *, words: bool = False) -> str:
    numbers, view = Numbers(), View(precision=precision)
    told = [[walk_data(walk, numbers) for walk in own] for own in walks.values()]
    for own, data_of_own in zip(walks.values(), told, strict=True):
        for walk, data_of_walk in zip(own, data_of_own, strict=True):
            data_of_walk |= {"words": "\n".join(view.words(walk))} if words else {}
    last = list(walks.values())[-1]
    embedding = last[0].model.encoder.embedding
    is_rotary = bool(rotary_attentions(last[0].model))
    positions = {SinusoidalPositions: "sinusoidal", LearnedPositions: "learned"}
    data = {
        "precision": precision,
        "sentences": [walk.text for walk in last],
        "checkpoints": list(walks),
        "position": "rotary" if is_rotary else positions.get(type(embedding.positions)),
        "scaled_embeddings": embedding.scale != 1,
        "walks": told,
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    texts = ["\n".join(view.compact(walk)) for walk in last]
    title = escape(f"{last[0].text} → {last[0].translation}")
    body = filled(
        "page.html",
        title=title,
        version=__version__,
        noscript="\n".join(f"<pre>{escape(each)}</pre>" for each in texts),
        data=text.replace("<", "\\u003c"),  # nothing in it ends the script that holds it
        numbers=numbers.encoded(),
        script="\n".join(page_file(name) for name in SCRIPTS),
    )
    return filled("frame.html", title=title, style=page_style(text), body=body)


def page_file(name: str) -> str:
    return (files("minitransformer.explain.page") / name).read_text(encoding="utf-8")


def filled(template: str, **values: str) -> str:
    """A template with its {{names}} filled in, once: what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], page_file(template))


def page_style(text: str) -> str:
    """The style of a page, with a font for the letters of its text that machines may lack."""
    face, family = "", ""
    if letters := "".join(sorted(set(UNCOMMON.findall(text)))):
        face, family = font_face(letters), f"{FONT_FAMILY},"
    # First, and only for its own letters: after a system's fonts, browsers leave some boxes.
    return face + filled("page.css", fonts=family)


def font_face(letters: str) -> str:
    """The shipped font, cut down to these letters; nothing if it has none of them."""
    import fontpkg
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont

    font = TTFont(fontpkg.path("Hind Siliguri"))
    known = font.getBestCmap().keys()
    own = [ord(letter) for letter in letters if ord(letter) in known]
    if not own:
        return ""
    joiners = [code for code in (0x200C, 0x200D, 0x25CC) if code in known]
    options = Options(layout_features=["*"], notdef_outline=True)
    cutter = Subsetter(options)
    cutter.populate(unicodes=[*own, *joiners])
    cutter.subset(font)
    font.flavor = "woff"
    content = io.BytesIO()
    font.save(content)
    encoded = base64.b64encode(content.getvalue()).decode("ascii")
    ranges = ", ".join(f"U+{code:04X}" for code in [*own, *joiners])
    return (
        f"@font-face {{ font-family: {FONT_FAMILY}; unicode-range: {ranges}; "
        f"src: url(data:font/woff;base64,{encoded}) format('woff'); }}\n"
    )
