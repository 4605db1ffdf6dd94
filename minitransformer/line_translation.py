"""Lines in, lines out: one line of output for each line of input, or its best few, in order."""

import sys
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO, TextIO

from minitransformer.decoding import Translation, Translator
from minitransformer.errors import did_you_mean

RUNNERS_UP = 3
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
        for translation in translator.translate(batch, runners_up=RUNNERS_UP if scores else 0):
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
    for token, choice in zip(translation.tokens, translation.choices, strict=True):
        runners_up = ", ".join(f"{names[id]} {value:.4f}" for id, value in choice.runners_up)
        fields.append(f"{token} {choice.probability:.4f}" + f" ({runners_up})" * bool(runners_up))
    return fields
