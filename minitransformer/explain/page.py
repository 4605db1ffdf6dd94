"""Walk-throughs as an interactive page: one HTML file that needs no network."""

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
from torch import Tensor, nn
from torch.nn import functional

from minitransformer import __version__
from minitransformer.data.tokenizer import UNK_ID
from minitransformer.explain.interventions import rotary_attentions
from minitransformer.explain.narration import head_input, head_sentence, sentence_of
from minitransformer.explain.rendering import TextRenderer, is_small
from minitransformer.explain.stages import (
    AttentionStage,
    EmbeddingStage,
    FeedForwardStage,
    GruStage,
    JoinedStage,
    LstmStage,
    NormStage,
    OutputProjectionStage,
    ResidualStage,
    Stage,
)
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough
from minitransformer.model.positional import LearnedPositions, SinusoidalPositions
from minitransformer.model.recurrent import SourceAttention
from minitransformer.model.transformer import FeedForward, MultiHeadAttention
from minitransformer.storage import write_output
from minitransformer.translator import length_warnings

SCRIPTS = ("numbers.js", "widgets.js", "sections.js", "recurrent.js", "map.js", "page.js")
# Letters, digits and signs of scripts that some machines have no font for, and their full stops.
UNCOMMON = regex.compile(r"[^\p{Latin}\p{Greek}\p{Cyrillic}\p{Common}\p{Inherited}]|[।॥]")
FONT_FAMILY = "page-font"


def write_page(
    path: Path, walks: dict[str, list[Walkthrough]], precision: int, *, words: bool = False
) -> None:
    """Write walk-throughs of the same sentences, by the name of their checkpoint, as a page."""
    write_output(path, page_html(walks, precision, words=words).encode())


