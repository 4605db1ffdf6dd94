"""Checks of a config with its corpus, and of a run: its files, its corpus and its trained model."""

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from minitransformer import __version__
from minitransformer.checkpoint import TrainerState, read_checkpoint
from minitransformer.config import load_config
from minitransformer.data.batching import fold_in
from minitransformer.data.corpus import SPLITS
from minitransformer.data.dataset import Dataset, prepare_dataset
from minitransformer.data.tokenizer import PAD_ID, PairTokenizer
from minitransformer.doctor.model_checks import (
    check_overfitting,
    describe_count,
    make_context,
    quick_checks,
    random_pairs,
    sample_pairs,
)
from minitransformer.doctor.report import FAILED, OK, WARNING, CheckResult, DoctorReport
from minitransformer.errors import CheckpointError, DataError, UserError
from minitransformer.model.base import build_model
from minitransformer.run import RunFolder
from minitransformer.settings import Config
from minitransformer.storage import read_own_file
from minitransformer.training.distributed import set_threads
from minitransformer.training.divergence import DIVERGED_FOLDER
from minitransformer.training.trainer import INITIALIZATION
from minitransformer.translator import Translator

MAX_METRICS_BYTES = 2**30
SERIOUS_DEFECTS = {  # which distort training or its scores, with the remedy
    "malformed": "check these rows: data.columns may name other columns, or a separator is missing",
    "not_utf8": "convert the file to UTF-8, so that its characters are read correctly",
    "header": "other tools read the first row as a sentence pair: remove it from the file",
    "overlap": "held-out scores are too high; with filters.overlap: skip, training leaves such "
    "pairs out",
}


def print_machine() -> None:
    """Print the versions and the hardware that everything else depends on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA"
    print(
        f"minitransformer {__version__}, Python {platform.python_version()}, "
        f"torch {torch.__version__} on {platform.system()} {platform.machine()}\n"
        f"{cores} cores, torch uses {torch.get_num_threads()}; {gpu}",
        flush=True,
    )


def check_config(report: DoctorReport, config: Config) -> None:
    """Check a config's corpus, and a new model of its shape."""
    report.section("The corpus")
    dataset = check_corpus(report, config)
    if dataset is None:
        return
    set_threads(config.training.threads, world_size=1)
    torch.manual_seed(fold_in(config.training.seed, INITIALIZATION))
    tokenizer = dataset.tokenizer
    model = build_model(config.model, len(tokenizer.source), len(tokenizer.target), PAD_ID)
    pairs = sample_pairs(dataset.encoded["train"])
    # Initial weights from a file are checked when training loads them.
    without = ", without training.init_from" if config.training.init_from else ""
    report.section(f"A fresh model{without}, on {describe_count(pairs)} of the corpus")
    report.add(quick_checks(make_context(model, pairs, tokenizer, config), is_fresh=True))
    report.add([check_overfitting(pairs, tokenizer, config)])


def check_run(report: DoctorReport, path: Path, changes: list[str]) -> None:
    """Check a run's folder, its corpus, and the model that it translates with."""
    run = RunFolder(path)
    run.load_config()  # raises an error if this is no run
    config = load_config(path / "config.yaml", changes)
    report.section(f"The run {path}")
    valid = check_files(report, run)
    try:
        tokenizer = run.load_tokenizer(config)
    except UserError as error:
        report.add([CheckResult("tokenizer", FAILED, str(error))])
        return
    report.section("Its corpus")
    dataset = check_corpus(report, config, tokenizer)
    if not valid:
        return
    if dataset:
        report.add([check_fingerprint(dataset, valid[0], config)])
    try:
        translator = Translator.load(path)
    except UserError as error:
        report.add([CheckResult("weights", FAILED, str(error))])
        return
    set_threads(config.training.threads, world_size=1)
    tokenizer = translator.tokenizer
    if dataset:
        pairs, origin = sample_pairs(dataset.encoded["train"]), "of the corpus"
    else:
        pairs = random_pairs(len(tokenizer.source), len(tokenizer.target))
        origin = "of random tokens"
    steps = f"{translator.checkpoint} of {config.training.steps:,} steps"
    report.section(f"Its model ({steps}), on {describe_count(pairs)} {origin}")
    context = make_context(translator.model, pairs, tokenizer, config)
    report.add(quick_checks(context, is_fresh=False))


def check_corpus(
    report: DoctorReport, config: Config, tokenizer: PairTokenizer | None = None
) -> Dataset | None:
    """Report the size of each split and its defects; returns None if the corpus is unusable."""
    try:
        dataset = prepare_dataset(config, tokenizer)
    except DataError as error:
        # A trained run translates without its corpus, but training needs it.
        status = WARNING if tokenizer else FAILED
        report.add([CheckResult("corpus", status, str(error))])
        return None
    splits = dataset.corpus.splits
    for name in SPLITS:
        if name not in splits:
            continue
        split = splits[name]
        count, dropped = len(split), split.report.dropped
        kept = f"{count:,} pair{'s' * (count != 1)} kept, {dropped:,} dropped"
        report.add(
            [
                CheckResult(
                    f"corpus, {name}",
                    OK if count >= dropped else WARNING,
                    kept + split.report.set_aside,
                    "more pairs are dropped than kept, for the reasons below",
                ),
                *(
                    CheckResult(
                        f"corpus, {name}",
                        WARNING if defect in SERIOUS_DEFECTS else OK,
                        line,
                        SERIOUS_DEFECTS.get(defect, ""),
                    )
                    for defect, line in zip(split.report.defects, split.report.lines(), strict=True)
                ),
            ]
        )
    if "valid" not in splits:
        advice = "without them, overfitting is not noticed: set data.valid or data.split_valid"
        report.add([CheckResult("corpus, valid", WARNING, "no held-out pairs", advice)])
    return dataset


