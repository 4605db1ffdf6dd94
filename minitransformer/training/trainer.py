"""The training loop: run -> step -> evaluate -> save, from wherever a run folder stands."""

import json
import math
import os
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from minitransformer.checkpoint import RunFolder
from minitransformer.data.batching import BatchStream
from minitransformer.errors import DivergedError
from minitransformer.judging import Evaluation
from minitransformer.metrics_file import append_rows, cut_rows
from minitransformer.saved_step import State, first_not_finite
from minitransformer.seeding import mix
from minitransformer.settings import Config
from minitransformer.storage import bytes_to_tensors, read_tensors, tensor_bytes
from minitransformer.training.beginning import Beginning, begin
from minitransformer.training.distributed import Ranks
from minitransformer.training.gradients import Objective, add_gradients, settle
from minitransformer.training.incident import stopped_evaluation, stopped_step
from minitransformer.training.optimizer import AdamW, freeze_all_but
from minitransformer.training.resuming import take_up
from minitransformer.training.schedule import learning_rate
from minitransformer.training.scoring import evaluate_splits, metrics_rows
from minitransformer.training.selection import note_best
from minitransformer.training.signals import StopSignals
from minitransformer.training.source_watch import SourceWatch
from minitransformer.training.watcher import StepReport, Watcher
from minitransformer.weights import build_model, copy_into, model_tensors

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
        ranks: Ranks | None = None,
    ) -> None:
        self.config = config
        self.ranks = ranks = ranks or Ranks()
        self.run_folder = run
        self.device = device
        self.watchers = watchers
        if config.training.threads:
            torch.set_num_threads(config.training.threads)
        elif ranks.world_size > 1:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks.world_size))
        beginning = begin(config, run, ranks, fresh=fresh)
        prepared = beginning.prepared
        self.corpus, self.tokenizer = prepared.corpus, prepared.tokenizer
        self.notes: list[str] = [*prepared.notes]
        self.has_other_settings = bool(beginning.changes)  # than when the run began
        if beginning.changes:
            changes = "; ".join(beginning.changes.values())
            self.notes.insert(0, f"changed since the run began: {changes}")
        if not beginning.resumes:
            self.notes += self.tokenizer.size_notes(config)
        here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world_size))
        if here > (cores := os.cpu_count() or 1) and device.type == "cpu":
            self.notes.append(f"{here} processes share {cores} cores")
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
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
        torch.manual_seed(mix(config.training.seed, INITIALIZATION))
        self.model = build_model(config, self.tokenizer)
        self.model.to(device)
        self.state = State(data_fingerprint=prepared.fingerprint)
        with ranks.same_fate():
            if config.training.start_from and not beginning.resumes and ranks.is_first:
                where = config.training.start_from
                starting_weights = starting_weights or read_tensors(Path(where).resolve())
                copy_into(model_tensors(self.model), starting_weights, where)
            freeze_all_but(self.model, config.training.train_only)
            self.optimizer = AdamW(self.model, config.training)
            if ranks.is_first and beginning.resumes:
                self.resume(beginning)
            if ranks.is_first and not self.is_finished:
                # Rather now than after an hour that there is no room.
                with run.room_for(self.optimizer.bytes_to_save(), "a checkpoint"):
                    if fresh and (aside := run.move_aside()):
                        self.notes.append(f"moved the old run to {aside}")
                    if not beginning.resumes:
                        run.create(config, self.tokenizer)
        if beginning.resumes:
            self.share_position()
        self.objective = ranks.wrap(Objective(self.model, config.training))
        if ranks.world_size > 1:
            settle(self.objective, device)
        self.source_watch = SourceWatch(self.model, self.encoded, self.tokenizer.start_id)
        self.saved_step = self.state.step
        self.tokens_since_evaluation, self.seconds_since_evaluation = 0, 0.0

    def resume(self, beginning: Beginning) -> None:
        """Continue from the newest whole checkpoint."""
        self.state, notes = take_up(
            self.run_folder, self.config, beginning.prepared, beginning.changes,
            self.model, self.optimizer,
        )  # fmt: skip
        self.notes += notes
        if complaint := cut_rows(self.run_folder.metrics, self.state.metrics_bytes):
            self.notes.append(complaint)
        if not self.is_finished:
            self.run_folder.save_config(self.config)

    def share_position(self) -> None:
        """All processes continue where the first one has read that the run stands."""
        self.share_state()
        if self.ranks.world_size > 1:
            memory = self.ranks.share(tensor_bytes(self.optimizer.memory))
            self.optimizer.load(bytes_to_tensors(memory))
        self.stream.move_to(epoch=self.state.epoch, index=self.state.batch_index)

    def share_state(self) -> None:
        """All processes know what the first one does."""
        if self.ranks.world_size == 1:
            return
        told = self.ranks.share(json.dumps(asdict(self.state)).encode())
        self.state = State(**json.loads(told))

    @property
    def is_finished(self) -> bool:
        return self.state.step >= self.config.training.steps or self.has_lost_patience

    @property
    def has_lost_patience(self) -> bool:
        """Has the metric not become better for as many evaluations as the config waits?"""
        return 0 < self.config.training.patience <= self.state.evaluations_since_best

    def run(self) -> int:
        """Train to the last step, or to a signal; returns the exit code."""
        self.ranks.set_timeout(self.config.training.step_timeout)
        with self.run_folder.room_for(0, "what a run writes"), StopSignals() as stop:
            for watcher in self.watchers:
                watcher.on_start(self)
            if self.state.step == 0:
                self.evaluate()
            exit_code = self.ranks.largest(stop.exit_code)
            while not self.is_finished and not exit_code:
                report = self.step()
                for watcher in self.watchers:
                    watcher.on_step(self, report)
                is_due = self.state.step % self.config.evaluation.every == 0 or self.is_finished
                if is_due:
                    self.evaluate()
                if is_due or self.state.step % self.config.training.save_every == 0:
                    self.save()
                exit_code = self.ranks.largest(stop.exit_code)
            if self.state.step > self.saved_step:  # a signal came between two saves
                self.save()
            exit_code = self.ranks.largest(stop.exit_code)
            for watcher in self.watchers:
                watcher.on_end(self, exit_code)
        return exit_code

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
        batches = [self.stream.next().to(self.device) for _ in range(training.accumulate)]
        fit = add_gradients(self.objective, batches, self.ranks, seed=training.seed, step=number)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), training.clip_norm or float("inf")
        )
        if not norm.isfinite():  # before it can reach the weights, let alone a checkpoint
            raise stopped_step(self, batches, number, rate, fit, float(norm))
        self.optimizer.step(rate)
        seconds = time.perf_counter() - began
        self.state.step = number
        self.state.epoch, self.state.batch_index = self.stream.epoch, self.stream.index
        self.state.seconds += seconds
        self.tokens_since_evaluation += fit.loss.count
        self.seconds_since_evaluation += seconds
        return StepReport(fit.loss, fit.accuracy, rate, float(norm), seconds)

    def evaluate(self) -> None:
        """Score both splits together with the other processes; the first one tells the scores."""
        began = time.perf_counter()
        evaluations = evaluate_splits(
            self.model, self.texts, self.encoded, self.tokenizer, self.config, self.ranks
        )
        self.state.seconds += time.perf_counter() - began
        if self.ranks.is_first:
            self.tell(evaluations)
        self.share_state()
        self.tokens_since_evaluation, self.seconds_since_evaluation = 0, 0.0

    def tell(self, evaluations: dict[str, Evaluation]) -> None:
        """Write scores to metrics.jsonl, remember the best, and tell the watchers."""
        for name, evaluation in evaluations.items():
            if not math.isfinite(evaluation.loss.mean):
                raise stopped_evaluation(self, name, evaluation)
        speed = self.tokens_since_evaluation / max(self.seconds_since_evaluation, 1e-9)
        rows = metrics_rows(evaluations, self.state, training_speed=speed)
        self.state.metrics_bytes = append_rows(self.run_folder.metrics, rows)
        note_best(self.state, evaluations, self.config.evaluation.best_metric)
        warning = self.source_watch.warning(self.state, self.config.training.steps)
        for watcher in self.watchers:
            watcher.on_evaluation(self, evaluations)
            if warning:
                watcher.on_warning(self, warning)

    def save(self) -> None:
        self.saved_step = self.state.step
        if not self.ranks.is_first:
            return
        weights, memory = model_tensors(self.model), self.optimizer.memory
        if bad := first_not_finite(weights | memory):
            raise DivergedError(
                f"step {self.state.step} is not saved: '{bad}' has values that are not finite. "
                "Checkpoints are as they were; lower training.learning_rate and start again "
                "with --fresh"
            )
        for watcher in self.watchers:
            watcher.on_save(self)
        self.run_folder.save(self.state, weights, memory, self.config)