def page_html(walks: dict[str, list[Walkthrough]], precision: int, *, words: bool = False) -> str:
    numbers, renderer = Numbers(), TextRenderer(precision=precision)

    def walk_data(walk: Walkthrough) -> dict[str, Any]:
        by_words = {"words": "\n".join(renderer.words(walk))} if words else {}
        return WalkSerializer(walk, numbers).walk() | by_words

    last = list(walks.values())[-1]
    embedding = last[0].model.encoder.embedding
    encodings = {SinusoidalPositions: "sinusoidal", LearnedPositions: "learned"}
    is_rotary = bool(rotary_attentions(last[0].model))
    data = {
        "precision": precision,
        "sentences": [walk.text for walk in last],
        "checkpoints": list(walks),
        "positional_encoding": "rotary" if is_rotary else encodings.get(type(embedding.positions)),
        "scaled_embeddings": embedding.scale != 1,
        "walks": [[walk_data(walk) for walk in of_checkpoint] for of_checkpoint in walks.values()],
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    plain_texts = ["\n".join(renderer.compact(walk)) for walk in last]
    title = escape(f"{last[0].text} → {last[0].translation}")
    body = fill_template(
        "page.html",
        title=title,
        version=__version__,
        noscript="\n".join(f"<pre>{escape(each)}</pre>" for each in plain_texts),
        data=text.replace("<", "\\u003c"),  # no "</script>" in the data ends its element
        numbers=numbers.encoded(),
        script="\n".join(read_asset(name) for name in SCRIPTS),
    )
    return fill_template("frame.html", title=title, style=page_style(text), body=body)


def read_asset(name: str) -> str:
    return (files("minitransformer.explain") / "assets" / name).read_text(encoding="utf-8")


def fill_template(name: str, **values: str) -> str:
    """Fill in the {{names}} of a template; {{names}} in the values are left as they are."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], read_asset(name))


def page_style(text: str) -> str:
    """Return the style sheet, with a font for letters of the text that machines may lack."""
    face, family = "", ""
    if letters := "".join(sorted(set(UNCOMMON.findall(text)))):
        face, family = font_face(letters), f"{FONT_FAMILY},"
    # First, and only for its own letters: after a system's fonts, browsers leave some boxes.
    return face + fill_template("page.css", fonts=family)


def font_face(letters: str) -> str:
    """Return the shipped font cut down to these letters; nothing if it has none of them."""
    import fontpkg
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont

    font = TTFont(fontpkg.path("Hind Siliguri"))
    available = font.getBestCmap().keys()
    codes = [ord(letter) for letter in letters if ord(letter) in available]
    if not codes:
        return ""
    codes += [code for code in (0x200C, 0x200D, 0x25CC) if code in available]  # joiners
    subsetter = Subsetter(Options(layout_features=["*"], notdef_outline=True))
    subsetter.populate(unicodes=codes)
    subsetter.subset(font)
    font.flavor = "woff"
    content = io.BytesIO()
    font.save(content)
    encoded = base64.b64encode(content.getvalue()).decode("ascii")
    ranges = ", ".join(f"U+{code:04X}" for code in codes)
    return (
        f"@font-face {{ font-family: {FONT_FAMILY}; unicode-range: {ranges}; "
        f"src: url(data:font/woff;base64,{encoded}) format('woff'); }}\n"
    )


class Numbers:
    """Every tensor of a page once, as float32; a reference is its offset and its shape."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.offsets: dict[bytes, int] = {}
        self.length = 0

    def add(self, tensor: Tensor) -> list[int]:
        values = tensor.detach().cpu().float().contiguous().numpy().astype("<f4")
        content = values.tobytes()
        digest = hashlib.sha256(content).digest()  # the same numbers may come in several shapes
        if digest not in self.offsets:
            self.offsets[digest] = self.length
            self.parts.append(content)
            self.length += values.size
        return [self.offsets[digest], *values.shape]

    def encoded(self) -> str:
        return base64.b64encode(b"".join(self.parts)).decode("ascii")


BLOCKS = {"self_attention": "self", "cross_attention": "cross", "feed_forward": "ff"}
RECURRENT = {"forward_rnn": "", "backward_rnn": ".back", "joined": ".join"}
AFTER_LAYERS = {"attention": "cross.0", "attention.joined": "join", "attention.output": "proj"}


def anchor_of(path: str) -> str:
    """Return a stage's address in the page.

    Such as embedding, self.0, self.0.add, cross.1.norm, norm; of a recurrent model rnn.0, join.
    """
    inside = path.partition(".")[2]  # the encoder or the decoder
    if inside in AFTER_LAYERS:
        return AFTER_LAYERS[inside]
    if not inside.startswith("layers."):
        return path.rpartition(".")[2]
    _, number, *names = inside.split(".")
    block = names[0] if names else "forward_rnn"  # a decoder's layer has no other direction
    if block in RECURRENT:
        return f"rnn.{number}{RECURRENT[block]}"
    anchor = f"{BLOCKS[block.removesuffix('_residual')]}.{number}"
    if not block.endswith("_residual"):
        return anchor
    return f"{anchor}.norm" if names[1:] else f"{anchor}.add"


class WalkSerializer:
    """Turns a walk-through into data, and adds to each stage the tensors that it reads."""

    def __init__(self, walk: Walkthrough, numbers: Numbers) -> None:
        self.walkthrough = walk
        self.model, self.numbers = walk.model, numbers
        self.is_small = is_small(walk.model)
        # References to the tensors that the next stages read.
        self.stream: list[int] = []  # the residual stream
        self.input: list[int] = []  # of a block: the stream, or its norm
        self.memory: list[int] = []

    def walk(self) -> dict[str, Any]:
        walk = self.walkthrough
        given, read = len(walk.tokenizer.encode_source(walk.text).ids), len(walk.source_ids)
        encoder = [self.stage(0, stage) for stage in walk.encoder]
        self.memory = self.stream
        return {
            "text": walk.text,
            "translation": walk.translation,
            "notes": length_warnings(
                given, given - read, len(walk.steps), is_finished=walk.is_finished
            ),
            "source": walk.source,
            "is_unknown": [id == UNK_ID for id in walk.source_ids],
            "encoder": encoder,
            "steps": [self.step(step) for step in walk.steps],
        }

    def step(self, step: DecodingStep) -> dict[str, Any]:
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
            "kind": stage.kind,
            "anchor": anchor_of(stage.path),
            "path": stage.path,
            "sentence": sentence_of(step, stage),
        }
        for name, tensor in self.tensors(step, stage).items():
            data[name] = self.numbers.add(tensor)
        match stage:
            case EmbeddingStage():
                data["ids"] = stage.ids
                self.stream = self.input = data["output"]
            case NormStage():
                data |= self.parameters(stage.path)
                self.input = data["after"]
                if not stage.path.endswith("pre_norm"):
                    self.stream = data["after"]
            case AttentionStage():
                data |= {
                    "block_input": self.input,
                    "memory": self.memory if stage.is_cross else None,
                    "attention_type": stage.attention_type,
                    "names": stage.names._asdict(),
                    "masked_keys": indices_of_false(stage.allowed[0]),
                    **self.parameters(stage.path),
                }
            case FeedForwardStage():
                data |= {"block_input": self.input, **self.parameters(stage.path)}
            case ResidualStage():
                self.stream = self.input = data["total"]
            case GruStage() | LstmStage():
                data |= {
                    "block_input": self.input,
                    "is_backward": stage.is_backward,
                    "masked": indices_of_false(stage.mask),
                    **self.parameters(stage.path),
                }
                self.stream = data["state"]
                layer = self.model.get_submodule(stage.path.rpartition(".")[0])
                if getattr(layer, "backward_rnn", None) is None:  # else it has the same input
                    self.input = self.stream
            case JoinedStage():
                data["parts"] = stage.parts
                self.stream = self.input = data["output"]
            case OutputProjectionStage():
                data |= self.parameters(stage.path)
                self.stream = self.input = data["output"]
        return data

    def tensors(self, step: int, stage: Stage) -> dict[str, Tensor]:
        """Return the tensors of a stage that the page cannot compute from others."""
        tensors = {name: each for name, each in vars(stage).items() if isinstance(each, Tensor)}
        match stage:
            case AttentionStage():
                del tensors["scaled"], tensors["allowed"]
                if step > 1:  # earlier steps have the keys and values, except a new token's
                    new = slice(0, 0) if stage.is_cross else slice(-1, None)
                    tensors |= {"key": stage.key[:, new], "value": stage.value[:, new]}
            case FeedForwardStage():
                block = self.model.get_submodule(stage.path)
                if getattr(block, "activation", None) is functional.relu:
                    del tensors["hidden"]
            case GruStage() | LstmStage():
                del tensors["mask"]
        return tensors

    def parameters(self, path: str) -> dict[str, Any]:
        """Return the options of a module, and in a small model its weights and biases by name."""
        module = self.model.get_submodule(path)
        data: dict[str, Any] = {}
        match module:
            case MultiHeadAttention():
                data["scale"] = module.scale_scores
                data["is_rotary"] = module.rotary
                data["has_output"] = module.output is not None
            case SourceAttention():
                data["scale"] = module.scale_scores
            case FeedForward():
                data["activation"] = module.activation.__name__
            case nn.LayerNorm():
                data["epsilon"] = module.eps
        if self.is_small or isinstance(module, nn.LayerNorm):  # which has few
            is_leaf = isinstance(module, nn.LayerNorm | nn.Linear)
            children = {"own": module} if is_leaf else dict(module.named_children())
            data["matrices"] = {
                name: [
                    None if tensor is None else self.numbers.add(tensor)
                    for tensor in (getattr(child, "weight", None), getattr(child, "bias", None))
                ]
                for name, child in children.items()
            }
        return data

    def head(self, step: DecodingStep) -> dict[str, Any]:
        """Return the dense head: every token's logit in a small model, else the candidates'."""
        head, names = step.head, self.walkthrough.tokenizer.target.tokens
        candidates = [each.id for each in step.candidates]
        candidates += [step.produced_id] * (step.produced_id not in candidates)
        ids = candidates
        if self.is_small:
            ids = sorted(range(len(head.logits)), key=lambda id: -float(head.logits[id]))
        largest = float(head.logits.max())  # subtracted, so that exp() does not overflow
        return {
            "kind": "head",
            "anchor": "head",
            "path": "head",
            "sentence": head_sentence(step),
            "input_name": head_input(step.stages),
            "tokens": [names[id] for id in ids],
            "ids": ids,
            "vocab_size": len(head.logits),
            "state": self.numbers.add(head.state),
            "logits": self.numbers.add(head.logits[ids]),
            "probabilities": self.numbers.add(head.probabilities[ids]),
            # The softmax's denominator: most of its terms may be missing here.
            "largest_logit": largest,
            "denominator": float((head.logits.double() - largest).exp().sum()),
            "candidates": candidates,
            **self.parameters("head"),
        }


def indices_of_false(mask: Tensor) -> list[int]:
    return [index for index, is_true in enumerate(mask.tolist()) if not is_true]
