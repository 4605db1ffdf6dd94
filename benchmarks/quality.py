"""Compare the translations of a config's model with those of torch.nn.Transformer.

python -m benchmarks.quality --config tatoeba-bn --set data.train=… --seeds 1 2 3 --runs FOLDER

Ours is trained by train.py, the other by benchmarks/baseline.py, on the same batches for as many
steps. Both then translate the test split greedily. Finished runs in FOLDER are not trained again,
interrupted ones are resumed. Minutes are those of the training steps (ours: and of one evaluation
at the end) on the same cores: processes in ours, threads in torch's.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from benchmarks import baseline
from benchmarks.measuring import print_table, write_json
from minitransformer import metrics
from minitransformer.cli import run_command
from minitransformer.cli.scores import TestSet, read_test_set, split_test_set
from minitransformer.config import find_config, load_config
from minitransformer.data.dataset import prepare_dataset
from minitransformer.data.tokenizer import normalize
from minitransformer.errors import DataError, UserError
from minitransformer.metrics import Score
from minitransformer.run import RunFolder
from minitransformer.settings import Config
from minitransformer.training.resume import changed_settings
from minitransformer.translator import Translator
from tests.support.overrides import overrides

ROOT = Path(__file__).parent.parent
OURS, TORCH = "ours", "torch.nn.Transformer"


class Result(NamedTuple):
    seed: int
    sentences: int
    parameters: int
    minutes: float
    bleu: Score
    chrf: Score


def is_finished(run: RunFolder, config: Config) -> bool:
    """Return whether a run has its last step; raise an error if its settings differ."""
    if not run.has_started:
        return False
    changed_settings(run, config)
    if (steps := run.load_config().training.steps) != config.training.steps:
        raise DataError(f"{run.path} is a run of {steps} steps; choose another --runs")
    return run.pointed("last") == config.training.steps


def train_ours(path: Path, config: Config, source: Path, sets: list[str]) -> None:
    """Train a run by train.py, unless it is finished."""
    if is_finished(RunFolder(path), config):
        return
    finished = subprocess.run(
        [
            sys.executable, ROOT / "train.py", "--config", source,
            "--run", path, "--device", "cpu",
            *overrides(*sets),
        ],
        stdout=sys.stderr, check=False,
    )  # fmt: skip
    if finished.returncode:
        raise UserError(f"train.py ended with code {finished.returncode}")


def training_minutes(path: Path) -> float:
    """Return the minutes between the first and the last row of a run's metrics."""
    lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    first, last = (json.loads(line) for line in (lines[0], lines[-1]))
    return (last["seconds"] - first["seconds"]) / 60


def score(translations: list[str], test: TestSet, config: Config) -> tuple[Score, Score]:
    """Return BLEU and chrF."""
    tokenizer = config.evaluation.bleu_tokenizer
    return (
        metrics.bleu(translations, test.references, tokenizer),
        metrics.chrf(translations, test.references),
    )


