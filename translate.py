"""Translate with a trained run: python translate.py "Let's go" """

if __name__ == "__main__":
    from minitransformer.command_line import end_on_interrupt

    end_on_interrupt()

import argparse
import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from minitransformer import __version__
from minitransformer.command_line import (
    add_search_options,
    add_weights_options,
    check_search_options,
    load_translator,
    raise_on_interrupt,
    run_command,
    silence_stdout,
)
from minitransformer.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from minitransformer.translator import Translator

RUNS = Path("runs")
FORMATS = (".html", ".json", ".md")  # of walk-throughs as files
CONFLICTS = {  # options that do not go together
    "attention": ("walkthrough", "tokens", "scores", "output", "beam"),
    "walkthrough": ("tokens", "scores", "output", "beam"),
    "tokens": ("scores", "beam"),
}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Translate sentences; without any, read lines from standard input, "
        "or show a prompt on a terminal."
    )
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE")
    parser.add_argument("--run", type=Path, help="a run's folder (default: the newest in runs/)")
    parser.add_argument("--input", type=Path, help="a file of sentences, one per line")
    parser.add_argument("--output", type=Path, help="a file for the translations, one per line")
    parser.add_argument(
        "--scores", action="store_true",
        help="add each token's probability and, without --beam, the next most probable tokens",
    )  # fmt: skip
    parser.add_argument(
        "--n-best", type=int, metavar="N",
        help="with --beam: the N best, each as sentence number, translation and score",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", action="store_true",
        help="do not translate: show code points, graphemes, tokens, ids and unknowns",
    )  # fmt: skip
    parser.add_argument(
        "--walkthrough", nargs="?", const="", metavar="FILE",
        help="show how each sentence is translated, or write it to FILE.html, .json or .md",
    )  # fmt: skip
    parser.add_argument("--full", action="store_true", help="with --walkthrough: every stage")
    parser.add_argument("--step", type=int, help="with --walkthrough: one decoding step, from 1")
    parser.add_argument(
        "--only", metavar="PART",
        help="with --walkthrough: one part, such as decoder.layers.0.cross_attention",
    )  # fmt: skip
    parser.add_argument(
        "--precision", type=int, help="with --walkthrough: decimal places (default: 3)"
    )
    parser.add_argument("--expected", metavar="TEXT", help="with --walkthrough: the reference")
    parser.add_argument(
        "--attention", type=Path, metavar="FILE",
        help="also draw the attention of every token; FILE.png or FILE.svg",
    )  # fmt: skip
    parser.add_argument(
        "--merge-subwords", action="store_true",
        help="with --walkthrough: also show whole words; with --attention: draw them, not subwords",
    )  # fmt: skip
    add_weights_options(parser, all="each of them, with --walkthrough FILE.html")
    add_search_options(parser)
    parser.add_argument("--version", action="version", version=f"minitransformer {__version__}")
    options = parser.parse_args([replace_invalid_bytes(argument) for argument in arguments])
    check(options)
    return options


