"""What commands that translate have in common: which weights, on what, and how to search."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from minitransformer.errors import UsageError

if TYPE_CHECKING:
    from minitransformer.decoding import Translator


def add_weights_options(parser: argparse.ArgumentParser, **others: str) -> None:
    """Which checkpoint; `others` are further choices, each with what it is for."""
    parser.add_argument(
        "--checkpoint", choices=("last", "best", *others),
        help="default: what the run's config says, by average or best_metric; else last"
        + "".join(f"; {name}: {purpose}" for name, purpose in others.items()),
    )  # fmt: skip
    parser.add_argument(
        "--average", type=int, metavar="N", help="the mean of the last N checkpoints' weights"
    )


def check_weights_options(options: argparse.Namespace) -> None:
    if options.average is not None and not 1 <= options.average <= 1000:
        raise UsageError(f"--average {options.average}: from 1 to 1000")
    if options.average and options.checkpoint:
        raise UsageError("--average takes the last checkpoints; it does not go with --checkpoint")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beam", type=int, default=1, metavar="N",
        help="look at N translations side by side (default: 1, which is greedy)",
    )  # fmt: skip
    parser.add_argument(
        "--length-penalty", type=float, metavar="A",
        help="of a beam: scores are divided by length ** A (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto",
        help="auto (the default) is cuda where there is one, else cpu",
    )  # fmt: skip


def check_search_options(options: argparse.Namespace) -> None:
    if not 1 <= options.beam <= 1000:
        raise UsageError(f"--beam {options.beam}: from 1 to 1000")
    check_weights_options(options)
    penalty = options.length_penalty
    if penalty is not None and options.beam == 1:
        raise UsageError("--length-penalty goes with a --beam of 2 and more; 1 is greedy")
    if penalty is not None and not 0 <= penalty <= 10:
        raise UsageError(f"--length-penalty {penalty}: from 0 to 10")


def load_translator(run: Path, options: argparse.Namespace) -> "Translator":
    # translate.py finds mistakes on its command line before it loads torch, which takes seconds.
    from minitransformer.decoding import Translator
    from minitransformer.search import Search

    translator = Translator.load(
        run, device=options.device, checkpoint=options.checkpoint, average=options.average
    )
    penalty = 1.0 if options.length_penalty is None else options.length_penalty
    translator.search = Search(options.beam, penalty)
    return translator
