"""minitransformer evaluate --split valid"""

import argparse
import sys
from pathlib import Path

from minitransformer.cli import (
    Parser,
    add_run_option,
    add_search_options,
    add_weights_options,
    check_output,
    check_search_options,
    chosen_run,
    raise_on_interrupt,
)
from minitransformer.errors import UsageError

MOVED = {"--json": "was renamed to --to", "--against": "was renamed to --compare"}
DEFAULT_PAIRS = 200


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "evaluate",
        "Score a trained run on a split of the corpus that its config names, or on files; compare "
        "it with another run; or find the head that aligns words best.",
        MOVED,
    )
    add_run_option(parser)
    parser.add_argument(
        "--split",
        choices=("train", "valid", "test"),
        help="default: test, or valid where there is no test split",
    )
    parser.add_argument(
        "--input", type=Path, metavar="FILE",
        help="score on these sentences instead, one per line; without --references, each is "
        "followed by tab-separated references",
    )  # fmt: skip
    parser.add_argument(
        "--references", type=Path, nargs="+", action="extend", metavar="FILE",
        help="translations of --input, line by line; each file is one more reference",
    )  # fmt: skip
    parser.add_argument(
        "--compare", type=Path, metavar="RUN",
        help="another run: print both scores and the p-value of their difference",
    )  # fmt: skip
    parser.add_argument(
        "--alignment", action="store_true",
        help="of a run on a generated task: compare the attention of each head with the gold "
        "alignment; the run's pictures then begin with the best head",
    )  # fmt: skip
    parser.add_argument(
        "--pairs", type=int, help=f"with --alignment: held-out pairs (default: {DEFAULT_PAIRS})"
    )
    parser.add_argument("--to", type=Path, metavar="FILE.json", help="also write the scores there")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="change a data.… or evaluation.… setting, such as data.test=other.tsv (repeatable)",
    )  # fmt: skip
    add_weights_options(parser)
    add_search_options(parser)
    options = parser.parse(arguments)
    check(options)
    return options


def check(options: argparse.Namespace) -> None:
    """Refuse options that do not go together, before torch is loaded."""
    check_search_options(options)
    check_output(options.to, [".json"], filter(None, [options.input, *(options.references or [])]))
    if options.references and not options.input:
        raise UsageError("--references goes with --input")
    if options.input and options.split:
        raise UsageError("--split or --input: choose one of them")
    for change in options.set:
        if not change.startswith(("data.", "evaluation.")):
            raise UsageError(f"--set {change}: only data.… and evaluation.… can be changed here")
        if change.startswith(("evaluation.average_checkpoints", "evaluation.best_metric")):
            raise UsageError(f"--set {change}: use --average or --checkpoint instead")
    if options.pairs is not None and not options.alignment:
        raise UsageError("--pairs goes with --alignment")
    if options.pairs is not None and options.pairs < 1:
        raise UsageError(f"--pairs {options.pairs}: at least 1")
    if options.alignment:
        for name in ("split", "input", "compare", "set"):
            if getattr(options, name):
                raise UsageError(f"--{name} does not go with --alignment")
        if options.beam > 1:
            raise UsageError("--beam does not go with --alignment: nothing is searched for")


def main(arguments: list[str]) -> int:
    options = parse(arguments)

    from minitransformer.cli import scores

    raise_on_interrupt()
    run = chosen_run(options)
    if options.alignment:
        found = scores.align(run, options.pairs or DEFAULT_PAIRS, options)
    else:
        found = scores.score(run, options)
    if options.to:
        scores.write_json(options.to, found)
        print(f"wrote {options.to}", file=sys.stderr)
    return 0
