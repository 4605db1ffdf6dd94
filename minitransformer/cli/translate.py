"""minitransformer translate "Let's go" """

import argparse
import contextlib
import sys
from itertools import takewhile
from pathlib import Path

from minitransformer.cli import (
    Parser,
    add_input_option,
    add_run_option,
    add_search_options,
    add_weights_options,
    check_input,
    check_output,
    check_search_options,
    chosen_run,
    load_translator,
    open_lines,
    raise_on_interrupt,
)
from minitransformer.errors import UsageError

NOT_TEXT = (".html", ".png", ".svg")
WALKTHROUGH = "--walkthrough"
EXPLAIN = "minitransformer explain"
OF_EXPLAIN = f"is an option of: {EXPLAIN} SENTENCE"
MOVED = {
    "--output": "was renamed to --to",
    "--attention": f"was replaced by: {EXPLAIN} --to maps.png SENTENCE",
    **dict.fromkeys(
        ("--full", "--step", "--only", "--precision", "--expected", "--merge-subwords", "--words"),
        OF_EXPLAIN,
    ),
}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "translate",
        "Translate sentences; without a SENTENCE or --input, read lines from standard input, or "
        "show a prompt on a terminal.",
        MOVED,
    )
    add_input_option(parser)
    add_run_option(parser)
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="a file for the translations, one per line"
    )
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
        WALKTHROUGH, action="store_true",
        help=f"show how each sentence is translated: the same as {EXPLAIN}, with its options",
    )  # fmt: skip
    add_weights_options(parser)
    add_search_options(parser)
    options = parser.parse(arguments)
    check_search_options(options)
    check_input(options)
    check_output(options.to, inputs=filter(None, [options.input]))
    if options.to and options.to.suffix.lower() in NOT_TEXT:
        raise UsageError(
            f"--to {options.to}: translations are plain text; to see how they are made: "
            f"{EXPLAIN} --to {options.to}"
        )
    if options.n_best is not None and options.n_best < 1:
        raise UsageError(f"--n-best {options.n_best}: must be at least 1")
    if options.n_best is not None and options.n_best > options.beam:
        raise UsageError(f"--n-best {options.n_best}: needs --beam {options.n_best} or more")
    if options.tokens and (options.scores or options.beam > 1):
        raise UsageError("--tokens does not translate: it cannot be combined with --scores, --beam")
    return options


def main(arguments: list[str]) -> int:
    before = list(takewhile(lambda each: each != "--", arguments))
    if WALKTHROUGH in before:
        from minitransformer.cli import explain

        arguments.remove(WALKTHROUGH)
        return explain.main(arguments)
    if any(each.startswith(f"{WALKTHROUGH}=") for each in before):
        raise UsageError(
            f"{WALKTHROUGH} takes no value: write {EXPLAIN} SENTENCE, with --to FILE for a file"
        )

    options = parse(arguments)
    reads_stdin = not (options.sentences or options.input)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    is_prompt = reads_stdin and is_terminal and not (options.to or options.tokens)
    if is_prompt and options.n_best:
        raise UsageError("--n-best is for sentences, files and pipes, not for the prompt")

    # A plain translation does not load the modules that explain one.
    from minitransformer.translator import translate_lines

    if is_prompt:
        from minitransformer.cli.prompt import run_prompt
    if options.tokens:
        from minitransformer.explain.token_view import token_lines

    raise_on_interrupt()
    translator = load_translator(chosen_run(options), options)
    if is_prompt:
        run_prompt(translator, scores=options.scores)
        return 0
    with contextlib.ExitStack() as files:
        lines = files.enter_context(open_lines(options))
        output = sys.stdout
        if options.to:
            output = files.enter_context(options.to.open("w", encoding="utf-8", newline="\n"))
        if options.tokens:
            for text in lines:
                tokens = token_lines(text, translator.tokenizer)
                print(*tokens, sep="\n", end="\n\n", file=output)
        else:
            translate_lines(
                translator, lines, output, scores=options.scores, n_best=options.n_best,
                batch_size=1 if reads_stdin else 64,  # from a pipe, each line at once
            )  # fmt: skip
    if options.to:
        print(f"wrote {options.to}", file=sys.stderr)
    return 0
