"""The state of a run's folder and of its corpus."""

import json
from pathlib import Path

from minitransformer.checkpoint import TrainerState, read_step
from minitransformer.data.corpus import SPLITS
from minitransformer.data.dataset import Dataset
from minitransformer.data.filters import FilterReport
from minitransformer.doctor.findings import FAILED, OK, WARNING, Finding, judged
from minitransformer.errors import CheckpointError
from minitransformer.run import RunFolder
from minitransformer.settings import Config
from minitransformer.storage import read_own_file
from minitransformer.training.divergence import FOLDER

# Defects that make training or its scores other than they seem, wherever they are met.
SERIOUS = {
    "malformed": "look at these rows; data.columns may name others, or a separator is missing",
    "not_utf8": "convert the file to UTF-8, and what is lost comes back",
    "header": "the first row is taken for sentences elsewhere: remove it from the file",
    "overlap": "held-out scores are too good; filters.overlap: skip keeps such pairs out of "
    "training",
}


def corpus_findings(dataset: Dataset) -> list[Finding]:
    """A line for each split, and one for each kind of defect in it."""
    findings = []
    for name in SPLITS:
        if split := dataset.corpus.splits.get(name):
            count, dropped = len(split), split.report.dropped
            measured = f"{count:,} pair{'s' * (count != 1)} kept, {dropped:,} dropped"
            is_most = count >= dropped
            findings.append(
                Finding(
                    f"corpus, {name}",
                    OK if is_most else WARNING,
                    measured + split.report.set_aside,
                    "more is dropped than kept: see why below",
                )
            )
            findings += defects(split.report)
    if "valid" not in dataset.corpus.splits:
        findings.append(
            Finding(
                "corpus, valid",
                WARNING,
                "no held-out pairs",
                "nothing will tell learning from learning by heart: data.valid, data.split_valid",
            )
        )
    return findings


def defects(report: FilterReport) -> list[Finding]:
    return [
        Finding(
            f"corpus, {report.split}",
            WARNING if defect in SERIOUS else OK,
            line,
            SERIOUS.get(defect, ""),
        )
        for defect, line in zip(report.defects, report.lines(), strict=True)
    ]


MOST_METRICS = 2**30  # bytes


def folder_findings(run: RunFolder) -> tuple[list[Finding], TrainerState | None]:
    """What is found in a folder, and the state of the newest checkpoint that is whole."""
    findings, whole = checkpoint_findings(run)
    findings = [*tokenizer_findings(run), *findings, *kept_batch_findings(run)]
    if not whole:
        return findings, None
    state = whole[0]
    findings += pointer_findings(run, state)
    findings += leftover_findings(run)
    findings.append(metrics_finding(run.metrics, state))
    return findings, state


def checkpoint_findings(run: RunFolder) -> tuple[list[Finding], list[TrainerState]]:
    """Each checkpoint compared with its checksums; the states of whole ones, newest first."""
    findings, whole = [], []
    known = run.newest_content()[1]["tokenizer"] or {}
    for step in run.steps():
        name = run.step_path(step).name
        try:
            checkpoint = read_step(run.step_path(step), step, known, for_training=True)
        except CheckpointError as error:
            advice = "train.py leaves it out, and goes on from the newest one that is whole"
            findings.append(Finding(name, FAILED, str(error), advice))
        else:
            whole.append(checkpoint.state)
            size = sum(path.stat().st_size for path in checkpoint.path.iterdir())
            findings.append(Finding(name, OK, f"all checksums are right ({size / 1e6:,.1f} MB)"))
    if run.has_started and not whole:
        advice = "train.py --fresh starts over, and moves this run aside"
        findings.append(Finding("checkpoints", FAILED, "none of them is whole", advice))
    if not run.has_started:
        findings.append(
            Finding("checkpoints", WARNING, "none yet", "train.py begins this run from its start")
        )
    return findings, whole


