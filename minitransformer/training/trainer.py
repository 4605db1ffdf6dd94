"""The training loop: run -> step -> evaluate -> save, from wherever a run folder stands."""

import json
import math
import os
import time
from contextlib import nullcontext
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.checkpoint import (
    TrainerState,
    bytes_to_tensors,
    copy_into,
    find_nonfinite,
    model_tensors,
    read_tensors,
    tensor_bytes,
)
from minitransformer.data.batching import Batch, BatchStream, fold_in
from minitransformer.data.corpus import Pair
from minitransformer.data.dataset import EncodedSplit
from minitransformer.data.tokenizer import EOS_ID, PAD_ID, PairTokenizer
from minitransformer.errors import DataError, DivergedError
from minitransformer.evaluation import (
    BatchResult,
    Evaluation,
    batches_by_length,
    score_batches,
    summarize,
)
from minitransformer.metrics import Sum
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.model.loss import HeadLoss, TrainingLoss
from minitransformer.run import RunFolder, append_rows, truncate_rows
from minitransformer.settings import Config
from minitransformer.training.callbacks import Callback, StepMetrics
from minitransformer.training.distributed import Ranks
from minitransformer.training.divergence import (
    SourceDependence,
    nonfinite_gradient_error,
    nonfinite_loss_error,
)
from minitransformer.training.launcher import StopSignals
from minitransformer.training.optimizer import AdamW, freeze_all_but, learning_rate
from minitransformer.training.resume import RunSetup, load_training_state, setup_run


def evaluate_splits(
    model: EncoderDecoder,
    texts: dict[str, list[Pair]],
    encoded: dict[str, EncodedSplit],
    tokenizer: PairTokenizer,
    config: Config,
    ranks: Ranks,
) -> dict[str, Evaluation]:
    """The scores of the pairs at the head of each split; only the first process has them."""
    evaluations = {}
    for name, pairs in texts.items():
        if not pairs:
            continue
        began = time.perf_counter()
        ids = encoded[name][: len(pairs)]
        # The batches are those of a single process, and so are the numbers, bit for bit.
        batches = batches_by_length(ids, config.evaluation.batch_size)
        own = batches[ranks.rank :: ranks.world_size]
        judged = score_batches(
            model, ids, own, tokenizer.start_id, config.model.max_length, is_capped=True
        )
        if ranks.world_size > 1:
            judged = in_turns(ranks.gather(json.dumps(judged).encode()))
        if ranks.is_first:
            evaluations[name] = summarize(pairs, ids, judged, tokenizer, config, began)
    return evaluations


def in_turns(parts: list[bytes]) -> list[BatchResult]:
    """What the processes said of batches that were dealt out to them, in the batches' order."""
    turns = zip_longest(*map(json.loads, parts))  # the last turn may not go all the way round
    return [BatchResult(*batch) for turn in turns for batch in turn if batch is not None]


def metrics_rows(
    evaluations: dict[str, Evaluation], state: TrainerState, *, training_speed: float
) -> list[dict[str, Any]]:
    """A line of metrics.jsonl for each split; a speed is in target tokens a second."""
    speeds = {name: each.loss.count / each.seconds for name, each in evaluations.items()}
    speeds["train"] = training_speed
    return [
        {
            "step": state.step,
            "split": name,
            **evaluation.row(),
            "seconds": state.seconds,
            "tokens_per_second": speeds[name],
        }
        for name, evaluation in evaluations.items()
    ]


def update_best(state: TrainerState, evaluations: dict[str, Evaluation], metric: str) -> None:
    """Remember this step if the metric has never been better on held-out pairs."""
    if metric == "none" or state.step == 0:
        return  # step 0 has no checkpoint to go back to
    value = evaluations["valid"].row()[metric]
    if value is None:
        raise DataError(
            "evaluation.best_metric: no held-out sentence has the four words that BLEU counts by; "
            "choose chrf"
        )
    best = state.best_value
    if best is None or (value < best if metric == "loss" else value > best):
        state.best_value, state.best_step = value, state.step
        state.evaluations_since_best = 0
    else:
        state.evaluations_since_best += 1


INITIALIZATION = 2**62  # takes the place of a step number, so that no step has the same seed


