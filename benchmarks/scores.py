"""Score runs of one config with several seeds, with greedy and with beam search.

python -m benchmarks.scores runs/seed-1 runs/seed-2 runs/seed-3 --beam 5 [--split valid]

Each number is the mean over the runs, with its range. Minutes are those that a run records: all
steps and evaluations, without loading and saving.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.measuring import print_table, write_json
from benchmarks.quality import count_parameters, format_range
from minitransformer.cli import run_command
from minitransformer.cli.scores import split_test_set, text_scores, translated
from minitransformer.config import changed_keys
from minitransformer.data.dataset import prepare_dataset
from minitransformer.errors import UsageError, UserError
from minitransformer.run import RunFolder
from minitransformer.search import GREEDY_SEARCH, SearchConfig
from minitransformer.translator import Translator

COLUMNS = {"bleu": "BLEU", "bleu_lowercase": "BLEU, lower case", "chrf": "chrF"}


def score_run(
    run: Path, split: str, searches: dict[str, SearchConfig]
) -> dict[str, dict[str, object]]:
    """Return a run's scores on a split, with each search."""
    folder = RunFolder(run)
    config, translator = folder.load_config(), Translator.load(run)
    dataset = prepare_dataset(config, translator.tokenizer)
    if split not in dataset.corpus.splits:
        raise UserError(f"{dataset.corpus.name} has no {split} split; choose another --split")
    if dataset.fingerprint != translator.data_fingerprint:
        raise UserError(f"{run} was trained with other pairs than {dataset.corpus.name} has now")
    test, scores = split_test_set(dataset.corpus.splits[split]), {}
    for name, translator.search in searches.items():
        translations = translated(translator, test)
        scores[name] = text_scores(translations, test.references, config.evaluation.bleu_tokenizer)
        details = scores[name]["bleu_details"]
        print(f"{run} ({translator.checkpoint}), {split}, {name}: {details}", file=sys.stderr)
    return scores


def require_same_settings(runs: list[Path]) -> None:
    """Raise an error unless all runs are finished and differ in nothing but their seeds."""
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError("a run is named twice")
    first, *others = configs = [RunFolder(run).load_config() for run in runs]
    for run, config in zip(runs, configs, strict=True):
        if (step := RunFolder(run).pointed("last") or 0) < config.training.steps:
            raise UserError(f"{run} is at step {step} of {config.training.steps}")
    for run, other in zip(runs[1:], others, strict=True):
        if changed := set(changed_keys(first, other)) - {"training.seed", "training.processes"}:
            raise UserError(f"{runs[0]} and {run} differ in {', '.join(sorted(changed))}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="finished runs of one config")
    parser.add_argument("--split", choices=("valid", "test"), default="test")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--json", help="write all numbers to this file")
    return parser.parse_args()


def main() -> int:
    options = parse()
    if not 1 <= options.beam <= 1000:
        raise UsageError(f"--beam {options.beam}: from 1 to 1000")
    require_same_settings(options.runs)
    searches = {"greedy": GREEDY_SEARCH, f"beam {options.beam}": SearchConfig(options.beam)}
    scores = [score_run(run, options.split, searches) for run in options.runs]
    folders = [RunFolder(run) for run in options.runs]
    states = [folder.load_newest([], for_training=False).state for folder in folders]
    minutes = format_range([state.seconds / 60 for state in states], 1)
    size = count_parameters(Translator.load(options.runs[0]).model)
    runs = f"{len(folders)} run{'s' * (len(folders) > 1)} of {states[0].step:,} steps"
    print(f"\n{runs}, {size:,} parameters, {minutes} minutes")
    print_table(
        (options.split, *COLUMNS.values()),
        (
            (name, *(format_range([each[name][key] for each in scores], 2) for key in COLUMNS))
            for name in searches
        ),
    )
    for key in COLUMNS:
        print(f"\n{scores[0]['greedy'][f'{key}_signature']}")
    if options.json:
        write_json(
            options.json, {str(run): each for run, each in zip(options.runs, scores, strict=True)}
        )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