def tokenizer_findings(run: RunFolder) -> list[Finding]:
    """Is the tokenizer the one that the checkpoints belong to?"""
    known = run.newest_content()[1]["tokenizer"]
    try:
        if known is None or run.tokenizer_checksums() == known:
            return []
        damage = "not the one that the checkpoints were saved with"
    except CheckpointError as error:
        damage = str(error)
    advice = "the command that trained this run makes it again from the corpus; keep the rest"
    return [Finding("tokenizer", FAILED, damage, advice)]


def kept_batch_findings(run: RunFolder) -> list[Finding]:
    """Batches that stopped a training."""
    kept = sorted((run.path / FOLDER).glob("step-*"))
    if not kept:
        return []
    advice = f"python -m minitransformer.doctor --replay {kept[-1]}"
    return [Finding("stopped", WARNING, f"{kept[-1].name} had numbers that were none", advice)]


def pointer_findings(run: RunFolder, newest: TrainerState) -> list[Finding]:
    """Do `last` and `best` name the steps that the newest checkpoint knows of?"""
    findings = [pointer_finding(run, "last", newest.step, "people read it; the next save mends it")]
    if (step := newest.best_step) is not None:
        name = run.step_path(step).name
        advice = f"translate.py takes what it names; write {name} into {run.checkpoints / 'best'}"
        if run.pointed("best") is None:
            advice = "translate.py finds the best one all the same"
        if step not in run.steps():
            advice = "what did best is lost; translate.py --checkpoint last takes the last one"
        findings.append(pointer_finding(run, "best", step, advice))
    return findings


def pointer_finding(run: RunFolder, name: str, expected: int, advice: str) -> Finding:
    named = run.pointed(name)
    told = "names no step" if named is None else f"names step {named}"
    if expected not in run.steps():
        return Finding(name, FAILED, f"{told}, and step {expected} is gone", advice)
    if named != expected:
        return Finding(name, WARNING, f"{told} instead of step {expected}", advice)
    return Finding(name, OK, told)


def leftover_findings(run: RunFolder) -> list[Finding]:
    """What saves that were killed have left behind."""
    left = [
        path for folder in (run.path, run.checkpoints) for path in sorted(folder.glob(".*.part"))
    ]
    if not left:
        return [Finding("leftovers", OK, "no part of a save that was killed")]
    names = ", ".join(path.name for path in left)
    return [
        Finding(
            "leftovers",
            WARNING,
            f"{names}: of a save that was killed, or that is under way",
            "harmless: nothing reads it, and the next save takes its place",
        )
    ]


def metrics_finding(path: Path, state: TrainerState) -> Finding:
    """Are all rows there that the newest checkpoint knows of, and can they be read?"""
    content = read_own_file(path, MOST_METRICS) if path.exists() else b""
    known = content[: state.metrics_bytes]
    name, advice = "metrics.jsonl", "curves will have a gap; training itself does not need it"
    if len(content) < state.metrics_bytes:
        missing = state.metrics_bytes - len(content)
        return Finding(name, FAILED, f"{missing:,} bytes shorter than the run knows", advice)
    lines = known.splitlines()
    broken = [number for number, line in enumerate(lines, start=1) if not is_row(line)]
    measured = f"{len(lines):,} rows, all readable"
    if broken:
        measured = f"line {broken[0]} of {len(lines):,} is no row of scores"
    elif later := len(content) - len(known):
        measured += f" ({later:,} bytes after the last checkpoint, which resuming takes back)"
    return judged(name, not broken, measured, advice)


def is_row(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def corpus_finding(dataset: Dataset, state: TrainerState, config: Config) -> Finding:
    """Is the corpus still the one that the run was trained with?"""
    name = "corpus unchanged"
    if dataset.fingerprint == state.data_fingerprint:
        return Finding(name, OK, f"{dataset.corpus.name} is what the run was trained with")
    measured = f"{dataset.corpus.name} has other sentence pairs than the run was trained with"
    if state.step >= config.training.steps:
        return Finding(name, WARNING, measured, "its scores cannot be measured again")
    return Finding(
        name, FAILED, measured, "it cannot be continued: bring the corpus back, or use --fresh"
    )
