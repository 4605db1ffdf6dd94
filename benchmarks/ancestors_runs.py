"""Configure, evaluate and time the models of benchmarks/ancestors.py."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.measuring import interleaved_rates
from minitransformer.config import changed_keys, find_config, load_config
from minitransformer.data.batching import BatchStream
from minitransformer.data.dataset import EncodedSplit, prepare_dataset
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import DataError, UsageError
from minitransformer.evaluation import Evaluation, evaluate
from minitransformer.model.base import build_model
from minitransformer.model.loss import TrainingLoss
from minitransformer.run import RunFolder
from minitransformer.settings import Config, ModelConfig
from minitransformer.training.optimizer import AdamW
from minitransformer.translator import Translator

NAMES = ("transformer", "recurrent", "no-attention")
MIN_SENTENCES = 500  # decoded in a round; the time of fewer is too noisy
ROUNDS, BATCHES = 5, 10  # training batches in each round
REVERSE = ("training.learning_rate=0.003",)  # suits all three models
# About as many parameters as the Transformer of reverse.yaml has.
RECURRENT_REVERSE = (
    "model.kind=recurrent", "model.d_model=128", "model.num_heads=1", "model.d_ff=0",
    "model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.norm=none",
    "model.positional_encoding=none", "model.scale_scores=false", "model.bidirectional=true",
)  # fmt: skip
# Settings of the model that change its batches.
BATCHING_KEYS = {"model.max_length", "model.decoder_start_token", "model.source_eos"}


class ModelRun(NamedTuple):
    """The training of one model: its run folder and the arguments of train.py."""

    name: str
    path: Path
    config_path: Path
    sets: list[str]
    config: Config


class EvaluatedModel(NamedTuple):
    """A trained model with its scores on held-out pairs."""

    run: ModelRun
    translator: Translator
    train: EncodedSplit
    split: str
    evaluation: Evaluation


def model_runs(
    pair: Sequence[str], sets: list[str], recurrent_sets: Sequence[str], runs: Path
) -> list[ModelRun]:
    """Return the runs of all three models on a corpus."""
    transformer_path, recurrent_path = map(find_config, pair)
    prefix = runs / transformer_path.stem
    first = model_run("transformer", prefix, transformer_path, sets)
    second = model_run("recurrent", prefix, recurrent_path, [*sets, *recurrent_sets])
    require_comparable(first, second)
    third_sets = [*sets, *recurrent_sets, "model.attention=none"]
    return [first, second, model_run("no-attention", prefix, recurrent_path, third_sets)]


def model_run(name: str, prefix: Path, config_path: Path, sets: list[str]) -> ModelRun:
    """Return the run of a model, whose folder is named after the prefix and the model."""
    steps = load_config(config_path, sets).training.steps
    # TensorBoard and more evaluations would take time between the steps.
    sets = [*sets, "logging.tensorboard=false", f"evaluation.every={steps}",
            "evaluation.train_pairs=1"]  # fmt: skip
    path = prefix.with_name(f"{prefix.name}-{name}")
    return ModelRun(name, path, config_path, sets, load_config(config_path, sets))


def require_comparable(first: ModelRun, second: ModelRun) -> None:
    """Raise an error unless a Transformer and an RNN with attention differ only as models."""
    if first.config.model.kind != "transformer":
        raise UsageError(f"--pair: {first.config_path.name} is no Transformer, which comes first")
    if second.config.model.kind != "recurrent" or second.config.model.attention == "none":
        raise UsageError(f"--pair: {second.config_path.name} is no recurrent model with attention")
    changed = changed_keys(first.config, second.config)
    differing = [key for key in changed if not key.startswith("model.") or key in BATCHING_KEYS]
    if differing:
        raise UsageError(
            f"--pair: {first.config_path.name} and {second.config_path.name} differ in "
            f"{', '.join(differing)}; make them equal with --set"
        )


def label(model: ModelConfig) -> str:
    """Return the label of a model in tables and plots."""
    if model.kind == "transformer":
        return "Transformer"
    return f"{model.cell.upper()} {'without' if model.attention == 'none' else 'with'} attention"


def evaluate_run(run: ModelRun) -> EvaluatedModel:
    """Evaluate a trained model on the test split, or on the validation split if there is none."""
    changed = changed_keys(RunFolder(run.path).load_config(), run.config)
    if model_keys := [key for key in changed if key.startswith("model.")]:
        raise DataError(f"{run.path} has another {', '.join(model_keys)}; choose another --runs")
    translator = Translator.load(run.path)
    dataset = prepare_dataset(run.config, translator.tokenizer)
    if translator.data_fingerprint != dataset.fingerprint:
        raise DataError(f"{run.path} was begun with other sentence pairs; choose another --runs")
    held_out = [name for name in ("test", "valid") if name in dataset.corpus.splits]
    if not held_out:
        raise DataError("no pairs to test with; name some with --set data.test=FILE")
    split = dataset.corpus.splits[held_out[0]]
    evaluation = evaluate(
        translator.model, list(split), dataset.encoded[split.name], translator.tokenizer,
        run.config,
    )  # fmt: skip
    details = evaluation.bleu.details
    print(f"{run.path} ({translator.checkpoint}): BLEU {details}", file=sys.stderr)
    return EvaluatedModel(run, translator, dataset.encoded["train"], split.name, evaluation)


def training_rates(models: list[EvaluatedModel]) -> list[list[float]]:
    """Return the target tokens per second of each model in training, by round."""

    def new_training(evaluated: EvaluatedModel) -> Callable[[], int]:
        config, tokenizer = evaluated.run.config, evaluated.translator.tokenizer
        model = build_model(config.model, len(tokenizer.source), len(tokenizer.target), PAD_ID)
        training_loss = TrainingLoss(model.train(), config.training)
        optimizer = AdamW(model, config.training)
        stream = BatchStream(
            evaluated.train, batch_tokens=config.training.batch_tokens, seed=config.training.seed,
            start_id=tokenizer.start_id,
        )  # fmt: skip

        def train() -> int:
            tokens = 0
            for _ in range(BATCHES):
                batch = stream.next()
                count = batch.num_target_tokens
                (training_loss(*batch).objective / count).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step(config.training.learning_rate)
                tokens += count
            return tokens

        return train

    workloads = {evaluated.run.name: new_training(evaluated) for evaluated in models}
    return list(interleaved_rates(workloads, ROUNDS).values())


def decoding_rates(models: list[EvaluatedModel]) -> list[list[float]]:
    """Return the sentences per second of each model in decoding, by round."""

    def translate(evaluated: EvaluatedModel) -> int:
        sources = [sample.source for sample in evaluated.evaluation.samples]
        sources *= -(-MIN_SENTENCES // len(sources))
        batch_size = evaluated.run.config.evaluation.batch_size
        return len(evaluated.translator.translate(sources, batch_size=batch_size))

    workloads = {evaluated.run.name: partial(translate, evaluated) for evaluated in models}
    return list(interleaved_rates(workloads, ROUNDS).values())
