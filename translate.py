"""Translate with a trained run: python translate.py "Let's go" """

if __name__ == "__main__":
    from minitransformer.command_line import end_on_interrupt

    end_on_interrupt()

import argparse
import contextlib
import re
import sys
from pathlib import Path

from minitransformer import __version__
from minitransformer.command_line import (
    add_search_options,
    add_weights_options,
    check_search_options,
    load_translator,
    run_command,
    silence_stdout,
    take_interrupts,
)
from minitransformer.errors import CheckpointError, UsageError

RUNS = Path("runs")
FORMS = (".html", ".json", ".md")  # of walk-throughs as files


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Translate sentences; without any, read lines from standard input, "
        "or show a prompt on a terminal."
    )
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE")
    parser.add_argument("--run", type=Path, help="a run's folder (default: the newest in runs/)")
    parser.add_argument("--input", type=Path, help="a file of sentences, one a line")
    parser.add_argument("--output", type=Path, help="a file for the translations, one a line")
    parser.add_argument(
        "--scores", action="store_true",
        help="after a tab, each token's probability and, without a beam, its runners-up",
    )  # fmt: skip
    parser.add_argument(
        "--n-best", type=int, metavar="N",
        help="of a beam: the N best, each with its sentence's number before and its score after it",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", action="store_true",
        help="do not translate: show code points, graphemes, tokens, ids and unknowns",
    )  # fmt: skip
    parser.add_argument(
        "--walkthrough", nargs="?", const="", metavar="FILE",
        help="show how each sentence is translated; FILE.html, .json or .md writes it there",
    )  # fmt: skip
    parser.add_argument("--full", action="store_true", help="of a walk-through: every stage")
    parser.add_argument("--step", type=int, help="of a walk-through: one decoding step, from 1")
    parser.add_argument(
        "--only", metavar="PART",
        help="of a walk-through: a part, such as decoder.layers.0.cross_attention",
    )  # fmt: skip
    parser.add_argument(
        "--precision", type=int, help="of a walk-through: digits after the point (default: 3)"
    )
    parser.add_argument("--expected", metavar="TEXT", help="of a walk-through: the right answer")
    parser.add_argument(
        "--attention", type=Path, metavar="FILE",
        help="also draw where every token looked; FILE.png or FILE.svg",
    )  # fmt: skip
    parser.add_argument(
        "--words", action="store_true",
        help="of a walk-through or attention: words, too, where tokens are pieces of them",
    )  # fmt: skip
    add_weights_options(parser, all="for FILE.html")
    add_search_options(parser)
    parser.add_argument("--version", action="version", version=f"minitransformer {__version__}")
    options = parser.parse_args([readable(argument) for argument in arguments])
    check_walkthrough(options)
    if options.attention:
        check_attention(options)
    elif options.words and options.walkthrough is None:
        raise UsageError("--words goes with --walkthrough or --attention")
    check_search(options)
    if options.tokens and options.scores:
        raise UsageError("--tokens does not translate, so that there are no --scores")
    if options.sentences and options.input:
        raise UsageError("give sentences or --input, not both")
    if options.input and not options.input.exists():
        raise UsageError(f"--input {options.input}: no such file")
    if options.input and options.input.is_dir():
        raise UsageError(f"--input {options.input}: a folder, not a file")
    both = options.input and options.output and options.output.exists()
    if both and options.input.samefile(options.output):
        raise UsageError("--input and --output are the same file")
    return options


