"""translate.py --walkthrough: sentences in, walk-throughs out, on the terminal or into a file."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from minitransformer.decoding import Translator
from minitransformer.errors import UsageError
from minitransformer.explain.checking import check
from minitransformer.explain.terminal_view import View, is_within, wants_colour
from minitransformer.explain.walkthrough import Walkthrough, walk_through
from minitransformer.explain.walkthrough_files import write_walkthroughs
from minitransformer.line_translation import remarks


def show_walkthroughs(
    translator: Translator, texts: Iterable[str], options: argparse.Namespace
) -> None:
    """Walk through each sentence, check every value, and show or write what was asked for."""
    walks = []
    view = View(precision=options.precision, colour=wants_colour())
    for text in texts:
        for remark in remarks(translator.translate([text])[0], translator):
            print(remark, file=sys.stderr)
        walk = walk_through(translator, text, expected=options.expected or "")
        count = check(walk)
        walks.append(walk)
        if options.walkthrough:
            continue
        if options.full or options.only:
            expect_part(walk, options.only)
            lines = view.full(walk, options.step, options.only)
        else:
            lines = view.compact(walk, options.step)
        if options.step is not None and not 1 <= options.step <= len(walk.steps):
            raise UsageError(f"--step {options.step}: there are {len(walk.steps)} steps, from 1")
        for line in lines:
            print(line)
        print(view.dim(f"checked: {count:,} values, each recomputed from those before it"))
        print()
    if not walks:
        raise UsageError("name a sentence to walk through")
    if options.walkthrough:
        write_walkthroughs(Path(options.walkthrough), walks, options.precision)


def expect_part(walk: Walkthrough, only: str | None) -> None:
    paths = list(dict.fromkeys(stage.path for _, stage in walk.stages()))
    if only is not None and not any(is_within(path, only) for path in [*paths, "why"]):
        raise UsageError(f"--only {only}: the parts are {', '.join(paths)}")
