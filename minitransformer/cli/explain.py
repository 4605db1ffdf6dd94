"""minitransformer explain "I go to school", with --to page.html or another file

Every value of a translation: in the terminal, as a page, Markdown or JSON, or as pictures of the
attention.
"""

import argparse
import sys
from pathlib import Path

from minitransformer.cli import (
    Parser,
    add_device_option,
    add_input_option,
    add_run_option,
    add_weights_options,
    check_input,
    check_output,
    check_weights_options,
    chosen_run,
    open_lines,
    raise_on_interrupt,
)
from minitransformer.errors import UsageError

PICTURES = (".png", ".svg")
FILES = (".html", ".md", ".json", *PICTURES)
SUCH_AS = 'such as: minitransformer explain "I go to school"'
MOVED = {
    "--output": "was renamed to --to",
    "--attention": "was replaced by --to maps.png",
    "--words": "was renamed to --merge-subwords",
    **dict.fromkeys(("--scores", "--tokens"), "is an option of translate"),
    **dict.fromkeys(
        ("--beam", "--length-penalty", "--n-best"),
        "is an option of translate; explain shows the greedy translation",
    ),
}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "explain",
        "Show how sentences are translated, from embeddings to words: in the terminal, or in a "
        "file of --to.",
        MOVED,
    )
    add_input_option(parser)
    add_run_option(parser)
    parser.add_argument(
        "--to", type=Path, metavar="FILE",
        help="page.html: a page to click through; walk.md, walk.json: every number; maps.png, "
        "maps.svg: pictures of the attention",
    )  # fmt: skip
    parser.add_argument("--full", action="store_true", help="in the terminal: every stage")
    parser.add_argument("--step", type=int, help="in the terminal: one decoding step, from 1")
    parser.add_argument(
        "--only", metavar="PART",
        help="in the terminal: one of the parts that --full shows in square brackets, such as "
        "decoder.layers.0.cross_attention",
    )  # fmt: skip
    parser.add_argument("--precision", type=int, help="decimal places, 0 to 9 (default: 3)")
    parser.add_argument("--expected", metavar="TEXT", help="the right translation, to compare with")
    parser.add_argument(
        "--merge-subwords", action="store_true",
        help="also show whole words; in pictures, words instead of subwords",
    )  # fmt: skip
    add_weights_options(parser, all="each of them, with --to page.html")
    add_device_option(parser)
    options = parser.parse(arguments)
    check(options)
    return options


def check(options: argparse.Namespace) -> None:
    """Refuse options that do not go together, before torch is loaded."""
    check_weights_options(options)
    for sentence in options.sentences:
        if Path(sentence).suffix.lower() in FILES and not set(sentence) & set(" \t"):
            raise UsageError(
                f"'{sentence}' is a file, not a sentence: did you mean --to {sentence}?"
            )
    check_input(options)
    check_output(options.to, FILES, filter(None, [options.input]))
    suffix = options.to.suffix.lower() if options.to else ""
    for name in ("full", "step", "only"):
        if suffix and getattr(options, name) not in (None, False):
            raise UsageError(f"--{name} is for the terminal; a file has everything")
    for name in ("precision", "expected"):
        if suffix in PICTURES and getattr(options, name) is not None:
            raise UsageError(f"--{name} does not go with --to {options.to}, a picture")
    if options.checkpoint == "all" and suffix != ".html":
        raise UsageError("--checkpoint all goes with --to page.html")
    if options.precision is not None and not 0 <= options.precision <= 9:
        raise UsageError(f"--precision {options.precision}: must be from 0 to 9")
    if not (options.sentences or options.input) and sys.stdin.isatty():
        raise UsageError(f"give a sentence, {SUCH_AS}")


def main(arguments: list[str]) -> int:
    options = parse(arguments)

    from minitransformer.cli import walkthroughs

    raise_on_interrupt()
    run = chosen_run(options)
    translators = walkthroughs.load_translators(run, options)
    with open_lines(options) as lines:
        sentences = [line for line in lines if line.strip()]
    if not sentences:
        raise UsageError(f"there is no sentence to explain; {SUCH_AS}")
    if options.expected is not None and len(sentences) > 1:
        raise UsageError("--expected is for one sentence; there are several")
    translator = list(translators.values())[-1]
    if options.to is None:
        walkthroughs.show(translator, sentences, options)
    elif options.to.suffix.lower() in PICTURES:
        walkthroughs.write_maps(translator, sentences, options, run)
    else:
        walkthroughs.write(translators, sentences, options)
    if options.to:
        print(f"wrote {options.to}", file=sys.stderr)
    return 0
