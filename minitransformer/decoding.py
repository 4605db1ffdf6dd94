"""Search and translation: greedy (ids in, ids out), Translator (text in, text out).

B batch, S source, V vocabulary.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minitransformer.checkpoint import RunFolder
from minitransformer.data.batching import pad
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.data.tokens import BOS_ID, EOS_ID, PAD_ID, Encoded
from minitransformer.device import choose_device
from minitransformer.errors import UsageError
from minitransformer.model.transformer import Transformer
from minitransformer.settings import Config
from minitransformer.weights import build_model, load_weights


class Choice(NamedTuple):
    """One produced token: its probability, and the tokens that came nearest to it."""

    id: int
    probability: float
    runners_up: list[tuple[int, float]]


@contextlib.contextmanager
def evaluating(model: Transformer) -> Iterator[None]:
    """No dropout for a while; afterwards the model's mode is what it was."""
    if not model.training:  # to tell all modules so again takes as long as to produce a token
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


def greedy(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    *,
    start_id: int,
    limits: list[int],
    runners_up: int = 0,
    probabilities: bool = True,
) -> list[list[Choice]]:
    """Take the most probable token until <EOS> or a row's limit; finished rows leave the batch.

    Without probabilities, which cost a softmax over the vocabulary, they are not-a-number.
    """
    # Dropout in decoding is a classic bug, so it is not left to the caller.
    with evaluating(model), torch.inference_mode():
        return greedy_loop(model, source, start_id, limits, runners_up, probabilities)


def greedy_loop(
    model: Transformer,
    source: Tensor,
    start_id: int,
    limits: list[int],
    runners_up: int,
    probabilities: bool,
) -> list[list[Choice]]:
    memory = model.encode(source)
    cache = model.new_cache(memory)
    produced: list[list[Choice]] = [[] for _ in limits]
    active = list(range(len(limits)))  # rows of `produced` that the batch still holds
    last = torch.full((len(limits), 1), start_id, device=source.device)  # [B, 1]
    while active:
        scores = model.decode(last, memory, cache)[:, -1]  # [B, V]
        if probabilities:
            scores = torch.softmax(scores, dim=-1, out=scores)
        best, ids = most_probable(scores, 1 + runners_up)  # [B, 1 + R]
        if not probabilities:
            best.fill_(torch.nan)
        for row, values, choices in zip(active, best.tolist(), ids.tolist(), strict=True):
            runners = list(zip(choices[1:], values[1:], strict=True))
            produced[row].append(Choice(choices[0], values[0], runners))
        keep = [
            place
            for place, row in enumerate(active)
            if produced[row][-1].id != EOS_ID and len(produced[row]) < limits[row]
        ]
        last = ids[:, :1]
        if len(keep) < len(active):
            rows = torch.tensor(keep, dtype=torch.long, device=source.device)
            memory, last = memory.select(rows), last[rows]
            cache.select(rows)
            active = [active[place] for place in keep]
    return produced


def most_probable(
    scores: Float[Tensor, "batch vocab"], count: int
) -> tuple[Float[Tensor, "batch best"], Int[Tensor, "batch best"]]:
    """The best of logits or probabilities that may be produced, best first, and their ids.

    Writes over the two that may not.
    """
    scores[:, PAD_ID] = scores[:, BOS_ID] = -torch.inf  # never labels, so never answers
    if count == 1:
        ids = first_highest(scores)
        return scores.gather(1, ids), ids
    values, ids = scores.topk(min(count, scores.shape[1] - 2), dim=-1)
    return values, ids


def first_highest(values: Float[Tensor, "rows columns"], width: int = 128) -> Int[Tensor, "rows 1"]:
    """What `values.argmax(1, keepdim=True)` finds, for large ones in a fifth of the time."""
    columns = values.shape[1]
    whole = columns // width * width
    if values.numel() < 2**16 or whole < 2 * width or values.device.type != "cpu":
        return values.argmax(dim=1, keepdim=True)
    highest = values[:, :whole].reshape(len(values), -1, width).amax(dim=2)  # [B, blocks]
    if whole < columns:
        highest = torch.cat((highest, values[:, whole:].amax(dim=1, keepdim=True)), dim=1)
    begins = (highest.argmax(dim=1, keepdim=True) * width).clamp(max=columns - width)  # [B, 1]
    block = values.gather(1, begins + torch.arange(width))
    ids: Tensor = begins + block.argmax(dim=1, keepdim=True)
    return ids