def compare_systems(seed: int, options: argparse.Namespace) -> dict[str, Result]:
    """Train both systems with one seed, unless they are trained, and score them."""
    steps = [] if options.steps is None else [f"training.steps={options.steps}"]
    sets = [*options.set, *steps, f"training.seed={seed}", "logging.tensorboard=false"]
    config = load_config(find_config(options.config), sets)
    # More evaluations would be part of the time.
    sets += [f"evaluation.every={config.training.steps}", "evaluation.train_pairs=1"]
    config = load_config(find_config(options.config), sets)
    baseline.require_torch_support(config)
    test = load_test_set(prepare_dataset(config).corpus.splits, options.references)
    path = options.runs / f"ours-seed-{seed}"
    train_ours(path, config, find_config(options.config), sets)

    translator = Translator.load(path, checkpoint="last")  # no averaging, as in torch's
    dataset = prepare_dataset(config, translator.tokenizer)
    if translator.data_fingerprint != dataset.fingerprint:
        raise DataError(f"{path} was begun with other sentence pairs; choose another --runs")
    our_threads = config.training.processes * config.training.threads
    torch.set_num_threads(options.threads or our_threads or os.cpu_count() or 1)
    translations = translator.translate(test.sources, batch_size=config.evaluation.batch_size)
    ours = Result(
        seed, len(test.sources), count_parameters(translator.model), training_minutes(path),
        *score([each.text for each in translations], test, config),
    )  # fmt: skip
    print(f"{OURS}, seed {seed}: BLEU {ours.bleu.value}, chrF {ours.chrf.value}", file=sys.stderr)

    run = RunFolder(options.runs / f"torch-seed-{seed}")
    is_finished(run, config)  # refuses other settings
    trainer = baseline.BaselineTrainer(config, run, dataset)
    trainer.fit()
    rows = [translator.truncate(dataset.tokenizer.encode_source(text).ids) for text in test.sources]
    ids = baseline.translate(
        trainer.model, rows, dataset.tokenizer.start_id, config.model.max_length,
        config.evaluation.batch_size,
    )  # fmt: skip
    theirs = Result(
        seed, len(test.sources), count_parameters(trainer.model), trainer.state.seconds / 60,
        *score([dataset.tokenizer.target.decode(each) for each in ids], test, config),
    )  # fmt: skip
    print(
        f"{TORCH}, seed {seed}: BLEU {theirs.bleu.value}, chrF {theirs.chrf.value}",
        file=sys.stderr,
    )
    return {OURS: ours, TORCH: theirs}


def load_test_set(splits: dict[str, Any], references: Path | None) -> TestSet:
    """Return the test split, with the references of a file if one is given."""
    if "test" not in splits:
        raise DataError("no pairs to test with; name some with --set data.test=FILE")
    test = split_test_set(splits["test"])
    if not references:
        return test
    file = read_test_set(references, [])
    by_source = dict(zip(file.sources, file.references, strict=True))
    sources = [normalize(source).strip() for source in test.sources]
    if missing := [source for source in sources if source not in by_source]:
        raise DataError(
            f"{references} has no translation of {len(missing):,} of the {len(sources):,} test "
            f"sentences, such as '{missing[0]}'"
        )
    return test._replace(references=[by_source[source] for source in sources])


def count_parameters(model: torch.nn.Module) -> int:
    """Return the number of parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def format_range(values: Iterable[float | None], digits: int) -> str:
    """Format `[1, 2, 3]` as "2.0 (1.0 to 3.0)" with one digit."""
    values = [value for value in values if value is not None]
    if not values:  # the sentences are too short for the metric
        return "-"
    numbers = (mean(values), min(values), max(values))
    average, lowest, highest = (f"{number:.{digits}f}" for number in numbers)
    return average if len(values) == 1 else f"{average} ({lowest} to {highest})"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="a YAML file, also one in configs/")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="training steps")
    parser.add_argument("--runs", type=Path, required=True, help="a folder for the runs")
    parser.add_argument(
        "--threads", type=int, default=0, help="torch's threads (default: as many as our processes)"
    )
    parser.add_argument(
        "--references",
        type=Path,
        help="references of each test sentence: source, tab, one or several translations",
    )
    parser.add_argument("--json", help="write all numbers to this file")
    return parser.parse_args()


def main() -> int:
    options = parse()
    results = [compare_systems(seed, options) for seed in options.seeds]
    systems = {name: [result[name] for result in results] for name in (OURS, TORCH)}
    print_table(
        ("system", "parameters", "minutes", "BLEU", "chrF"),
        (
            (
                name, f"{runs[0].parameters:,}", format_range((run.minutes for run in runs), 1),
                format_range((run.bleu.value for run in runs), 2),
                format_range((run.chrf.value for run in runs), 2),
            )
            for name, runs in systems.items()
        ),
    )  # fmt: skip
    print(f"\n{systems[OURS][0].sentences:,} test sentences")
    for metric in (systems[OURS][0].bleu, systems[OURS][0].chrf):
        print(f"\n{metric.signature}")
    if options.json:
        write_json(options.json, {name: [run._asdict() for run in runs]
                                  for name, runs in systems.items()})  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
