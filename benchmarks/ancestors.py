"""Why attention, why Transformers: python -m benchmarks.ancestors [--plot docs/ancestors.png]

python -m benchmarks.ancestors --pair multi30k multi30k-rnn --set data.train=… --runs FOLDER

The Transformer of one config, the recurrent model of another and that one without attention are
trained by train.py on the same batches for as many steps, and translate the test split greedily:
how well, how fast, and what becomes of long sentences. The same on the generated task `reverse`,
where sequences can be longer than any in training. What is finished in FOLDER is not trained again,
what was stopped goes on, and with --only and --part, parts can be trained at other times. Speeds
are measured in turns afterwards, on one thread: fresh models learn, trained ones translate.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch

from benchmarks.ancestors_panels import (
    Panel,
    Result,
    as_json,
    buckets_by_length,
    draw,
    print_panel,
    read_panels,
    span,
)
from benchmarks.ancestors_runs import (
    NAMES,
    RECURRENT_REVERSE,
    REVERSE,
    Contestant,
    Tested,
    contestants,
    decoding_rates,
    label,
    tested,
    training_rates,
)
from benchmarks.lengths import PAIRS, exact_by_length
from benchmarks.measuring import write_json
from benchmarks.quality import parameters, train_ours
from minitransformer import metrics
from minitransformer.command_line import run_command
from minitransformer.config import find_config
from minitransformer.data.tokenizer import normalize
from minitransformer.data.toy_tasks import TASKS
from minitransformer.evaluation import Sample

PARTS = ("corpus", "reverse")
BUCKETS = 5


def results(tests: list[Tested], by_length: list[list[float | None]]) -> list[Result]:
    return [
        Result(
            each.contestant.name,
            label(each.contestant.config.model),
            parameters(each.translator.model),
            trained,
            each.found.bleu.value,
            each.found.chrf.value,
            each.found.exact_match.mean,
            decoded,
            values,
        )
        for each, trained, decoded, values in zip(
            tests, training_rates(tests), decoding_rates(tests), by_length, strict=True
        )
    ]


def corpus_panel(name: str, tests: list[Tested]) -> Panel:
    """BLEU by the length of the source, in buckets."""
    first = tests[0]
    lengths = [words(sample.source) for sample in first.found.samples]
    buckets = buckets_by_length(lengths, BUCKETS)
    tokenizer = first.contestant.config.evaluation.bleu_tokenizer
    return Panel(
        name=name,
        unit="words of the source",
        metric="BLEU",
        lengths=list(map(span, buckets)),
        places=[mean(length for length in lengths if length in bucket) for bucket in buckets],
        longest=None,
        remarks=[
            circumstances(first),
            f"BLEU {first.found.bleu.signature}",
            f"chrF {first.found.chrf.signature}",
        ],
        results=results(
            tests, [bleu_by_length(each.found.samples, buckets, tokenizer) for each in tests]
        ),
    )


def reverse_panel(tests: list[Tested]) -> Panel:
    """Exact sequences by their length, and beyond those of training."""
    shares = [exact_by_length(each.translator, "reverse") for each in tests]
    places = list(shares[0])
    return Panel(
        name="reverse",
        unit="digits",
        metric="exact sequences, %",
        lengths=list(map(str, places)),
        places=[float(place) for place in places],
        longest=TASKS["reverse"].max_length,
        remarks=[circumstances(tests[0]), f"by length: {PAIRS} new sequences of each"],
        results=results(tests, [[100 * share for share in each.values()] for each in shares]),
    )


def circumstances(test: Tested) -> str:
    """What was equal for all."""
    training = test.contestant.config.training
    return (
        f"{len(test.found.samples):,} sentences ({test.split}), {training.steps:,} steps, "
        f"{training.processes} process{'es' * (training.processes > 1)}"
    )


def bleu_by_length(
    samples: list[Sample], buckets: list[range], tokenizer: str
) -> list[float | None]:
    scores = []
    for bucket in buckets:
        inside = [sample for sample in samples if words(sample.source) in bucket]
        references = [[normalize(sample.reference)] for sample in inside]
        translations = [sample.translation for sample in inside]
        scores.append(metrics.bleu(translations, references, tokenizer).value)
    return scores


def words(text: str) -> int:
    return len(text.split())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pair", nargs=2, default=("tiny", "tiny-rnn"), metavar=("TRANSFORMER", "RECURRENT"),
        help="two YAML files, here or in configs/ (default: tiny tiny-rnn)",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="for all, on the corpus"
    )
    parser.add_argument("--steps", type=int, help="on the corpus, instead of the configs'")
    parser.add_argument("--reverse-steps", type=int, help="instead of those of reverse.yaml")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/ancestors"), help="a folder for what is trained"
    )
    parser.add_argument("--only", choices=NAMES, nargs="+", default=NAMES, help="not all models")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS, help="not all corpora")
    parser.add_argument("--plot", help="a picture of it, such as ancestors.png")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--json", help="a file for all numbers")
    files.add_argument(
        "--from-json", type=Path, metavar="FILE", help="such a file to print and draw; no training"
    )
    return parser.parse_args()


def trained_panels(options: argparse.Namespace) -> list[Panel]:
    """Train what is not trained yet, and test all of it."""
    found = {part: asked(part, options) for part in PARTS if part in options.part}
    for each in (each for part in found.values() for each in part):
        train_ours(each.run, each.config, each.source, each.sets)
    torch.set_num_threads(1)
    panels = []
    for part, chosen in found.items():
        tests = list(map(tested, chosen))
        if part == "reverse":
            panels.append(reverse_panel(tests))
        else:
            panels.append(corpus_panel(find_config(options.pair[0]).stem, tests))
    return panels


def asked(part: str, options: argparse.Namespace) -> list[Contestant]:
    """A part's contestants that the options ask for."""
    if part == "reverse":
        sets = with_steps(REVERSE, options.reverse_steps)
        found = contestants(("reverse", "reverse"), sets, RECURRENT_REVERSE, options.runs)
    else:
        sets = with_steps(options.set, options.steps)
        found = contestants(options.pair, sets, (), options.runs)
    return [each for each in found if each.name in options.only]


def with_steps(sets: Sequence[str], steps: int | None) -> list[str]:
    return [*sets] if steps is None else [*sets, f"training.steps={steps}"]


def main() -> int:
    options = parse()
    panels = read_panels(options.from_json) if options.from_json else trained_panels(options)
    for panel in panels:
        print_panel(panel)
    if options.json:
        write_json(options.json, as_json(panels))
    if options.plot:
        draw(panels, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
