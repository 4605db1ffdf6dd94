"""The training loop: run -> step -> evaluate -> save, from wherever a run folder stands."""

import math
import time
from pathlib import Path

import torch
from torch import Tensor

from minitransformer.checkpoint import RunFolder, State
from minitransformer.data.batching import BatchStream
from minitransformer.data.preparation import prepare
from minitransformer.errors import CheckpointError, DataError, DivergedError
from minitransformer.evaluation import Evaluation, evaluate
from minitransformer.metrics_file import append_rows, cut_rows
from minitransformer.seeding import mix
from minitransformer.settings import Config
from minitransformer.storage import read_tensors
from minitransformer.training.gradients import add_gradients
from minitransformer.training.optimizer import (
    freeze_all_but,
    load_optimizer,
    new_optimizer,
    optimizer_tensors,
)
from minitransformer.training.resuming import changed_settings
from minitransformer.training.schedule import learning_rate
from minitransformer.training.selection import note_best
from minitransformer.training.signals import StopSignals
from minitransformer.training.watcher import StepReport, Watcher
from minitransformer.weights import build_model, copy_into, load_weights, model_tensors

INITIALIZATION = 2**62  # stands where a step's number would, so that no step repeats its draw


class Trainer:
    """Trains the run that a config describes, from wherever its folder says it stands."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        device: torch.device,
        watchers: list[Watcher],
        *,
        fresh: bool = False,
        starting_weights: dict[str, Tensor] | None = None,
    ) -> None:
        self.config = config
        self.run_folder = run
        self.device = device
        self.watchers = watchers
        self.notes: list[str] = []
        if config.training.threads:
            torch.set_num_threads(config.training.threads)
        resumes = run.has_started and not fresh
        changes = changed_settings(run, config) if resumes else []
        self.notes += changes
        self.has_other_settings = bool(changes)  # than when the run began
        prepared = prepare(config, run.load_tokenizer(config) if resumes else None)
        self.corpus, self.tokenizer = prepared.corpus, prepared.tokenizer
        self.notes += prepared.notes
        if not resumes:
            self.notes += self.tokenizer.size_notes(config)
        if "valid" not in self.corpus.splits and config.evaluation.best_metric != "none":
            raise DataError(
                f"evaluation.best_metric: {self.corpus.name} has no held-out pairs to judge by; "
                "name some with data.valid or split some off with data.split_valid"
            )
        self.encoded = prepared.encoded
        self.example = self.corpus.train.first(1)[0].source
        # What is evaluated stays in memory as text; the rest does not.
        self.texts = {"train": self.corpus.train.first(config.evaluation.train_pairs)}
        if "valid" in self.corpus.splits:
            self.texts["valid"] = list(self.corpus.splits["valid"])
        self.stream = BatchStream(
            self.encoded["train"],
            batch_tokens=config.training.batch_tokens,
            seed=config.training.seed,
            start_id=self.tokenizer.start_id,
        )
        torch.manual_seed(mix(config.training.seed, INITIALIZATION))
        self.model = build_model(config, self.tokenizer)
        if config.training.start_from and not resumes:
            where = config.training.start_from
            starting_weights = starting_weights or read_tensors(Path(where))
            copy_into(model_tensors(self.model), starting_weights, where)
        self.model.to(device)
        freeze_all_but(self.model, config.training.train_only)
        self.optimizer = new_optimizer(self.model, config.training)
        self.state = State(data_fingerprint=prepared.fingerprint)
        if resumes:
            self.resume()
        else:
            if fresh and (aside := run.move_aside()):
                self.notes.append(f"moved the old run to {aside}")
            run.create(config, self.tokenizer)
        self.saved_step = self.state.step
        self.tokens_since_evaluation, self.seconds_since_evaluation = 0, 0.0

    def resume(self) -> None:
        """Continue from the newest whole checkpoint."""
        complaints: list[str] = []
        checkpoint = self.run_folder.load_newest(complaints, for_training=True)
        self.notes += [
            f"{complaint}; went back to {checkpoint.path.name}" for complaint in complaints
        ]
        if checkpoint.state.data_fingerprint != self.state.data_fingerprint:
            raise CheckpointError(
                f"{self.run_folder.path} was begun with other sentence pairs than "
                f"{self.corpus.name} has now; use --fresh to start over, or another --run"
            )
        self.state = checkpoint.state
        load_weights(self.model, checkpoint.model, str(checkpoint.path))
        load_optimizer(self.model, self.optimizer, checkpoint.optimizer)
        self.stream.move_to(epoch=self.state.epoch, index=self.state.batch_index)
        if complaint := cut_rows(self.run_folder.metrics, self.state.metrics_bytes):
            self.notes.append(complaint)
        if not self.is_finished:
            self.run_folder.save_config(self.config)

    @property
    def is_finished(self) -> bool:
        return self.state.step >= self.config.training.steps or self.has_lost_patience

    @property
    def has_lost_patience(self) -> bool:
        """Has the metric not become better for as many evaluations as the config waits?"""
        return 0 < self.config.training.patience <= self.state.evaluations_since_best

    def run(self) -> int:
        """Train to the last step, or to a signal; returns the exit code."""
        with StopSignals() as stop:
            for watcher in self.watchers:
                watcher.on_start(self)
            if self.state.step == 0:
                self.evaluate()
            while not self.is_finished and not stop.exit_code:
                report = self.step()
                for watcher in self.watchers:
                    watcher.on_step(self, report)
                is_due = self.state.step % self.config.evaluation.every == 0 or self.is_finished
                if is_due:
                    self.evaluate()
                if is_due or self.state.step % self.config.training.save_every == 0:
                    self.save()
            if self.state.step > self.saved_step:  # a signal came between two saves
                self.save()
            for watcher in self.watchers:
                watcher.on_end(self, stop.exit_code)
        return stop.exit_code

    def step(self) -> StepReport:
        """One optimizer step over `accumulate` batches, normalised by all of their tokens."""
        began = time.perf_counter()
        training = self.config.training
        number = self.state.step + 1
        rate = learning_rate(
            number,
            schedule=training.schedule,
            peak=training.learning_rate,
            warmup_steps=training.warmup_steps,
            total_steps=training.steps,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batches = [self.stream.next() for _ in range(training.accumulate)]
        fit = add_gradients(self.model, batches, training, self.device, step=number)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), training.clip_norm or float("inf")
        )
        if not norm.isfinite():  # before it can reach the weights, let alone a checkpoint
            raise DivergedError(
                f"the gradient of step {number} is {float(norm)} (loss {fit.loss.mean:.4g}, "
                f"learning rate {rate:.4g}); checkpoints are as they were. Lower "
                "training.learning_rate or training.clip_norm and start again with --fresh"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        seconds = time.perf_counter() - began
        self.state.step = number
        self.state.epoch, self.state.batch_index = self.stream.epoch, self.stream.index
        self.state.seconds += seconds
        self.tokens_since_evaluation += fit.loss.count
        self.seconds_since_evaluation += seconds
        return StepReport(fit.loss, fit.accuracy, rate, float(norm), seconds)

    def evaluate(self) -> None:
        """Score both splits, write their lines to metrics.jsonl, and tell the watchers."""
        began = time.perf_counter()
        evaluations = {
            name: evaluate(
                self.model, texts, self.encoded[name][: len(texts)], self.tokenizer, self.config
            )
            for name, texts in self.texts.items()
            if texts
        }
        self.state.seconds += time.perf_counter() - began
        for name, evaluation in evaluations.items():
            if not math.isfinite(evaluation.loss.mean):
                raise DivergedError(
                    f"the {name} loss after step {self.state.step} is {evaluation.loss.mean}; "
                    "lower training.learning_rate and start again with --fresh"
                )
        self.write_metrics(evaluations)
        note_best(self.state, evaluations, self.config.evaluation.best_metric)
        self.tokens_since_evaluation, self.seconds_since_evaluation = 0, 0.0
        for watcher in self.watchers:
            watcher.on_evaluation(self, evaluations)

    def write_metrics(self, evaluations: dict[str, Evaluation]) -> None:
        speeds = {name: each.loss.count / each.seconds for name, each in evaluations.items()}
        speeds["train"] = self.tokens_since_evaluation / max(self.seconds_since_evaluation, 1e-9)
        self.state.metrics_bytes = append_rows(
            self.run_folder.metrics,
            [
                {
                    "step": self.state.step,
                    "split": name,
                    **evaluation.row(),
                    "seconds": self.state.seconds,
                    "tokens_per_second": speeds[name],
                }
                for name, evaluation in evaluations.items()
            ],
        )

    def save(self) -> None:
        for watcher in self.watchers:
            watcher.on_save(self)
        self.run_folder.save(
            self.state,
            model_tensors(self.model),
            optimizer_tensors(self.model, self.optimizer),
            self.config.training.keep_checkpoints,
        )
        self.saved_step = self.state.step
