"""The training loop: Trainer.fit() takes steps, evaluates and saves; Callbacks watch it."""

import json
import math
import os
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import zip_longest

import torch
from safetensors.torch import load as tensors_from_bytes

from minitransformer.checkpoint import TrainerState, find_nonfinite, model_tensors, tensor_bytes
from minitransformer.data.batching import BatchStream, fold_in
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import DataError, DivergedError
from minitransformer.evaluation import (
    BatchResult,
    Evaluation,
    batches_by_length,
    score_batches,
    summarize,
)
from minitransformer.metrics import Sum
from minitransformer.model.base import build_model, choose_device
from minitransformer.model.loss import HeadLoss, TrainingLoss
from minitransformer.run import RunFolder, append_rows, truncate_rows
from minitransformer.settings import Config
from minitransformer.training.distributed import Ranks, set_threads
from minitransformer.training.launcher import StopSignals
from minitransformer.training.optimizer import AdamW, freeze_all_but, learning_rate
from minitransformer.training.resume import (
    RunSetup,
    load_initial_weights,
    load_training_state,
    setup_run,
)

INITIALIZATION = 2**62  # in place of a step number, so that no step has the same seed


@dataclass(frozen=True)
class StepMetrics:
    """The loss, accuracy, gradient norm and time of one optimizer step."""

    loss: Sum  # over the target tokens of all ranks, without label smoothing
    accuracy: Sum
    learning_rate: float
    gradient_norm: float  # before clipping
    seconds: float


class Callback:
    """What a trainer calls at each stage of a run; the methods of this base class do nothing."""

    def on_start(self, trainer: "Trainer") -> None:
        """Called on every rank when everything is loaded, also for a finished run."""

    def on_step(self, trainer: "Trainer", metrics: StepMetrics) -> None:
        """Called on every rank after each optimizer step."""

    def on_evaluation(self, trainer: "Trainer", evaluations: dict[str, Evaluation]) -> None:
        """Called on rank 0 when the splits have been scored."""

    def on_save(self, trainer: "Trainer") -> None:
        """Called on rank 0 before a checkpoint is written, to update `trainer.state`."""

    def on_end(self, trainer: "Trainer", exit_code: int) -> None:
        """Called on every rank when the run is finished (0), or stopped by a signal and saved."""