def replace_invalid_bytes(argument: str) -> str:
    """Replace bytes that are not UTF-8 by U+FFFD, as in files."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def check(options: argparse.Namespace) -> None:
    """Refuse options that do not go together, before torch is loaded."""

    def is_given(name: str) -> bool:
        value = getattr(options, name)
        return value > 1 if name == "beam" else value is not None and value is not False

    take_walkthrough_value(options)
    for name in ("full", "step", "only", "expected", "precision"):
        if is_given(name) and not is_given("walkthrough"):
            raise UsageError(f"--{name} goes with --walkthrough")
        if is_given(name) and options.walkthrough and name in ("full", "step", "only"):
            raise UsageError(f"--{name} is for the terminal; a file has everything")
    if options.merge_subwords and not (is_given("walkthrough") or options.attention):
        raise UsageError("--merge-subwords goes with --walkthrough or --attention")
    for name, others in CONFLICTS.items():
        for other in others:
            if is_given(name) and is_given(other):
                is_greedy = other == "beam" and name != "tokens"
                reason = ": it shows greedy translations" * is_greedy
                raise UsageError(f"--{name} does not go with --{other}{reason}")
    check_search_options(options)
    if options.n_best is not None and not 1 <= options.n_best <= options.beam:
        raise UsageError(f"--n-best {options.n_best}: must be from 1 to --beam ({options.beam})")
    if options.precision is not None and not 0 <= options.precision <= 9:
        raise UsageError(f"--precision {options.precision}: must be from 0 to 9")
    if (picture := options.attention) and picture.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"--attention {picture}: the file must end in .png or .svg")
    if picture and not picture.absolute().parent.is_dir():
        raise UsageError(f"--attention {picture}: there is no such folder")
    if options.sentences and options.input:
        raise UsageError("give sentences or --input, not both")
    if options.input and not options.input.exists():
        raise UsageError(f"--input {options.input}: no such file")
    for name in ("input", "attention"):
        path = getattr(options, name)
        if path and path.is_dir():
            raise UsageError(f"--{name} {path}: a folder, not a file")
    both = options.input and options.output and options.output.exists()
    if both and options.input.samefile(options.output):
        raise UsageError("--input and --output are the same file")


def take_walkthrough_value(options: argparse.Namespace) -> None:
    """Take a value of --walkthrough that names no file as the first sentence."""
    value, others = options.walkthrough or "", options.sentences or options.input
    if options.checkpoint == "all" and not value.endswith(".html"):
        raise UsageError("--checkpoint all goes with --walkthrough FILE.html")
    if options.walkthrough is None or value.endswith(FORMATS):
        return
    if others and re.fullmatch(r"\S+\.\w{1,5}", value):
        raise UsageError(f"--walkthrough {value}: the file must end in .html, .json or .md")
    for sentence in options.sentences:
        if re.fullmatch(r"\S+\.(html|json|md)", sentence):
            raise UsageError(f"the file comes first: --walkthrough {sentence} SENTENCE")
    if value:
        options.sentences.insert(0, value)
        options.walkthrough = ""


def newest_run() -> Path:
    """Return the run that was trained last, and print its name."""
    from minitransformer.run import runs_newest_first

    runs = runs_newest_first(RUNS)
    if not runs:
        raise CheckpointError(
            f"there is no trained run in {RUNS.resolve()}; "
            "make one with: python train.py --config tiny.yaml"
        )
    print(f"using {runs[0]}", file=sys.stderr)
    return runs[0]


def load_translators(run: Path, options: argparse.Namespace) -> dict[str, "Translator"]:
    """Load the translator of the chosen weights, or one for each checkpoint, oldest first."""
    from minitransformer.run import RunFolder
    from minitransformer.translator import Translator

    if options.checkpoint != "all":
        translator = load_translator(run, options)
        return {translator.checkpoint: translator}
    steps = sorted(RunFolder(run).steps())
    if not steps:
        raise CheckpointError(f"{run} has no checkpoint; train it first")
    return {
        f"step {step}": Translator.load(run, device=options.device, checkpoint=step)
        for step in steps
    }


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    explains = options.walkthrough is not None or options.attention
    reads_stdin = not (options.sentences or options.input or options.tokens or explains)
    is_prompt = reads_stdin and not options.output and sys.stdin.isatty() and sys.stdout.isatty()
    if is_prompt and options.n_best:
        raise UsageError("--n-best is for lines of a file or a pipe, not for the prompt")

    # Imported here: usage errors are found without torch, whose import takes seconds, and a plain
    # translation without the packages that explain one.
    from minitransformer.translator import read_lines, translate_lines

    if is_prompt:
        from minitransformer.prompt import run_prompt
    if explains:
        from minitransformer.explain import command
    if options.tokens:
        from minitransformer.explain.token_view import token_lines

    raise_on_interrupt()
    run = options.run or newest_run()
    translators = load_translators(run, options)
    translator = list(translators.values())[-1]
    if is_prompt:
        run_prompt(translator, scores=options.scores)
        return 0
    with contextlib.ExitStack() as files:
        output = sys.stdout
        if options.output:
            output = files.enter_context(options.output.open("w", encoding="utf-8", newline="\n"))
        batch_size = 64
        if options.sentences:
            lines = iter(options.sentences)
        elif options.input:
            lines = read_lines(files.enter_context(options.input.open("rb")))
        else:
            lines, batch_size = read_lines(sys.stdin.buffer), 1  # answer each line at once
        try:
            if (options.walkthrough or "").endswith(".html"):
                command.write_walkthrough_page(translators, lines, options)
            elif options.walkthrough is not None:
                command.show_walkthroughs(translator, lines, options)
            elif options.attention:
                command.write_attention(translator, lines, options, run)
            elif options.tokens:
                for text in lines:
                    tokens = token_lines(text, translator.tokenizer)
                    print(*tokens, sep="\n", end="\n\n", file=output)
            else:
                translate_lines(
                    translator, lines, output,
                    scores=options.scores, n_best=options.n_best, batch_size=batch_size,
                )  # fmt: skip
        except BrokenPipeError:  # the reader of the output, such as `head -1`, has closed it
            silence_stdout()
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:])))
