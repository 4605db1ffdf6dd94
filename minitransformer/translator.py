"""Translation with a trained run: text in, text out."""

import math
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from minitransformer.checkpoint import refuse_other_settings, trained_model
from minitransformer.data.batching import pad
from minitransformer.data.tokenizer import EOS_ID, Encoded, PairTokenizer
from minitransformer.errors import UsageError, did_you_mean
from minitransformer.model.base import EncoderDecoder, choose_device
from minitransformer.run import RunFolder, scheduled_steps
from minitransformer.search import GREEDY_SEARCH, TokenScore, beam_search, greedy
from minitransformer.settings import Config


@dataclass(frozen=True)
class Translation:
    """A translated sentence, with what was read and each choice that was made."""

    source: Encoded
    text: str
    tokens: list[str]
    token_scores: list[TokenScore]
    left_out: int = 0  # source tokens beyond the model's longest sentence
    score: float = 0.0  # log probability / length ** length penalty
    others: list["Translation"] = field(default_factory=list)  # of the beam, best first

    @property
    def is_finished(self) -> bool:
        """Did it come to its own end, and not to the longest that a translation may be?"""
        return not self.token_scores or self.token_scores[-1].id == EOS_ID


class Translator:
    """Translates text with a trained run."""

    def __init__(self, model: EncoderDecoder, tokenizer: PairTokenizer, config: Config) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = config.model.max_length
        self.search = GREEDY_SEARCH
        self.checkpoint = ""  # what it was loaded from: a step's name, or those of several
        self.data_fingerprint = ""  # of the pairs that it was trained with

    @classmethod
    def load(
        cls,
        run: str | Path,
        *,
        device: str = "cpu",
        checkpoint: str | int | None = None,
        average: int | None = None,
    ) -> "Translator":
        """Load a run's weights: those that its config says are the ones to translate with.

        These are the mean of the last `evaluation.average_checkpoints` where that is more than
        one, else "best" where `evaluation.best_metric` selects it, else the last one.
        `checkpoint` asks for "last", "best" or a step by its number, `average` for the mean of
        so many.
        """
        folder = RunFolder(Path(run))
        config = folder.load_config()
        tokenizer = folder.load_tokenizer(config)
        if not isinstance(checkpoint, int) and checkpoint not in (None, "last", "best"):
            raise UsageError(f"checkpoint {checkpoint!r}: choose last, best or a step's number")
        if average is not None and (average < 1 or checkpoint is not None):
            raise UsageError(f"average {average}: at least 1, and not together with a checkpoint")
        count = average or (config.evaluation.average_checkpoints if checkpoint is None else 1)
        selects = config.evaluation.best_metric != "none"
        takes_best = selects and (checkpoint, average, count) == (None, None, 1)
        complaints: list[str] = []
        if isinstance(checkpoint, int):
            saved = [folder.load(checkpoint, for_training=False)]
        elif checkpoint == "best" or (takes_best and folder.best_step is not None):
            saved = [folder.load_best()]
        else:
            among = folder.steps()
            if count > 1:  # those that a signal left in between would make another mean
                # Behind those that are kept for being the last, an old best one may stand.
                among = (
                    scheduled_steps(among, config)[: config.training.keep_checkpoints] or among[:1]
                )
            saved = folder.load_last(count, complaints, for_training=False, among=among)
        names = [each.path.name for each in saved]
        if len(saved) < count and not complaints:
            complaints.append(
                f"{run} has only {len(saved)} of the {count} checkpoints to be averaged "
                "(training.keep_checkpoints says how many are kept)"
            )
        for complaint in complaints:
            print(f"warning: {complaint}; using {', '.join(names)}", file=sys.stderr)
        for each in saved:
            refuse_other_settings(each.settings, each.path.name, config, folder.path)
        model = trained_model(config, tokenizer, {str(each.path): each.model for each in saved})
        translator = cls(model.to(choose_device(device)).eval(), tokenizer, config)
        translator.checkpoint = names[0]
        if len(saved) > 1:
            translator.checkpoint = f"mean of {len(saved)}, {names[-1]} to {names[0]}"
        translator.data_fingerprint = saved[0].state.data_fingerprint
        return translator

    def __call__(self, text: str) -> str:
        """Translate one sentence."""
        return self.translate([text])[0].text

    def translate(
        self, texts: Iterable[str], *, batch_size: int = 64, alternatives: int = 0
    ) -> list[Translation]:
        """Translate sentences in order; similar lengths are decoded together."""
        sources = [self.tokenizer.encode_source(text) for text in texts]
        translations: dict[int, Translation] = {}
        places = sorted(range(len(sources)), key=lambda place: len(sources[place].ids))
        for place in places:
            if not sources[place].words:  # nothing in, nothing out
                translations[place] = Translation(sources[place], "", [], [])
        places = [place for place in places if place not in translations]
        count = self.search.num_sentences(batch_size)
        for start in range(0, len(places), count):
            chosen = places[start : start + count]
            decoded = self.decode([sources[place] for place in chosen], alternatives)
            translations.update(zip(chosen, decoded, strict=True))
        return [translations[place] for place in range(len(sources))]

    def decode(self, sources: list[Encoded], alternatives: int) -> list[Translation]:
        rows = [self.fit(source.ids) for source in sources]
        device = next(self.model.parameters()).device
        source = pad(rows).to(device)
        start_id, max_lengths = self.tokenizer.start_id, [self.max_length] * len(rows)
        penalty = self.search.length_penalty
        if self.search.beam == 1:
            produced = [
                [(choices, log_probability(choices) / len(choices) ** penalty)]
                for choices in greedy(
                    self.model,
                    source,
                    start_id=start_id,
                    max_lengths=max_lengths,
                    alternatives=alternatives,
                )
            ]
        else:
            found = beam_search(
                self.model, source, start_id=start_id, max_lengths=max_lengths,
                width=self.search.beam, length_penalty=penalty,
            )  # fmt: skip
            produced = [
                [(each.token_scores, each.score(penalty)) for each in beam] for beam in found
            ]
        return [
            self.translation(source, len(source.ids) - len(row), candidates)
            for source, row, candidates in zip(sources, rows, produced, strict=True)
        ]

    def translation(
        self, source: Encoded, left_out: int, candidates: list[tuple[list[TokenScore], float]]
    ) -> Translation:
        """The first of the candidates, and with it the others; each has a score."""
        target = self.tokenizer.target
        best, *others = (
            Translation(
                source,
                target.decode(choice.id for choice in choices),
                [target.tokens[choice.id] for choice in choices],
                choices,
                left_out,
                score,
            )
            for choices, score in candidates
        )
        return replace(best, others=others)

    def fit(self, ids: list[int]) -> list[int]:
        """Cut a sentence that is longer than the model takes, keeping its end marker."""
        if len(ids) <= self.max_length:
            return ids
        end = ids[-1:] if self.tokenizer.source_eos else []
        return ids[: self.max_length - len(end)] + end


