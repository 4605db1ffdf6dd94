"""Compare a Transformer with RNNs: python -m benchmarks.ancestors [--plot docs/ancestors.png]

python -m benchmarks.ancestors --pair multi30k multi30k-rnn --set data.train=… --runs FOLDER

Trains the Transformer of one config, the recurrent model of another and the latter without
attention, by train.py, on the same batches for as many steps, and translates the test split
greedily: scores, scores by length, and speeds. The same on the generated task `reverse`, which is
also evaluated on longer sequences than those of training. Finished runs in FOLDER are not trained
again, interrupted ones are resumed; --only and --part select some of them. Speeds are measured
afterwards, in interleaved rounds on one thread: training from scratch, and decoding.
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
    buckets_by_length,
    format_bucket,
    plot,
    print_panel,
    read_panels,
    to_json,
)
from benchmarks.ancestors_runs import (
    NAMES,
    RECURRENT_REVERSE,
    REVERSE,
    EvaluatedModel,
    ModelRun,
    decoding_rates,
    evaluate_run,
    label,
    model_runs,
    training_rates,
)
from benchmarks.lengths import PAIRS_PER_LENGTH, exact_by_length
from benchmarks.measuring import write_json
from benchmarks.quality import count_parameters, train_ours
from minitransformer import metrics
from minitransformer.cli import run_command
from minitransformer.config import find_config
from minitransformer.data.tokenizer import normalize
from minitransformer.data.toy_tasks import TASKS
from minitransformer.evaluation import Sample

PARTS = ("corpus", "reverse")
BUCKETS = 5


def results(models: list[EvaluatedModel], by_length: list[list[float | None]]) -> list[Result]:
    """Measure the speeds of all models, and return these with their scores."""
    return [
        Result(
            evaluated.run.name,
            label(evaluated.run.config.model),
            count_parameters(evaluated.translator.model),
            training_rate,
            evaluated.evaluation.bleu.value,
            evaluated.evaluation.chrf.value,
            evaluated.evaluation.exact_match.mean,
            decoding_rate,
            scores,
        )
        for evaluated, training_rate, decoding_rate, scores in zip(
            models, training_rates(models), decoding_rates(models), by_length, strict=True
        )
    ]


def corpus_panel(name: str, models: list[EvaluatedModel]) -> Panel:
    """Return the results on a corpus, with BLEU by source length."""
    first = models[0]
    lengths = [count_words(sample.source) for sample in first.evaluation.samples]
    buckets = buckets_by_length(lengths, BUCKETS)
    tokenizer = first.run.config.evaluation.bleu_tokenizer
    return Panel(
        name=name,
        unit="words of the source",
        metric="BLEU",
        lengths=list(map(format_bucket, buckets)),
        positions=[mean(length for length in lengths if length in bucket) for bucket in buckets],
        max_train_length=None,
        remarks=[
            training_setup(first),
            f"BLEU {first.evaluation.bleu.signature}",
            f"chrF {first.evaluation.chrf.signature}",
        ],
        results=results(
            models,
            [bleu_by_length(each.evaluation.samples, buckets, tokenizer) for each in models],
        ),
    )


def reverse_panel(models: list[EvaluatedModel]) -> Panel:
    """Return the results on `reverse`, with exact matches by length, beyond that of training."""
    by_length = [exact_by_length(evaluated.translator, "reverse") for evaluated in models]
    lengths = list(by_length[0])
    return Panel(
        name="reverse",
        unit="digits",
        metric="exact sequences, %",
        lengths=list(map(str, lengths)),
        positions=[float(length) for length in lengths],
        max_train_length=TASKS["reverse"].max_length,
        remarks=[training_setup(models[0]), f"{PAIRS_PER_LENGTH} new sequences of each length"],
        results=results(models, [[100 * share for share in each.values()] for each in by_length]),
    )


def training_setup(evaluated: EvaluatedModel) -> str:
    """Describe what all models have in common."""
    training = evaluated.run.config.training
    return (
        f"{len(evaluated.evaluation.samples):,} sentences ({evaluated.split}), "
        f"{training.steps:,} steps, "
        f"{training.processes} process{'es' * (training.processes > 1)}"
    )


def bleu_by_length(
    samples: list[Sample], buckets: list[range], tokenizer: str
) -> list[float | None]:
    """Return the BLEU of the samples in each bucket of source lengths."""
    scores = []
    for bucket in buckets:
        inside = [sample for sample in samples if count_words(sample.source) in bucket]
        references = [[normalize(sample.reference)] for sample in inside]
        translations = [sample.translation for sample in inside]
        scores.append(metrics.bleu(translations, references, tokenizer).value)
    return scores


def count_words(text: str) -> int:
    """Return the number of words between spaces."""
    return len(text.split())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pair", nargs=2, default=("tiny", "tiny-rnn"), metavar=("TRANSFORMER", "RECURRENT"),
        help="two YAML files, also those in configs/ (default: tiny tiny-rnn)",
    )  # fmt: skip
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of all models on the corpus",
    )
    parser.add_argument("--steps", type=int, help="training steps on the corpus")
    parser.add_argument("--reverse-steps", type=int, help="training steps on `reverse`")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/ancestors"), help="a folder for the runs"
    )
    parser.add_argument("--only", choices=NAMES, nargs="+", default=NAMES, help="only these models")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS, help="only these parts")
    parser.add_argument("--plot", help="write a plot to this file, such as ancestors.png")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--json", help="write all numbers to this file")
    files.add_argument(
        "--from-json",
        type=Path,
        metavar="FILE",
        help="print and plot such a file, without training",
    )
    return parser.parse_args()


def trained_panels(options: argparse.Namespace) -> list[Panel]:
    """Train the runs that are not finished, and evaluate all of them."""
    parts = {part: requested_runs(part, options) for part in PARTS if part in options.part}
    for run in (run for runs in parts.values() for run in runs):
        train_ours(run.path, run.config, run.config_path, run.sets)
    torch.set_num_threads(1)
    panels = []
    for part, runs in parts.items():
        models = list(map(evaluate_run, runs))
        if part == "reverse":
            panels.append(reverse_panel(models))
        else:
            panels.append(corpus_panel(find_config(options.pair[0]).stem, models))
    return panels


def requested_runs(part: str, options: argparse.Namespace) -> list[ModelRun]:
    """Return the runs of a part that the options ask for."""
    if part == "reverse":
        sets = with_steps(REVERSE, options.reverse_steps)
        runs = model_runs(("reverse", "reverse"), sets, RECURRENT_REVERSE, options.runs)
    else:
        sets = with_steps(options.set, options.steps)
        runs = model_runs(options.pair, sets, (), options.runs)
    return [run for run in runs if run.name in options.only]


def with_steps(sets: Sequence[str], steps: int | None) -> list[str]:
    """Add the number of steps to settings, if one is given."""
    return [*sets] if steps is None else [*sets, f"training.steps={steps}"]


def main() -> int:
    options = parse()
    panels = read_panels(options.from_json) if options.from_json else trained_panels(options)
    for panel in panels:
        print_panel(panel)
    if options.json:
        write_json(options.json, to_json(panels))
    if options.plot:
        plot(panels, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