def readable(argument: str) -> str:
    """Bytes that are not UTF-8 become U+FFFD, as they do in files."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def check_walkthrough(options: argparse.Namespace) -> None:
    """Sort out what stands behind --walkthrough: a file to write, or already the sentence."""
    value, is_asked = options.walkthrough or "", options.walkthrough is not None
    others = options.sentences or options.input
    if others and re.fullmatch(r"\S+\.\w{1,5}", value) and not value.endswith(FORMS):
        forms = ", ".join(FORMS)
        raise UsageError(f"--walkthrough {value}: a walk-through is written as one of {forms}")
    if options.checkpoint == "all" and not value.endswith(".html"):
        raise UsageError("--checkpoint all goes with --walkthrough FILE.html")
    if is_asked and not value.endswith(FORMS):
        for sentence in options.sentences:
            if re.fullmatch(r"\S+\.(html|json|md)", sentence):
                raise UsageError(f"the file comes first: --walkthrough {sentence} SENTENCE")
    if value and not value.endswith(FORMS):
        options.sentences.insert(0, value)
        options.walkthrough = ""
    for name in ("full", "step", "only", "expected", "precision"):
        is_given = getattr(options, name) not in (None, False)
        if is_given and not is_asked:
            raise UsageError(f"--{name} goes with --walkthrough")
        if is_given and options.walkthrough and name in ("full", "step", "only"):
            raise UsageError(f"--{name} is for the terminal; a file has everything")
    if is_asked and (options.tokens or options.scores or options.output):
        raise UsageError("--walkthrough does not go with --tokens, --scores or --output")
    if options.precision is not None and not 0 <= options.precision <= 9:
        raise UsageError(f"--precision {options.precision}: from 0 to 9 digits")


def check_attention(options: argparse.Namespace) -> None:
    if options.attention.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"--attention {options.attention}: a picture's name ends in .png or .svg")
    if options.attention.is_dir():
        raise UsageError(f"--attention {options.attention}: a folder, not a file")
    if not options.attention.absolute().parent.is_dir():
        raise UsageError(f"--attention {options.attention}: there is no such folder")
    if options.tokens or options.scores or options.output or options.walkthrough is not None:
        raise UsageError("--attention does not go with --tokens, --scores, --output, --walkthrough")


def check_search(options: argparse.Namespace) -> None:
    check_search_options(options)
    if options.beam > 1 and (options.walkthrough is not None or options.attention):
        raise UsageError("--beam does not go with --walkthrough and --attention: both are greedy")
    if options.beam > 1 and options.tokens:
        raise UsageError("--tokens does not translate, so that there is no --beam")
    if options.n_best is not None and not 1 <= options.n_best <= options.beam:
        raise UsageError(f"--n-best {options.n_best}: from 1 to --beam, which is {options.beam}")


def newest_run() -> Path:
    from minitransformer.run import runs_newest_first

    runs = runs_newest_first(RUNS)
    if not runs:
        raise CheckpointError(
            f"there is no trained run in {RUNS.resolve()}; "
            "make one with: python train.py --config tiny.yaml"
        )
    print(f"using {runs[0]}", file=sys.stderr)
    return runs[0]


def main(arguments: list[str]) -> int:
    options = parse(arguments)

    # torch takes seconds to load, so mistakes on the command line are found before
    from minitransformer.explain.command import (
        show_walkthroughs,
        write_attention,
        write_walkthrough_page,
    )
    from minitransformer.explain.token_view import token_lines
    from minitransformer.prompt import run_prompt
    from minitransformer.run import RunFolder
    from minitransformer.translator import Translator, read_lines, translate_lines

    take_interrupts()
    run = options.run or newest_run()
    if options.checkpoint == "all":
        steps = sorted(RunFolder(run).steps())
        translators = {
            f"step {step}": Translator.load(run, device=options.device, checkpoint=step)
            for step in steps
        }
        if not translators:
            raise CheckpointError(f"{run} has no checkpoint; train it first")
        translator = translators[f"step {steps[-1]}"]
    else:
        translator = load_translator(run, options)
        translators = {translator.checkpoint: translator}
    reads_stdin = not (options.sentences or options.input or options.tokens)
    reads_stdin = reads_stdin and options.walkthrough is None and not options.attention
    if reads_stdin and not options.output and sys.stdin.isatty() and sys.stdout.isatty():
        if options.n_best:
            raise UsageError("--n-best is for lines of a file or a pipe, not for the prompt")
        run_prompt(translator, scores=options.scores)
        return 0
    with contextlib.ExitStack() as files:
        output = sys.stdout
        if options.output:
            output = files.enter_context(options.output.open("w", encoding="utf-8", newline="\n"))
        if options.sentences:
            lines, at_a_time = iter(options.sentences), 64
        elif options.input:
            lines, at_a_time = read_lines(files.enter_context(options.input.open("rb"))), 64
        else:
            lines, at_a_time = read_lines(sys.stdin.buffer), 1  # answer before the next line comes
        try:
            if (options.walkthrough or "").endswith(".html"):
                write_walkthrough_page(translators, lines, options)
                return 0
            if options.walkthrough is not None:
                show_walkthroughs(translator, lines, options)
                return 0
            if options.attention:
                write_attention(translator, lines, options, run)
                return 0
            if options.tokens:
                for text in lines:
                    print(
                        *token_lines(text, translator.tokenizer), sep="\n", end="\n\n", file=output
                    )
                return 0
            translate_lines(
                translator, lines, output,
                scores=options.scores, n_best=options.n_best, batch_size=at_a_time,
            )  # fmt: skip
        except BrokenPipeError:  # the reader, such as `head -1`, has seen enough
            silence_stdout()
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:])))