def check_fingerprint(dataset: Dataset, state: TrainerState, config: Config) -> CheckResult:
    """Check that the corpus is still the one that the run was trained with."""
    name, corpus = "corpus unchanged", dataset.corpus.name
    if dataset.fingerprint == state.data_fingerprint:
        return CheckResult(name, OK, f"{corpus} is what the run was trained with")
    measured = f"{corpus} has other sentence pairs than the run was trained with"
    if state.step >= config.training.steps:
        return CheckResult(name, WARNING, measured, "its scores cannot be reproduced")
    advice = "the run cannot be resumed: restore the corpus, or use --fresh"
    return CheckResult(name, FAILED, measured, advice)


def check_files(report: DoctorReport, run: RunFolder) -> list[TrainerState]:
    """Report the state of a run's files; return the states of valid checkpoints, newest first."""
    checksums = run.newest_content()[1]["tokenizer"]
    report.add(check_tokenizer(run, checksums))
    valid = []
    for step in run.steps():
        path = run.step_path(step)
        try:
            checkpoint = read_checkpoint(path, step, checksums or {}, for_training=True)
        except CheckpointError as error:
            advice = "training skips it, and resumes from the newest valid one"
            report.add([CheckResult(path.name, FAILED, str(error), advice)])
        else:
            valid.append(checkpoint.state)
            megabytes = sum(file.stat().st_size for file in path.iterdir()) / 1e6
            measured = f"all checksums match ({megabytes:,.1f} MB)"
            report.add([CheckResult(path.name, OK, measured)])
    if not run.has_started:
        advice = "training starts this run from its first step"
        report.add([CheckResult("checkpoints", WARNING, "none yet", advice)])
    elif not valid:
        advice = "minitransformer train --fresh starts over, and moves this run aside"
        report.add([CheckResult("checkpoints", FAILED, "none of them is valid", advice)])
    if diverged := sorted((run.path / DIVERGED_FOLDER).glob("step-*")):
        advice = f"minitransformer doctor --replay {diverged[-1]}"
        measured = f"{diverged[-1].name} produced NaN or Inf"
        report.add([CheckResult("divergence", WARNING, measured, advice)])
    if valid:
        report.add(check_pointers(run, valid[0]))
        report.add([check_leftovers(run), check_metrics(run.metrics, valid[0])])
    return valid


def check_tokenizer(run: RunFolder, checksums: dict[str, str] | None) -> Iterator[CheckResult]:
    """Yield a failure if the tokenizer is not the one that the checkpoints belong to."""
    try:
        if checksums is None or run.tokenizer_checksums() == checksums:
            return
        damage = "not the one that the checkpoints were saved with"
    except CheckpointError as error:
        damage = str(error)
    advice = "the command that trained this run restores it from the corpus; keep the other files"
    yield CheckResult("tokenizer", FAILED, damage, advice)


def check_pointers(run: RunFolder, newest: TrainerState) -> Iterator[CheckResult]:
    """Check that `last` and `best` name the steps that the newest checkpoint expects."""
    pointers = [("last", newest.step, "no command reads it; the next save corrects it")]
    if (best := newest.best_step) is not None:
        if best not in run.steps():
            advice = "the best weights are lost; --checkpoint last takes the last ones"
        elif run.pointed("best") is None:
            advice = "the best checkpoint is found without it"
        else:
            file, folder = run.checkpoints / "best", run.step_path(best).name
            advice = f"translating loads the step that it names; write {folder} into {file}"
        pointers.append(("best", best, advice))
    for name, expected, advice in pointers:
        step = run.pointed(name)
        measured = "names no step" if step is None else f"names step {step}"
        if expected not in run.steps():
            measured += f", and step {expected} does not exist"
            yield CheckResult(name, FAILED, measured, advice)
        elif step != expected:
            yield CheckResult(name, WARNING, f"{measured} instead of step {expected}", advice)
        else:
            yield CheckResult(name, OK, measured)


def check_leftovers(run: RunFolder) -> CheckResult:
    """Check for files of saves that were killed."""
    folders = (run.path, run.checkpoints)
    names = ", ".join(path.name for each in folders for path in sorted(each.glob(".*.part")))
    if not names:
        return CheckResult("unfinished saves", OK, "none")
    return CheckResult(
        "unfinished saves", WARNING,
        f"{names}: from a save that was killed, or that is still running",
        "harmless: they are never read, and the next save replaces them",
    )  # fmt: skip


def check_metrics(path: Path, state: TrainerState) -> CheckResult:
    """Check that all rows up to the newest checkpoint exist and can be read."""
    content = read_own_file(path, MAX_METRICS_BYTES) if path.exists() else b""
    name, advice = "metrics.jsonl", "curves will have a gap; training does not need these rows"
    if (missing := state.metrics_bytes - len(content)) > 0:
        measured = f"{missing:,} bytes are missing that the newest checkpoint expects"
        return CheckResult(name, FAILED, measured, advice)
    lines = content[: state.metrics_bytes].splitlines()
    for number, line in enumerate(lines, start=1):
        if not is_json_object(line):
            measured = f"line {number} of {len(lines):,} is not a JSON object"
            return CheckResult(name, FAILED, measured, advice)
    measured = f"{len(lines):,} rows, all readable"
    if missing:
        measured += f" ({-missing:,} bytes after the last checkpoint are cut off when resuming)"
    return CheckResult(name, OK, measured)


def is_json_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
