"""translate.py --walkthrough and --attention: sentences in; text, files or pictures out."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from minitransformer.errors import UsageError, did_you_mean, escape_controls, printable_word
from minitransformer.explain.alignment import FED, load_best_head
from minitransformer.explain.attention_maps import attention_views, views_by_words
from minitransformer.explain.checking import check
from minitransformer.explain.narration import narrate
from minitransformer.explain.rendering import (
    TextRenderer,
    is_within,
    wants_colour,
    write_walkthroughs,
)
from minitransformer.explain.walkthrough import NO_ATTENTION, Walkthrough, walk_through
from minitransformer.search import TokenScore
from minitransformer.translator import Translation, Translator, translation_warnings

DEFAULT_PRECISION = 3
MAX_SENTENCES = 40


def show_walkthroughs(
    translator: Translator, texts: Iterable[str], options: argparse.Namespace
) -> None:
    """Walk through each sentence and check it; print it, or write all to FILE.json or FILE.md."""
    sentences = sentences_to_walk(translator, texts, options)
    precision, with_words = precision_of(options), merges_subwords(options, translator)
    renderer = TextRenderer(precision=precision, colour=wants_colour())
    walks = []
    for text in sentences:
        walk, count = checked_walk(translator, text, options)
        print_warnings(walk, translator)
        if options.walkthrough:
            walks.append(walk)
            continue
        for line in selected_lines(renderer, walk, options):
            print(line)
        if with_words:
            print(f"\n{renderer.bold('By words')}", *renderer.words(walk, options.step), sep="\n")
        print(renderer.checked(count))
        print()
    if options.walkthrough:
        write_walkthroughs(Path(options.walkthrough), walks, precision, words=with_words)
        print(f"wrote {options.walkthrough}", file=sys.stderr)


def write_walkthrough_page(
    translators: dict[str, Translator], texts: Iterable[str], options: argparse.Namespace
) -> None:
    """Write an interactive page with the walk-throughs of every checkpoint, by its name."""
    from minitransformer.explain.page import write_page

    last = list(translators.values())[-1]
    sentences = sentences_to_walk(last, texts, options)
    walks = {
        name: [checked_walk(translator, text, options)[0] for text in sentences]
        for name, translator in translators.items()
    }
    for walk in list(walks.values())[-1]:
        print_warnings(walk, last)
    with_words = merges_subwords(options, last)
    write_page(Path(options.walkthrough), walks, precision_of(options), words=with_words)
    print(f"wrote {options.walkthrough}", file=sys.stderr)


def write_attention(
    translator: Translator, texts: Iterable[str], options: argparse.Namespace, run: Path
) -> None:
    """Translate each sentence and draw its attention maps, that of the best head first."""
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
    if len(sentences) > MAX_SENTENCES:
        raise UsageError(
            f"a picture holds at most {MAX_SENTENCES} sentences; there are {len(sentences):,}"
        )
    for text in sentences:
        walk = walk_through(translator, text)
        if not walk.has_attention:
            raise UsageError(f"--attention {path}: {NO_ATTENTION}")
        print_warnings(walk, translator)
        print(walk.translation)
        if merges_subwords(options, translator):
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


def merges_subwords(options: argparse.Namespace, translator: Translator) -> bool:
    """Return whether whole words are asked for, and differ from tokens."""
    return bool(options.merge_subwords) and translator.tokenizer.source.token_name == "piece"


def precision_of(options: argparse.Namespace) -> int:
    return DEFAULT_PRECISION if options.precision is None else int(options.precision)


def sentences_of(texts: Iterable[str], purpose: str) -> list[str]:
    sentences = [text for text in texts if text.strip()]
    if not sentences:
        raise UsageError(f"name a sentence {purpose}")
    return sentences


def sentences_to_walk(
    translator: Translator, texts: Iterable[str], options: argparse.Namespace
) -> list[str]:
    sentences = sentences_of(texts, "to walk through")
    if options.expected and len(sentences) > 1:
        raise UsageError("--expected is for one sentence; there are several")
    for word in translator.tokenizer.encode_target(options.expected or "").unknown:
        print(f"--expected: unknown word '{printable_word(word)}', never produced", file=sys.stderr)
    return sentences


def checked_walk(
    translator: Translator, text: str, options: argparse.Namespace
) -> tuple[Walkthrough, int]:
    """Return a walk-through, and how many of its values were recomputed."""
    walk = walk_through(translator, text, expected=options.expected or "")
    return walk, check(walk)


def print_warnings(walk: Walkthrough, translator: Translator) -> None:
    """Print the warnings that translating the sentence would print."""
    encoded = walk.tokenizer.encode_source(walk.text)
    translation = Translation(
        encoded,
        walk.translation,
        [step.produced for step in walk.steps],
        [TokenScore(step.produced_id, step.probability, []) for step in walk.steps],
        num_truncated=len(encoded.ids) - len(walk.source_ids),
    )
    for warning in translation_warnings(translation, translator):
        print(f"{printable_word(walk.text)}: {warning}", file=sys.stderr)


def selected_lines(
    renderer: TextRenderer, walk: Walkthrough, options: argparse.Namespace
) -> Iterator[str]:
    """Return the lines that --full, --step and --only ask for."""
    step, path = options.step, options.only
    if step is not None and not 1 <= step <= len(walk.steps):
        raise UsageError(f"--step {step}: '{walk.text[:40]}' has steps 1 to {len(walk.steps)}")
    if not (options.full or path):
        return renderer.compact(walk, step)
    blocks = [block for block in narrate(walk, 0) if step in (None, block.step)]
    paths = list(dict.fromkeys(block.path for block in blocks))
    if path and not any(is_within(each, path) for each in paths):
        where = f" in step {step}" if step else ""
        hint = did_you_mean(path, paths) or "; --full shows the parts in square brackets"
        raise UsageError(f"--only {path}: there is no such part{where}{hint}")
    return renderer.full(walk, step, path)
