"""The doctor's report: each finding printed when it is made, and how it all ends."""

import os
import platform
from collections.abc import Iterable
from pathlib import Path

import torch

from minitransformer import __version__
from minitransformer.config import load_config
from minitransformer.data.batching import fold_in
from minitransformer.data.dataset import Dataset, EncodedPair, prepare_dataset
from minitransformer.data.tokenizer import PAD_ID, PairTokenizer
from minitransformer.doctor.findings import FAILED, WARNING, Finding, summary
from minitransformer.doctor.model_checks import (
    drawn_pairs,
    few_pairs,
    new_patient,
    one_batch_by_heart,
    quick_checks,
)
from minitransformer.doctor.run_checks import corpus_finding, corpus_findings, folder_findings
from minitransformer.errors import DataError, UserError
from minitransformer.model.base import build_model
from minitransformer.run import RunFolder
from minitransformer.settings import Config
from minitransformer.training.trainer import INITIALIZATION
from minitransformer.translator import Translator


class Report:
    """Prints findings as they come, and remembers them."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def section(self, title: str) -> None:
        print(f"\n{title}")

    def add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.findings.append(finding)
            print(*finding.lines(), sep="\n", flush=True)

    def end(self) -> int:
        """The last line, and the exit code that goes with it."""
        print(f"\n{summary(self.findings)}")
        return int(any(finding.verdict == FAILED for finding in self.findings))

    def on_machine(self) -> None:
        """What everything else runs on."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        cuda = torch.cuda.is_available()
        print(f"minitransformer {__version__}, Python {platform.python_version()}, ", end="")
        print(f"torch {torch.__version__} on {platform.system()} {platform.machine()}")
        print(f"{cores} cores, torch uses {torch.get_num_threads()}", end="")
        print(f"; {torch.cuda.get_device_name()}" if cuda else "; no CUDA", flush=True)

    def on_config(self, config: Config) -> None:
        """A config's corpus, and a fresh model of its shape."""
        self.section("The corpus")
        dataset = self.on_corpus(config)
        if dataset is None:
            return
        if config.training.threads:
            torch.set_num_threads(config.training.threads)
        torch.manual_seed(fold_in(config.training.seed, INITIALIZATION))
        sizes = len(dataset.tokenizer.source), len(dataset.tokenizer.target)
        model = build_model(config.model, *sizes, PAD_ID)
        pairs = few_pairs(dataset.encoded["train"])
        patient = new_patient(model, pairs, dataset.tokenizer, config)
        # Weights to start from belong to a training, which examines them by itself.
        drawn = ", without training.init_from" if config.training.init_from else ""
        self.section(f"A fresh model{drawn}, on {count_of(pairs)} of the corpus")
        self.add(quick_checks(patient, is_fresh=True))
        self.add([one_batch_by_heart(pairs, dataset.tokenizer, config)])

    def on_corpus(self, config: Config, tokenizer: PairTokenizer | None = None) -> Dataset | None:
        """What is found in a corpus; nothing is returned of one that cannot be used."""
        try:
            dataset = prepare_dataset(config, tokenizer)
        except DataError as error:
            # A run translates without its corpus, but none begins or goes on without one.
            verdict = WARNING if tokenizer else FAILED
            self.add([Finding("corpus", verdict, str(error))])
            return None
        self.add(corpus_findings(dataset))
        return dataset

    def on_run(self, path: Path, changes: list[str]) -> None:
        """A run's folder, its corpus, and the model that it translates with."""
        run = RunFolder(path)
        run.load_config()  # or says why there is none
        config = load_config(path / "config.yaml", changes)
        self.section(f"The run {path}")
        findings, state = folder_findings(run)
        self.add(findings)
        try:
            tokenizer = run.load_tokenizer(config)
        except UserError as error:
            self.add([Finding("tokenizer", FAILED, str(error))])
            return
        self.section("Its corpus")
        dataset = self.on_corpus(config, tokenizer)
        if state is None:
            return
        if dataset:
            self.add([corpus_finding(dataset, state, config)])
        self.on_trained_model(run, config, dataset)

    def on_trained_model(self, run: RunFolder, config: Config, dataset: Dataset | None) -> None:
        """The weights that the run translates with."""
        try:
            translator = Translator.load(run.path)
        except UserError as error:
            self.add([Finding("weights", FAILED, str(error))])
            return
        if config.training.threads:
            torch.set_num_threads(config.training.threads)
        tokenizer = translator.tokenizer
        pairs, origin = drawn_pairs(len(tokenizer.source), len(tokenizer.target)), "drawn by chance"
        if dataset:
            pairs, origin = few_pairs(dataset.encoded["train"]), "of the corpus"
        patient = new_patient(translator.model, pairs, tokenizer, config)
        where = f"{translator.checkpoint} of {config.training.steps:,} steps"
        self.section(f"Its model ({where}), on {count_of(pairs)} {origin}")
        self.add(quick_checks(patient, is_fresh=False))


def count_of(pairs: list[EncodedPair]) -> str:
    return f"{len(pairs)} pair{'s' * (len(pairs) != 1)}"
