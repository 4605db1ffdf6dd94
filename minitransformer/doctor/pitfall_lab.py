"""The pitfall lab: a model trained rightly beside a twin with a classic mistake."""

import tempfile
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from minitransformer.checkpoint import RunFolder
from minitransformer.config import load_config
from minitransformer.doctor.breakages import BREAKAGES, Breakage
from minitransformer.doctor.examination import new_patient, quick_checks
from minitransformer.doctor.findings import FAILED, OK, Finding
from minitransformer.doctor.patient import few_pairs
from minitransformer.doctor.symptoms import SYMPTOMS, Symptom, Trained
from minitransformer.errors import DataError, UsageError
from minitransformer.judging import Evaluation
from minitransformer.settings import Config
from minitransformer.training.trainer import Trainer
from minitransformer.training.watcher import Watcher

SETTINGS = ("evaluation.train_pairs=300", "logging.tensorboard=false")
ROW = "  {:46} {:>12} {:>12}"


class Twin(NamedTuple):
    """What was measured of one of two models."""

    findings: list[Finding]  # before the first step
    after: dict[str, Evaluation]
    symptom: str


class Scores(Watcher):
    """Keeps what each evaluation found."""

    def __init__(self) -> None:
        self.all: list[dict[str, Evaluation]] = []

    def on_evaluation(self, trainer: Trainer, evaluations: dict[str, Evaluation]) -> None:
        self.all.append(evaluations)


def show_pitfalls(names: Sequence[str], path: Path, changes: list[str]) -> int:
    """Show each mistake in a config's model: its cause, its symptom, and what catches it."""
    for number, name in enumerate(names):
        breakage, symptom = BREAKAGES[name], SYMPTOMS[name]
        config = short_config(breakage, path, changes)
        if number:
            print()
        if why_not := breakage.why_not(config.model):
            if len(names) == 1:
                raise UsageError(f"--break {name}: {why_not}")
            print(f"{name}: {why_not}", flush=True)
            continue
        print(*cause_lines(name, breakage), sep="\n", flush=True)
        right = train_twin(config, symptom, nullcontext())
        wrong = train_twin(config, symptom, breakage.made())
        print(*symptom_lines(path.name, breakage, symptom, right, wrong), sep="\n")
        print(*catching_lines(breakage, wrong.findings), sep="\n", flush=True)
    return 0


def short_config(breakage: Breakage, path: Path, changes: list[str]) -> Config:
    """A config with as many steps as it takes, and what else a mistake needs to show."""
    keys = ("training.steps", "training.save_every", "evaluation.every")
    steps = [f"{key}={breakage.steps}" for key in keys]
    return load_config(path, [*changes, *steps, *SETTINGS, *breakage.settings])


def train_twin(config: Config, symptom: Symptom, mistake: AbstractContextManager[None]) -> Twin:
    """Train a small model for some seconds, in a folder that is then gone."""
    scores = Scores()
    with mistake, tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        trainer = Trainer(config, run, torch.device("cpu"), [scores])
        if "valid" not in trainer.encoded:
            raise DataError("--break: symptoms show on held-out pairs, and this corpus has none")
        pairs = few_pairs(trainer.encoded["train"])
        patient = new_patient(trainer.model, pairs, trainer.tokenizer, config)
        findings = quick_checks(patient, is_fresh=True)
        if code := trainer.run():  # a signal
            raise SystemExit(code)
        trained = Trained(trainer, scores.all[0], scores.all[-1])
        return Twin(findings, trained.after, symptom.measured(trained))


def cause_lines(name: str, breakage: Breakage) -> list[str]:
    return [
        f"{name}: {breakage.title}",
        "",
        f"  in minitransformer/{breakage.file}",
        *code_lines("wrong", breakage.wrong),
        *code_lines("right", breakage.right),
        "",
        *textwrap.wrap(breakage.shows, 88, initial_indent="  ", subsequent_indent="  "),
        "",
    ]


def code_lines(label: str, code: tuple[str, ...]) -> list[str]:
    first, *others = code
    return [f"  {label}   {first}", *(f"          {line}" for line in others)]


def symptom_lines(
    config: str, breakage: Breakage, symptom: Symptom, right: Twin, wrong: Twin
) -> list[str]:
    """A small table of both twins."""
    changes = ", ".join(breakage.settings)
    rows = zip(table_column(right), table_column(wrong), strict=True)
    return [
        ROW.format(f"{config}, {breakage.steps} steps", "right", "wrong"),
        *([f"    (both with {changes})"] if changes else []),
        *(ROW.format(label, one, other) for (label, one), (_, other) in rows),
        ROW.format(symptom.label, right.symptom, wrong.symptom),
        "",
    ]


def table_column(twin: Twin) -> list[tuple[str, str]]:
    train, valid = twin.after["train"], twin.after["valid"]
    return [
        ("loss on training pairs", f"{train.loss.mean:.3f}"),
        ("loss on held-out pairs", f"{valid.loss.mean:.3f}"),
        ("held out: right, every earlier token given", f"{valid.accuracy_teacher_forced.mean:.1%}"),
        ("held out: right, on its own", f"{valid.accuracy_free_running.mean:.1%}"),
        ("held out: sentences exact", f"{valid.exact_match.mean:.1%}"),
    ]


def catching_lines(breakage: Breakage, findings: list[Finding]) -> list[str]:
    """What the checks said of the twin before its first step, the one meant for it first."""
    caught = [finding for finding in findings if finding.verdict != OK]
    meant = [finding for finding in caught if finding.name == breakage.check]
    others = "; ".join(finding.name for finding in caught if finding not in meant)
    is_refused = any(finding.verdict == FAILED for finding in meant)
    does = "train.py refuses to train it" if is_refused else "train.py says so in a note"
    lines = [f"  Found before the first step; {does}:"]
    lines += [f"  {line}" for finding in meant for line in finding.lines()]
    return lines + ([f"  (others notice it, too: {others})"] if others else [])