class Trainer:
    """Train the run that a config describes, from wherever its folder says it stands."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        device: torch.device,
        callbacks: list[Callback],
        *,
        fresh: bool = False,
        starting_weights: dict[str, Tensor] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config = config
        self.run_folder = run
        self.device = device
        self.callbacks = callbacks
        self.ranks = ranks or Ranks()
        set_threads(config, self.ranks)
        setup = setup_run(config, run, self.ranks, fresh=fresh)
        self.has_other_settings = bool(setup.changes)  # than when the run began
        self.notes = self.first_notes(setup)
        self.load_data(setup)
        self.state = TrainerState(data_fingerprint=setup.dataset.fingerprint)
        self.new_model()
        with self.ranks.propagate_errors():
            if not setup.resumes:
                self.load_starting_weights(starting_weights)
            freeze_all_but(self.model, config.training.trainable)
            self.optimizer = AdamW(self.model, config.training)
            if self.ranks.is_first:
                self.open_run(setup, fresh=fresh)
        if setup.resumes:
            self.share_position()
        self.training_loss = self.ranks.wrap(TrainingLoss(self.model, config.training))
        if self.ranks.world_size > 1:
            warm_up_ddp(self.training_loss, device)
        self.source_dependence = SourceDependence(self.model, self.encoded, self.tokenizer.start_id)
        self.saved_step = self.state.step
        self.tokens_since_evaluation, self.seconds_since_evaluation = 0, 0.0

    def run(self) -> int:
        """Train to the last step, or to a signal; returns the exit code."""
        self.ranks.set_timeout(self.config.training.step_timeout)
        with self.run_folder.require_space(0, "what a run writes"), StopSignals() as stop:
            for callback in self.callbacks:
                callback.on_start(self)
            if self.state.step == 0:
                self.evaluate()
            exit_code = self.ranks.all_reduce_max(stop.exit_code)
            while not self.is_finished and not exit_code:
                report = self.step()
                for callback in self.callbacks:
                    callback.on_step(self, report)
                is_due = self.state.step % self.config.evaluation.every == 0 or self.is_finished
                if is_due:
                    self.evaluate()
                if is_due or self.state.step % self.config.training.save_every == 0:
                    self.save()
                exit_code = self.ranks.all_reduce_max(stop.exit_code)
            if self.state.step > self.saved_step:  # a signal came between two saves
                self.save()
            exit_code = self.ranks.all_reduce_max(stop.exit_code)
            for callback in self.callbacks:
                callback.on_end(self, exit_code)
        return exit_code

    def step(self) -> StepMetrics:
        """Take one optimizer step over `accumulate` batches: loss, backward, clip, AdamW."""
        began = time.perf_counter()
        training, ranks, step = self.config.training, self.ranks, self.state.step + 1
        rate = learning_rate(step, training)
        batches = [
            self.stream.next().to(self.device) for _ in range(training.gradient_accumulation)
        ]
        (num_tokens,) = ranks.all_reduce_sum(sum(batch.num_target_tokens for batch in batches))
        total_loss = num_right = 0.0
        self.training_loss.train()
        for number, batch in enumerate(batches):
            # A seed from what is computed, not from what ran before: no random state is saved.
            torch.manual_seed(fold_in(training.seed, step, ranks.rank << 32 | number))
            is_last = number == len(batches) - 1
            with nullcontext() if is_last else ranks.no_sync(self.training_loss):
                result: HeadLoss = self.training_loss(*batch)
                # DistributedDataParallel takes the mean over processes: make it that over tokens.
                (result.objective * (ranks.world_size / num_tokens)).backward()  # type: ignore[no-untyped-call]
            total_loss += float(result.loss)
            num_right += int(result.num_right)
        total_loss, num_right = ranks.all_reduce_sum(total_loss, num_right)
        loss, accuracy = Sum(total_loss, int(num_tokens)), Sum(num_right, int(num_tokens))
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), training.clip_norm or float("inf")
        )
        if not norm.isfinite():  # the weights are still as they were
            raise nonfinite_gradient_error(self, batches, step, rate, loss, float(norm))
        self.optimizer.step(rate)
        seconds = time.perf_counter() - began
        self.state.step = step
        self.state.epoch, self.state.batch_index = self.stream.epoch, self.stream.index
        self.state.seconds += seconds
        self.tokens_since_evaluation += loss.count
        self.seconds_since_evaluation += seconds
        return StepMetrics(loss, accuracy, rate, float(norm), seconds)

    def evaluate(self) -> None:
        """Score both splits together with the other processes; the first one tells the scores."""
        began = time.perf_counter()
        evaluations = evaluate_splits(
            self.model, self.texts, self.encoded, self.tokenizer, self.config, self.ranks
        )
        self.state.seconds += time.perf_counter() - began
        if self.ranks.is_first:
            self.log_evaluation(evaluations)
        self.share_state()
        self.tokens_since_evaluation, self.seconds_since_evaluation = 0, 0.0

    def log_evaluation(self, evaluations: dict[str, Evaluation]) -> None:
        """Write scores to metrics.jsonl, remember the best, and tell the callbacks."""
        for name, evaluation in evaluations.items():
            if not math.isfinite(evaluation.loss.mean):
                raise nonfinite_loss_error(self, name, evaluation)
        speed = self.tokens_since_evaluation / max(self.seconds_since_evaluation, 1e-9)
        rows = metrics_rows(evaluations, self.state, training_speed=speed)
        self.state.metrics_bytes = append_rows(self.run_folder.metrics, rows)
        update_best(self.state, evaluations, self.config.evaluation.best_metric)
        warning = self.source_dependence.warning(self.state, self.config.training.steps)
        for callback in self.callbacks:
            callback.on_evaluation(self, evaluations)
            if warning:
                callback.on_warning(self, warning)

    def save(self) -> None:
        """Write a checkpoint, unless a value in it is not finite."""
        self.saved_step = self.state.step
        if not self.ranks.is_first:
            return
        weights, memory = model_tensors(self.model), self.optimizer.state
        if bad := find_nonfinite(weights | memory):
            raise DivergedError(
                f"step {self.state.step} is not saved: '{bad}' has NaN or infinite values. "
                "Checkpoints are as they were; lower training.learning_rate and start again "
                "with --fresh"
            )
        for callback in self.callbacks:
            callback.on_save(self)
        self.run_folder.save(self.state, weights, memory, self.config)

    @property
    def is_finished(self) -> bool:
        return self.state.step >= self.config.training.steps or self.has_lost_patience

    @property
    def has_lost_patience(self) -> bool:
        """Has the metric not become better for as many evaluations as the config waits?"""
        return 0 < self.config.training.patience <= self.state.evaluations_since_best

    def load_data(self, setup: RunSetup) -> None:
        """Take the corpus and tokenizer, and open the stream of this process's batches."""
        dataset, config = setup.dataset, self.config
        self.corpus, self.tokenizer = dataset.corpus, dataset.tokenizer
        self.encoded = dataset.encoded
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
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )

    def new_model(self) -> None:
        """Build the model; the seed decides its weights."""
        torch.manual_seed(fold_in(self.config.training.seed, INITIALIZATION))
        sizes = len(self.tokenizer.source), len(self.tokenizer.target)
        self.model = build_model(self.config.model, *sizes, PAD_ID).to(self.device)

    def load_starting_weights(self, weights: dict[str, Tensor] | None) -> None:
        """Load the weights of `training.init_from`; `wrap` sends them to the other processes."""
        where = self.config.training.init_from
        if where and self.ranks.is_first:
            weights = weights or read_tensors(Path(where).resolve())
            copy_into(model_tensors(self.model), weights, where)

    def open_run(self, setup: RunSetup, *, fresh: bool) -> None:
        """Continue from the newest checkpoint or create the run folder; refuse a full disk."""
        if setup.resumes:
            self.resume(setup)
        if self.is_finished:
            return
        # A full disk is reported now, not after an hour of training.
        with self.run_folder.require_space(self.optimizer.bytes_to_save(), "a checkpoint"):
            if fresh and (aside := self.run_folder.move_aside()):
                self.notes.append(f"moved the old run to {aside}")
            if not setup.resumes:
                self.run_folder.create(self.config, self.tokenizer)

    def resume(self, setup: RunSetup) -> None:
        """Continue from the newest whole checkpoint."""
        self.state, notes = load_training_state(
            self.run_folder, self.config, setup.dataset, setup.changes,
            self.model, self.optimizer,
        )  # fmt: skip
        self.notes += notes
        if complaint := truncate_rows(self.run_folder.metrics, self.state.metrics_bytes):
            self.notes.append(complaint)
        if not self.is_finished:
            self.run_folder.save_config(self.config)

    def share_position(self) -> None:
        """Continue on every rank from the state and optimizer that rank 0 has loaded."""
        self.share_state()
        if self.ranks.world_size > 1:
            memory = self.ranks.broadcast(tensor_bytes(self.optimizer.state))
            self.optimizer.load(bytes_to_tensors(memory))
        self.stream.move_to(epoch=self.state.epoch, index=self.state.batch_index)

    def share_state(self) -> None:
        """Replace the state of every rank by that of rank 0."""
        if self.ranks.world_size == 1:
            return
        told = self.ranks.broadcast(json.dumps(asdict(self.state)).encode())
        self.state = TrainerState(**json.loads(told))

    def first_notes(self, setup: RunSetup) -> list[str]:
        """Return what the user should know before the first step."""
        notes = [*setup.dataset.notes]
        if setup.changes:
            changes = "; ".join(setup.changes.values())
            notes.insert(0, f"changed since the run began: {changes}")
        if not setup.resumes:
            notes += setup.dataset.tokenizer.size_notes(self.config)
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks.world_size))
        if here > (cores := os.cpu_count() or 1) and self.device.type == "cpu":
            notes.append(f"{here} processes share {cores} cores")
        return notes


def set_threads(config: Config, ranks: Ranks) -> None:
    """Use `training.threads` threads; processes that share a machine share its cores."""
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    elif ranks.world_size > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks.world_size))


def warm_up_ddp(training_loss: nn.Module, device: torch.device) -> None:
    """Run `DistributedDataParallel` once, on a batch without labels.

    It orders the gradients anew after its first pass. Sums over three and more processes depend on
    that order, and a run that is continued must not differ from a whole one.
    """
    id, nothing = torch.tensor([[EOS_ID]]), torch.tensor([[PAD_ID]])
    result: HeadLoss = training_loss(*Batch(id, id, nothing).to(device))
    result.objective.backward()  # type: ignore[no-untyped-call]
    training_loss.zero_grad()
