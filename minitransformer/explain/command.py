"""translate.py --walkthrough and --attention: sentences in; text, files or pictures out."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from minitransformer.errors import UsageError, did_you_mean, escape_controls, printable_word
from minitransformer.explain.alignment import FED, load_best_head
from minitransformer.explain.attention_maps import attention_views, views_by_words
from minitransformer.explain.checking import check
from minitransformer.explain.files import write_walkthroughs
from minitransformer.explain.narration import narrate
from minitransformer.explain.terminal import View, is_within, wants_colour
from minitransformer.explain.walkthrough import NO_ATTENTION, Walkthrough, walk_through
from minitransformer.search import TokenScore
from minitransformer.translator import Translation, Translator, translation_warnings

DIGITS = 3
MOST_DRAWN = 40


def show_walkthroughs(
    translator: Translator, texts: Iterable[str], options: argparse.Namespace
) -> None:
    """Walk through each sentence, check every value, and show or write what was asked for."""
    sentences = sentences_to_walk(translator, texts, options)
    precision = digits_of(options)
    view = View(precision=precision, colour=wants_colour())
    walks = []
    for text in sentences:
        walk, count = checked_walk(translator, text, options)
        say_remarks(walk, translator)
        if options.walkthrough:
            walks.append(walk)
            continue
        for line in asked_for(view, walk, options):
            print(line)
        if by_words(options, translator):
            print(f"\n{view.bold('By words')}", *view.words(walk, options.step), sep="\n")
        print(view.checked(count))
        print()
    if options.walkthrough:
        words = by_words(options, translator)
        write_walkthroughs(Path(options.walkthrough), walks, precision, words=words)
        print(f"wrote {options.walkthrough}", file=sys.stderr)


def write_walkthrough_page(
    translators: dict[str, Translator], texts: Iterable[str], options: argparse.Namespace
) -> None:
    """The same as a page to click through, for every checkpoint by its name."""
    from minitransformer.explain.page.writer import write_page

    last = list(translators.values())[-1]
    sentences = sentences_to_walk(last, texts, options)
    walks = {
        name: [checked_walk(translator, text, options)[0] for text in sentences]
        for name, translator in translators.items()
    }
    for walk in list(walks.values())[-1]:
        say_remarks(walk, last)
    words = by_words(options, last)
    write_page(Path(options.walkthrough), walks, digits_of(options), words=words)
    print(f"wrote {options.walkthrough}", file=sys.stderr)


def by_words(options: argparse.Namespace, translator: Translator) -> bool:
    """Is there anything to put together? Where every token is a word, there is not."""
    return bool(options.merge_subwords) and translator.tokenizer.source.token_name == "piece"


def digits_of(options: argparse.Namespace) -> int:
    return DIGITS if options.precision is None else int(options.precision)


def sentences_to_walk(
    translator: Translator, texts: Iterable[str], options: argparse.Namespace
) -> list[str]:
    sentences = sentences_of(texts, "to walk through")
    if options.expected and len(sentences) > 1:
        raise UsageError("--expected is the right answer of one sentence; here are several")
    for word in translator.tokenizer.encode_target(options.expected or "").unknown:
        print(f"--expected: unknown word '{printable_word(word)}', never produced", file=sys.stderr)
    return sentences


def checked_walk(
    translator: Translator, text: str, options: argparse.Namespace
) -> tuple[Walkthrough, int]:
    """A walk-through, and how many of its values were recomputed."""
    walk = walk_through(translator, text, expected=options.expected or "")
    return walk, check(walk)


def write_attention(
    translator: Translator, texts: Iterable[str], options: argparse.Namespace, run: Path
) -> None:
    """Translate each sentence, and draw where every token of it looked, the best head first."""
    from minitransformer.explain.heatmaps import (
        missing_note,
        sentence_picture,
        stacked,
        write_picture,
    )

    pictures, path = [], options.attention
    best = load_best_head(run, translator.checkpoint)
    words: set[str] = set()
    sentences = sentences_of(texts, "to draw")
    if len(sentences) > MOST_DRAWN:
        raise UsageError(
            f"a picture holds at most {MOST_DRAWN} sentences; here are {len(sentences):,}"
        )
    for text in sentences:
        walk = walk_through(translator, text)
        if not walk.has_attention:
            raise UsageError(f"--attention {path}: {NO_ATTENTION}")
        say_remarks(walk, translator)
        print(walk.translation)
        if by_words(options, translator):
            views = rows_of_best = views_by_words(walk)
            if best and best.labelling == FED:
                rows_of_best = views_by_words(walk, rows_by_fed=True)
        else:
            views = rows_of_best = list(attention_views(walk))
        view_of_best = best.view_of(rows_of_best) if best else None
        aligned = (best, view_of_best) if best and view_of_best else None
        pictures.append(sentence_picture(text, walk.translation, views, aligned))
        words |= {word for view in views for word in (*view.keys, *view.produced)}
    if note := missing_note(escape_controls(word) for word in sorted(words)):
        print(f"note: {note}", file=sys.stderr)
    write_picture(path, stacked(pictures, 24))
    print(f"wrote {path}", file=sys.stderr)


def sentences_of(texts: Iterable[str], what_for: str) -> list[str]:
    sentences = [text for text in texts if text.strip()]
    if not sentences:
        raise UsageError(f"name a sentence {what_for}")
    return sentences


def say_remarks(walk: Walkthrough, translator: Translator) -> None:
    for remark in translation_warnings(translation_of(walk), translator):
        print(f"{printable_word(walk.text)}: {remark}", file=sys.stderr)


def translation_of(walk: Walkthrough) -> Translation:
    """What a translator would have returned."""
    encoded = walk.tokenizer.encode_source(walk.text)
    return Translation(
        encoded,
        walk.translation,
        [step.produced for step in walk.steps],
        [TokenScore(step.produced_id, step.probability, []) for step in walk.steps],
        num_truncated=len(encoded.ids) - len(walk.source_ids),
    )


def asked_for(view: View, walk: Walkthrough, options: argparse.Namespace) -> Iterator[str]:
    """The lines of the step and the part that were asked for."""
    step, only = options.step, options.only
    if step is not None and not 1 <= step <= len(walk.steps):
        raise UsageError(f"--step {step}: '{walk.text[:40]}' has {len(walk.steps)} steps, from 1")
    if not (options.full or only):
        return view.compact(walk, step)
    blocks = [block for block in narrate(walk, 0) if step in (None, block.step)]
    paths = list(dict.fromkeys(block.path for block in blocks))
    if only and not any(is_within(path, only) for path in paths):
        where = f" in step {step}" if step else ""
        meant = did_you_mean(only, paths) or "; --full shows the parts in square brackets"
        raise UsageError(f"--only {only}: there is no such part{where}{meant}")
    return view.full(walk, step, only)
