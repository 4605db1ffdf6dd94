"""What `minitransformer explain` prints and writes, once explain.py has parsed its options."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from minitransformer.cli import replace_invalid_bytes
from minitransformer.errors import (
    CheckpointError,
    UsageError,
    did_you_mean,
    escape_controls,
    printable_word,
)
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
from minitransformer.run import RunFolder
from minitransformer.search import TokenScore
from minitransformer.translator import Translation, Translator, translation_warnings

DEFAULT_PRECISION = 3
MAX_SENTENCES = 40  # in a picture


def load_translators(run: Path, options: argparse.Namespace) -> dict[str, Translator]:
    """Load the translator of the chosen weights, or one for each checkpoint, oldest first."""
    if options.checkpoint != "all":
        translator = Translator.load(
            run, device=options.device, checkpoint=options.checkpoint, average=options.average
        )
        return {translator.checkpoint: translator}
    steps = sorted(RunFolder(run).steps())
    if not steps:
        raise CheckpointError(f"{run} has no checkpoint; train it first")
    return {
        f"step {step}": Translator.load(run, device=options.device, checkpoint=step)
        for step in steps
    }


def show(translator: Translator, sentences: list[str], options: argparse.Namespace) -> None:
    """Print the walk-through of each sentence."""
    renderer = TextRenderer(precision=precision_of(options), colour=wants_colour())
    warn_of_reference(translator, options)
    for text in sentences:
        walk, count = checked_walk(translator, text, options)
        print_warnings(walk, translator)
        for line in selected_lines(renderer, walk, options):
            print(line)
        if merges_subwords(options, translator):
            print(f"\n{renderer.bold('By words')}", *renderer.words(walk, options.step), sep="\n")
        print(renderer.checked(count), end="\n\n")


def write(
    translators: dict[str, Translator], sentences: list[str], options: argparse.Namespace
) -> None:
    """Write the walk-throughs of all sentences as a page, Markdown or JSON."""
    last = list(translators.values())[-1]
    warn_of_reference(last, options)
    walks = {
        name: [checked_walk(translator, text, options)[0] for text in sentences]
        for name, translator in translators.items()
    }
    last_walks = list(walks.values())[-1]
    for walk in last_walks:
        print_warnings(walk, last)
    precision, words = precision_of(options), merges_subwords(options, last)
    if options.to.suffix.lower() == ".html":
        from minitransformer.explain.page import write_page

        write_page(options.to, walks, precision, words=words)
    else:
        write_walkthroughs(options.to, last_walks, precision, words=words)


def write_maps(
    translator: Translator, sentences: list[str], options: argparse.Namespace, run: Path
) -> None:
    """Translate each sentence and draw its attention maps, that of the best head first."""
    # loads matplotlib
    from minitransformer.explain.heatmaps import (
        missing_note,
        sentence_picture,
        stacked,
        write_picture,
    )

    if len(sentences) > MAX_SENTENCES:
        raise UsageError(
            f"a picture holds at most {MAX_SENTENCES} sentences; there are {len(sentences):,}"
        )
    best = load_best_head(run, translator.checkpoint)
    pictures = []
    words: set[str] = set()
    for text in sentences:
        walk = walk_through(translator, text)
        if not walk.has_attention:
            raise UsageError(f"--to {options.to}: {NO_ATTENTION}")
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
    write_picture(options.to, stacked(pictures, 24))


def merges_subwords(options: argparse.Namespace, translator: Translator) -> bool:
    """Return whether whole words are asked for, and differ from tokens."""
    return bool(options.merge_subwords) and translator.tokenizer.source.token_name == "piece"


def precision_of(options: argparse.Namespace) -> int:
    return DEFAULT_PRECISION if options.precision is None else int(options.precision)


def reference_of(options: argparse.Namespace) -> str:
    return replace_invalid_bytes(options.expected or "")


def warn_of_reference(translator: Translator, options: argparse.Namespace) -> None:
    """Warn of words of --expected that the run can never produce."""
    for word in translator.tokenizer.encode_target(reference_of(options)).unknown:
        print(f"--expected: unknown word '{printable_word(word)}', never produced", file=sys.stderr)


def checked_walk(
    translator: Translator, text: str, options: argparse.Namespace
) -> tuple[Walkthrough, int]:
    """Return a walk-through, and how many of its values were recomputed."""
    walk = walk_through(translator, text, expected=reference_of(options))
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
    if not options.full and path is None:
        return renderer.compact(walk, step)
    blocks = [block for block in narrate(walk, 0) if step in (None, block.step)]
    paths = list(dict.fromkeys(block.path for block in blocks))
    if path is not None and not any(is_within(each, path) for each in paths):
        where = f" in step {step}" if step else ""
        ending = [each for each in paths if each.endswith(f".{path}")]
        hint = f": did you mean '{ending[0]}'?" if ending else did_you_mean(path, paths)
        hint = hint or "; --full shows the parts in square brackets"
        raise UsageError(f"--only {path}: there is no such part{where}{hint}")
    return renderer.full(walk, step, path)