class Trainer:
    """Train the run that a config describes, from its newest checkpoint if it has one.

    Each rank has a trainer; that of rank 0 alone writes to the run folder.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        device: torch.device | None = None,
        callbacks: Iterable[Callback] = (),
        *,
        fresh: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        self.config = config
        self.run_folder = run
        self.device = device or choose_device("auto")
        self.callbacks = list(callbacks)
        self.ranks = ranks or Ranks()
        training = config.training
        set_threads(training.threads, self.ranks.world_size)

        setup = setup_run(config, run, self.ranks, fresh=fresh)
        self.has_other_settings = bool(setup.changes)  # than when the run began
        self.notes = self.first_notes(setup)
        self.corpus, self.tokenizer = setup.dataset.corpus, setup.dataset.tokenizer
        self.encoded = setup.dataset.encoded
        # The texts that are evaluated stay in memory; the others do not.
        self.texts = {"train": self.corpus.train.first(config.evaluation.train_pairs)}
        if "valid" in self.corpus.splits:
            self.texts["valid"] = list(self.corpus.splits["valid"])
        self.stream = BatchStream(
            self.encoded["train"], batch_tokens=training.batch_tokens, seed=training.seed,
            start_id=self.tokenizer.start_id, rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )  # fmt: skip

        self.state = TrainerState(data_fingerprint=setup.dataset.fingerprint)
        torch.manual_seed(fold_in(training.seed, INITIALIZATION))
        vocab_sizes = len(self.tokenizer.source), len(self.tokenizer.target)
        self.model = build_model(config.model, *vocab_sizes, PAD_ID).to(self.device)
        with self.ranks.propagate_errors():
            # The other ranks get the weights from `Ranks.wrap`.
            if training.init_from and not setup.resumes and self.ranks.is_first:
                load_initial_weights(self.model, training.init_from)
            freeze_all_but(self.model, training.trainable)
            self.optimizer = AdamW(self.model, training)
            if self.ranks.is_first:
                self.open_run(setup, fresh=fresh)
        if setup.resumes:
            self.broadcast_checkpoint()
        self.saved_step = self.state.step
        self.training_loss = self.ranks.wrap(TrainingLoss(self.model, training))
        self.tokens_since_evaluation, self.seconds_since_evaluation = 0, 0.0

    def fit(self) -> int:
        """Train to the last step, or until a signal; return the exit code."""
        with self.run_folder.require_space("what a run writes"), StopSignals() as stop:
            for callback in self.callbacks:
                callback.on_start(self)
            self.ranks.set_timeout(self.config.training.step_timeout)
            if self.state.step == 0:
                self.evaluate()
            while not self.is_finished and not self.ranks.all_reduce_max(stop.exit_code):
                metrics = self.step()
                for callback in self.callbacks:
                    callback.on_step(self, metrics)
                is_due = self.state.step % self.config.evaluation.every == 0 or self.is_finished
                if is_due:
                    self.evaluate()
                if is_due or self.state.step % self.config.training.save_every == 0:
                    self.save()
            if self.state.step > self.saved_step:  # a signal came between two saves
                self.save()
            exit_code = self.ranks.all_reduce_max(stop.exit_code)
            for callback in self.callbacks:
                callback.on_end(self, exit_code)
        return exit_code

    def step(self) -> StepMetrics:
        """Take one optimizer step: loss and gradient of each batch, clip the norm, AdamW."""
        start_time = time.perf_counter()
        training, ranks, step = self.config.training, self.ranks, self.state.step + 1
        rate = learning_rate(step, training)
        batches = [
            self.stream.next().to(self.device) for _ in range(training.gradient_accumulation)
        ]
        (num_tokens,) = ranks.all_reduce_sum(sum(batch.num_target_tokens for batch in batches))
        total_loss = num_right = 0.0
        self.training_loss.train()
        for index, batch in enumerate(batches):
            # A seed from what is computed, not from what ran before: no random state is saved.
            torch.manual_seed(fold_in(training.seed, step, ranks.rank << 32 | index))
            is_last = index == len(batches) - 1
            with nullcontext() if is_last else ranks.no_sync(self.training_loss):
                result: HeadLoss = self.training_loss(*batch)
                # DistributedDataParallel takes the mean over ranks: make it the mean over tokens.
                (result.objective * (ranks.world_size / num_tokens)).backward()  # type: ignore[no-untyped-call]
            total_loss += float(result.loss)
            num_right += int(result.num_right)
        total_loss, num_right = ranks.all_reduce_sum(total_loss, num_right)
        loss, accuracy = Sum(total_loss, int(num_tokens)), Sum(num_right, int(num_tokens))
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), training.clip_norm or float("inf")
        )
        if not norm.isfinite():  # the weights are unchanged
            from minitransformer.training.divergence import nonfinite_gradient_error

            raise nonfinite_gradient_error(self, batches, step, rate, loss, float(norm))
        self.optimizer.step(rate)
        seconds = time.perf_counter() - start_time
        self.state.step = step
        self.state.epoch, self.state.batch_index = self.stream.epoch, self.stream.index
        self.state.seconds += seconds
        self.tokens_since_evaluation += loss.count
        self.seconds_since_evaluation += seconds
        return StepMetrics(loss, accuracy, rate, float(norm), seconds)

    def evaluate(self) -> None:
        """Score the training and validation pairs on all ranks; rank 0 logs the scores."""
        start_time = time.perf_counter()
        evaluations = self.evaluate_splits()
        self.state.seconds += time.perf_counter() - start_time
        if self.ranks.is_first:
            self.log_evaluation(evaluations)
        self.broadcast_state()
        self.tokens_since_evaluation, self.seconds_since_evaluation = 0, 0.0

    def save(self) -> None:
        """Write a checkpoint, unless a value in it is not finite."""
        self.saved_step = self.state.step
        if not self.ranks.is_first:
            return
        weights, optimizer_state = model_tensors(self.model), self.optimizer.state
        if name := find_nonfinite(weights | optimizer_state):
            raise DivergedError(
                f"step {self.state.step} is not saved: '{name}' has NaN or infinite values. "
                "Checkpoints are unchanged; lower training.learning_rate and start again "
                "with --fresh"
            )
        for callback in self.callbacks:
            callback.on_save(self)
        self.run_folder.save_checkpoint(self.state, weights, optimizer_state, self.config)

    @property
    def is_finished(self) -> bool:
        return self.state.step >= self.config.training.steps or self.has_lost_patience

    @property
    def has_lost_patience(self) -> bool:
        """Whether the metric has not improved for `training.patience` evaluations."""
        return 0 < self.config.training.patience <= self.state.evaluations_since_best

    def evaluate_splits(self) -> dict[str, Evaluation]:
        """Score the first pairs of each split; only rank 0 gets the scores."""
        config, ranks, evaluations = self.config, self.ranks, {}
        for name, pairs in self.texts.items():
            if not pairs:
                continue
            start_time = time.perf_counter()
            ids = self.encoded[name][: len(pairs)]
            # The batches are those of a single process, and so are the numbers, bit for bit.
            batches = batches_by_length(ids, config.evaluation.batch_size)
            results = score_batches(
                self.model, ids, batches[ranks.rank :: ranks.world_size], self.tokenizer.start_id,
                config.model.max_length, is_capped=True,
            )  # fmt: skip
            if ranks.world_size > 1:
                by_rank = map(json.loads, ranks.gather(json.dumps(results).encode()))
                turns = zip_longest(*by_rank)  # batch by batch; the last ranks may have one less
                results = [BatchResult(*each) for turn in turns for each in turn if each]
            if ranks.is_first:
                evaluations[name] = summarize(
                    pairs, ids, results, self.tokenizer, config, start_time
                )
        return evaluations

    def log_evaluation(self, evaluations: dict[str, Evaluation]) -> None:
        """Write the scores to metrics.jsonl, update the best step, and call the callbacks."""
        for name, evaluation in evaluations.items():
            if not math.isfinite(evaluation.loss.mean):
                from minitransformer.training.divergence import nonfinite_loss_error

                raise nonfinite_loss_error(self, name, evaluation)
        speeds = {name: each.loss.count / each.seconds for name, each in evaluations.items()}
        speeds["train"] = self.tokens_since_evaluation / max(self.seconds_since_evaluation, 1e-9)
        rows = [
            {
                "step": self.state.step,
                "split": name,
                **evaluation.row(),
                "seconds": self.state.seconds,
                "tokens_per_second": speeds[name],  # target tokens
            }
            for name, evaluation in evaluations.items()
        ]
        self.state.metrics_bytes = append_rows(self.run_folder.metrics, rows)
        self.update_best(evaluations)
        for callback in self.callbacks:
            callback.on_evaluation(self, evaluations)

    def update_best(self, evaluations: dict[str, Evaluation]) -> None:
        """Remember this step if `evaluation.best_metric` on held-out pairs was never better."""
        state, metric = self.state, self.config.evaluation.best_metric
        if metric == "none" or state.step == 0:
            return  # step 0 has no checkpoint to go back to
        value = evaluations["valid"].row()[metric]
        if value is None:
            raise DataError(
                "evaluation.best_metric: BLEU needs a held-out sentence of at least four words; "
                "choose chrf"
            )
        best = state.best_value
        if best is None or (value < best if metric == "loss" else value > best):
            state.best_value, state.best_step = value, state.step
            state.evaluations_since_best = 0
        else:
            state.evaluations_since_best += 1

    def first_notes(self, setup: RunSetup) -> list[str]:
        """Return what the user should know before the first step."""
        notes = [*setup.dataset.notes]
        if setup.changes:
            changes = "; ".join(setup.changes.values())
            notes.insert(0, f"changed since the run began: {changes}")
        if not setup.resumes:
            notes += setup.dataset.tokenizer.size_notes(self.config)
        local = int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks.world_size))
        if local > (cores := os.cpu_count() or 1) and self.device.type == "cpu":
            notes.append(f"{local} processes share {cores} cores")
        return notes

    def open_run(self, setup: RunSetup, *, fresh: bool) -> None:
        """Load the newest whole checkpoint or create the run folder; refuse a full disk."""
        if setup.resumes:
            self.state, notes = load_training_state(
                self.run_folder, self.config, setup, self.model, self.optimizer
            )
            self.notes += notes
            if note := truncate_rows(self.run_folder.metrics, self.state.metrics_bytes):
                self.notes.append(note)
            if not self.is_finished:
                self.run_folder.save_config(self.config)
        if self.is_finished:
            return
        # A full disk is reported now, not after an hour of training. Of each trained parameter,
        # a checkpoint holds AdamW's two moments, too.
        needed = sum(
            each.nbytes * (3 if each.requires_grad else 1) for each in self.model.parameters()
        )
        with self.run_folder.require_space("a checkpoint", needed):
            if fresh and (aside := self.run_folder.move_aside()):
                self.notes.append(f"moved the old run to {aside}")
            if not setup.resumes:
                self.run_folder.create(self.config, self.tokenizer)

    def broadcast_checkpoint(self) -> None:
        """Send the state and the optimizer's to every rank; `Ranks.wrap` sends the weights."""
        self.broadcast_state()
        if self.ranks.world_size > 1:
            optimizer_state = self.ranks.broadcast(tensor_bytes(self.optimizer.state))
            self.optimizer.load(tensors_from_bytes(optimizer_state))
        self.stream.move_to(epoch=self.state.epoch, index=self.state.batch_index)

    def broadcast_state(self) -> None:
        """Replace the state of every rank by that of rank 0."""
        if self.ranks.world_size > 1:
            state = self.ranks.broadcast(json.dumps(asdict(self.state)).encode())
            self.state = TrainerState(**json.loads(state))