@dataclass(frozen=True)
class Translation:
    """A translated sentence, with what was read and each choice that was made."""

    source: Encoded
    text: str
    tokens: list[str]
    choices: list[Choice]
    left_out: int = 0  # source tokens beyond the model's longest sentence

    @property
    def is_finished(self) -> bool:
        """Did it come to its own end, and not to the longest that a translation may be?"""
        return not self.choices or self.choices[-1].id == EOS_ID


class Translator:
    """Translates text with a trained run."""

    def __init__(self, model: Transformer, tokenizer: PairTokenizer, config: Config) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = config.model.max_length
        self.checkpoint = ""  # the name of the step that it was loaded from
        self.data_fingerprint = ""  # of the pairs that it was trained with

    @classmethod
    def load(
        cls, run: str | Path, *, device: str = "cpu", checkpoint: str | int | None = None
    ) -> "Translator":
        """Load a run's "best" checkpoint where its config selects one, else its "last".

        `checkpoint` asks for one of them, or for a step by its number.
        """
        folder = RunFolder(Path(run))
        config = folder.load_config()
        tokenizer = folder.load_tokenizer(config)
        if not isinstance(checkpoint, int) and checkpoint not in (None, "last", "best"):
            raise UsageError(f"checkpoint {checkpoint!r}: choose last, best or a step's number")
        if isinstance(checkpoint, int):
            saved = folder.load(checkpoint, for_training=False)
        elif checkpoint == "best" or (checkpoint is None and folder.pointed("best") is not None):
            saved = folder.load_best()
        else:
            complaints: list[str] = []
            saved = folder.load_newest(complaints, for_training=False)
            for complaint in complaints:
                print(f"warning: {complaint}; using {saved.path.name}", file=sys.stderr)
        model = build_model(config, tokenizer)
        load_weights(model, saved.model, str(saved.path))
        translator = cls(model.to(choose_device(device)).eval(), tokenizer, config)
        translator.checkpoint = saved.path.name
        translator.data_fingerprint = saved.state.data_fingerprint
        return translator

    def __call__(self, text: str) -> str:
        """Translate one sentence."""
        return self.translate([text])[0].text

    def translate(
        self, texts: Iterable[str], *, batch_size: int = 64, runners_up: int = 0
    ) -> list[Translation]:
        """Translate sentences in order; similar lengths are decoded together."""
        sources = [self.tokenizer.encode_source(text) for text in texts]
        translations: dict[int, Translation] = {}
        places = sorted(range(len(sources)), key=lambda place: len(sources[place].ids))
        for place in places:
            if not sources[place].words:  # nothing in, nothing out
                translations[place] = Translation(sources[place], "", [], [])
        places = [place for place in places if place not in translations]
        for start in range(0, len(places), batch_size):
            chosen = places[start : start + batch_size]
            decoded = self.decode([sources[place] for place in chosen], runners_up)
            translations.update(zip(chosen, decoded, strict=True))
        return [translations[place] for place in range(len(sources))]

    def decode(self, sources: list[Encoded], runners_up: int) -> list[Translation]:
        rows = [self.fit(source.ids) for source in sources]
        device = next(self.model.parameters()).device
        produced = greedy(
            self.model,
            pad(rows).to(device),
            start_id=self.tokenizer.start_id,
            limits=[self.max_length] * len(rows),
            runners_up=runners_up,
        )
        return [
            Translation(
                source,
                self.tokenizer.target.decode(choice.id for choice in choices),
                [self.tokenizer.target.tokens[choice.id] for choice in choices],
                choices,
                left_out=len(source.ids) - len(row),
            )
            for source, row, choices in zip(sources, rows, produced, strict=True)
        ]

    def fit(self, ids: list[int]) -> list[int]:
        """Cut a sentence that is longer than the model takes, keeping its end marker."""
        if len(ids) <= self.max_length:
            return ids
        end = ids[-1:] if self.tokenizer.source_end else []
        return ids[: self.max_length - len(end)] + end
