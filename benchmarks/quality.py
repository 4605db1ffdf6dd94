"""What a config's model translates like, beside torch.nn.Transformer trained in the same way.

python -m benchmarks.quality --config tatoeba-bn --set data.train=… --seeds 1 2 3 --runs FOLDER

Ours is trained by train.py, the other one as benchmarks/baseline.py says, on the same batches for
as many steps. Both then translate the test split greedily. What is finished in FOLDER is not
trained again, what was stopped goes on. Minutes are those of the steps (ours: and of eval_mode
once, at the end) on the same cores: processes in ours, threads in torch's.
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
from minitransformer.command_line import run_command
from minitransformer.config import load_config
from minitransformer.data.dataset import prepare_dataset
from minitransformer.data.tokenizer import normalize
from minitransformer.errors import DataError, UserError
from minitransformer.evaluate import TestSet, read_test_set, split_test_set
from minitransformer.metrics import Score
from minitransformer.run import RunFolder
from minitransformer.settings import Config
from minitransformer.training.resume import changed_settings
from minitransformer.translator import Translator
from train import find_config

ROOT = Path(__file__).parent.parent
OURS, TORCHS = "ours", "torch.nn.Transformer"


class Result(NamedTuple):
    seed: int
    sentences: int
    parameters: int
    minutes: float
    bleu: Score
    chrf: Score


def is_finished(run: RunFolder, config: Config) -> bool:
    """Has it come to its last step? Refuses a run with other settings."""
    if not run.has_started:
        return False
    changed_settings(run, config)
    if (begun := run.load_config().training.steps) != config.training.steps:
        raise DataError(f"{run.path} is a run of {begun} steps; choose another --runs")
    return run.pointed("last") == config.training.steps


def train_ours(path: Path, config: Config, source: Path, sets: list[str]) -> None:
    """Train the run of a config file with these settings to its last step."""
    if is_finished(RunFolder(path), config):
        return
    finished = subprocess.run(
        [
            sys.executable, ROOT / "train.py", "--config", source,
            "--run", path, "--device", "cpu",
            *(argument for change in sets for argument in ("--set", change)),
        ],
        stdout=sys.stderr, check=False,
    )  # fmt: skip
    if finished.returncode:
        raise UserError(f"train.py ended with code {finished.returncode}")


def our_minutes(path: Path) -> float:
    lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    first, last = (json.loads(line) for line in (lines[0], lines[-1]))
    return (last["seconds"] - first["seconds"]) / 60


def scored(translations: list[str], test: TestSet, config: Config) -> tuple[Score, Score]:
    tokenizer = config.evaluation.bleu_tokenizer
    return (
        metrics.bleu(translations, test.references, tokenizer),
        metrics.chrf(translations, test.references),
    )


def results_of(seed: int, options: argparse.Namespace) -> dict[str, Result]:
    """Both systems with one seed: trained, if they are not yet, and scored."""
    steps = [] if options.steps is None else [f"training.steps={options.steps}"]
    sets = [*options.set, *steps, f"training.seed={seed}", "logging.tensorboard=false"]
    config = load_config(find_config(options.config), sets)
    # Only what is told at the end is asked for: eval_mode more often would be a part of the time.
    sets += [f"evaluation.every={config.training.steps}", "evaluation.train_pairs=1"]
    config = load_config(find_config(options.config), sets)
    baseline.refuse_what_torch_has_not(config)
    test = test_set(prepare_dataset(config).corpus.splits, options.references)
    path = options.runs / f"ours-seed-{seed}"
    train_ours(path, config, find_config(options.config), sets)

    translator = Translator.load(path, checkpoint="last")  # as torch's
    dataset = prepare_dataset(config, translator.tokenizer)
    if translator.data_fingerprint != dataset.fingerprint:
        raise DataError(f"{path} was begun with other sentence pairs; choose another --runs")
    ours = config.training.processes * config.training.threads
    torch.set_num_threads(options.threads or ours or os.cpu_count() or 1)
    translations = translator.translate(test.sources, batch_size=config.evaluation.batch_size)
    our_result = Result(
        seed, len(test.sources), parameters(translator.model), our_minutes(path),
        *scored([each.text for each in translations], test, config),
    )  # fmt: skip
    print(
        f"{OURS}, seed {seed}: BLEU {our_result.bleu.value}, chrF {our_result.chrf.value}",
        file=sys.stderr,
    )

    run = RunFolder(options.runs / f"torch-seed-{seed}")
    is_finished(run, config)
    training = baseline.Training(config, run, dataset)
    training.run()
    rows = [translator.truncate(dataset.tokenizer.encode_source(text).ids) for text in test.sources]
    ids = baseline.translate(
        training.model, rows, dataset.tokenizer.start_id, config.model.max_length,
        config.evaluation.batch_size,
    )  # fmt: skip
    theirs = Result(
        seed, len(test.sources), parameters(training.model), training.state.seconds / 60,
        *scored([dataset.tokenizer.target.decode(each) for each in ids], test, config),
    )  # fmt: skip
    print(
        f"{TORCHS}, seed {seed}: BLEU {theirs.bleu.value}, chrF {theirs.chrf.value}",
        file=sys.stderr,
    )
    return {OURS: our_result, TORCHS: theirs}


def test_set(splits: dict[str, Any], references: Path | None) -> TestSet:
    if "test" not in splits:
        raise DataError("no pairs to test with; name some with --set data.test=FILE")
    test = split_test_set(splits["test"])
    if not references:
        return test
    read = read_test_set(references, [])
    right = dict(zip(read.sources, read.references, strict=True))
    sources = [normalize(source).strip() for source in test.sources]
    if missing := [source for source in sources if source not in right]:
        raise DataError(
            f"{references} has no translation of {len(missing):,} of the {len(sources):,} test "
            f"sentences, such as '{missing[0]}'"
        )
    return test._replace(references=[right[source] for source in sources])


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def with_range(values: Iterable[float | None], digits: int) -> str:
    """`[1, 2, 3]` -> "2.0 (1.0 to 3.0)" for one digit."""
    values = [value for value in values if value is not None]
    if not values:  # sentences too short for the metric
        return "-"
    numbers = (mean(values), min(values), max(values))
    middle, least, most = (f"{number:.{digits}f}" for number in numbers)
    return middle if len(values) == 1 else f"{middle} ({least} to {most})"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="a YAML file, here or in configs/")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="instead of the config's")
    parser.add_argument("--runs", type=Path, required=True, help="a folder for what is trained")
    parser.add_argument(
        "--threads", type=int, default=0, help="of torch's; default: as many as ours has processes"
    )
    parser.add_argument(
        "--references",
        type=Path,
        help="what is right for each test sentence: source, tab, one translation or several",
    )
    parser.add_argument("--json", help="a file for all numbers")
    return parser.parse_args()


def main() -> int:
    options = parse()
    results = [results_of(seed, options) for seed in options.seeds]
    systems = {name: [result[name] for result in results] for name in (OURS, TORCHS)}
    print_table(
        ("system", "parameters", "minutes", "BLEU", "chrF"),
        (
            (
                name, f"{each[0].parameters:,}", with_range((one.minutes for one in each), 1),
                with_range((one.bleu.value for one in each), 2),
                with_range((one.chrf.value for one in each), 2),
            )
            for name, each in systems.items()
        ),
    )  # fmt: skip
    print(f"\n{systems[OURS][0].sentences:,} test sentences")
    for score in (systems[OURS][0].bleu, systems[OURS][0].chrf):
        print(f"\n{score.signature}")
    if options.json:
        write_json(options.json, {name: [one._asdict() for one in each]
                                  for name, each in systems.items()})  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