def log_probability(choices: list[TokenScore]) -> float:
    # A token that may not be produced can have all of the probability.
    return sum(math.log(max(choice.probability, sys.float_info.min)) for choice in choices)


ALTERNATIVES = 3
MOST_UNKNOWN = 5  # named one by one; the rest are counted


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Lines ended by \\n alone, as soon as they come; bytes that are not UTF-8 become U+FFFD."""
    for number, line in enumerate(stream, start=1):
        text = line.removesuffix(b"\n").decode("utf-8", errors="replace")
        if number == 1:
            text = text.removeprefix("\ufeff")
        yield text


def translate_lines(
    translator: Translator,
    lines: Iterable[str],
    output: TextIO,
    *,
    scores: bool = False,
    n_best: int | None = None,
    batch_size: int = 1,
) -> None:
    """Translate lines as they come, `batch_size` at a time, and hand each on at once.

    With `n_best`, up to so many for each: the number of the line that came in, text and score.
    """
    lines = iter(lines)
    number = 0
    while batch := list(islice(lines, batch_size)):
        for translation in translator.translate(batch, alternatives=ALTERNATIVES if scores else 0):
            number += 1
            for remark in remarks(translation, translator):
                print(f"line {number}: {remark}", file=sys.stderr, flush=True)
            for each in [translation, *translation.others][: n_best or 1]:
                fields = [each.text]
                if n_best:
                    fields = [str(number), each.text, f"{each.score:.4f}"]
                if scores:
                    fields += score_fields(each, translator)
                output.write("\t".join(fields) + "\n")
            output.flush()


def remarks(translation: Translation, translator: Translator) -> list[str]:
    """What the reader of a translation should know about its source."""
    vocabulary = translator.tokenizer.source
    name, unknown = vocabulary.unknown_name, translation.source.unknown
    found = [
        f"unknown {name} '{printable(word)}'{did_you_mean(word, vocabulary.ids)}"
        for word in unknown[:MOST_UNKNOWN]
    ]
    if len(unknown) > MOST_UNKNOWN:
        found.append(f"and {len(unknown) - MOST_UNKNOWN} more unknown {name}s")
    return found + length_remarks(
        len(translation.source.ids),
        translation.left_out,
        len(translation.tokens),
        is_finished=translation.is_finished,
    )


def length_remarks(given: int, left_out: int, produced: int, *, is_finished: bool) -> list[str]:
    """What was cut off a sentence, and off its translation."""
    found = []
    if left_out:
        taken = f"{given} tokens, the model takes {given - left_out}"
        found.append(f"{taken}; the last {left_out} were left out")
    if not is_finished:
        found.append(f"no end after {produced} tokens; cut there")
    return found


def printable(word: str) -> str:
    """A word as it may go to a terminal: without control characters, and not endless."""
    return without_controls(word) if len(word) <= 40 else f"{without_controls(word[:40])}…"


def without_controls(text: str) -> str:
    return "".join(
        f"\\x{ord(each):02x}" if unicodedata.category(each) in ("Cc", "Cs") else each
        for each in text
    )


def score_fields(translation: Translation, translator: Translator) -> list[str]:
    """Each produced token with its probability and the tokens that came nearest."""
    names = translator.tokenizer.target.tokens
    fields = []
    for token, choice in zip(translation.tokens, translation.token_scores, strict=True):
        alternatives = ", ".join(f"{names[id]} {value:.4f}" for id, value in choice.alternatives)
        fields.append(
            f"{token} {choice.probability:.4f}" + f" ({alternatives})" * bool(alternatives)
        )
    return fields
