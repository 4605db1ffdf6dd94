"""The contestants of benchmarks/ancestors.py: how each is trained, and how it is tested then."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.measuring import interleaved
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
LEAST_SENTENCES = 500  # in a round; of fewer, its time is chance
ROUNDS, BATCHES = 5, 10  # in turns; so many batches of training in each
REVERSE = ("training.learning_rate=0.003",)  # serves all three
# Nearly as many parameters as the Transformer of reverse.yaml has.
RECURRENT_REVERSE = (
    "model.kind=recurrent", "model.d_model=128", "model.num_heads=1", "model.d_ff=0",
    "model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.norm=none",
    "model.positional_encoding=none", "model.scale_scores=false", "model.bidirectional=true",
)  # fmt: skip
# What a model's batches depend on, although it is the model's.
OF_BATCHES = {"model.max_length", "model.decoder_start_token", "model.source_eos"}


class Contestant(NamedTuple):
    """A model, and how train.py is asked for it."""

    name: str
    run: Path
    source: Path
    sets: list[str]
    config: Config


class Tested(NamedTuple):
    """A trained contestant on the sentences that it was not trained with."""

    contestant: Contestant
    translator: Translator
    train: EncodedSplit
    split: str
    found: Evaluation


def contestants(
    pair: Sequence[str], sets: list[str], of_recurrent: Sequence[str], runs: Path
) -> list[Contestant]:
    """All three of a corpus; refuses a comparison of unequals."""
    transformers, recurrents = map(find_config, pair)
    begin = runs / transformers.stem
    first = contestant("transformer", begin, transformers, sets)
    second = contestant("recurrent", begin, recurrents, [*sets, *of_recurrent])
    refuse_unequals(first, second)
    third = [*sets, *of_recurrent, "model.attention=none"]
    return [first, second, contestant("no-attention", begin, recurrents, third)]


def contestant(name: str, begin: Path, source: Path, sets: list[str]) -> Contestant:
    """A contestant by its name, with which its run's path ends."""
    steps = load_config(source, sets).training.steps
    # Drawing, and eval_mode more often, would be a part of the time.
    sets = [*sets, "logging.tensorboard=false", f"evaluation.every={steps}",
            "evaluation.train_pairs=1"]  # fmt: skip
    run = begin.with_name(f"{begin.name}-{name}")
    return Contestant(name, run, source, sets, load_config(source, sets))


def refuse_unequals(first: Contestant, second: Contestant) -> None:
    """A Transformer and a recurrent model with attention to lose, which differ as models alone."""
    if first.config.model.kind != "transformer":
        raise UsageError(f"--pair: {first.source.name} is no Transformer; it is named first")
    if second.config.model.kind != "recurrent" or second.config.model.attention == "none":
        raise UsageError(f"--pair: {second.source.name} is no recurrent model with attention")
    changed = changed_keys(first.config, second.config)
    unequal = [key for key in changed if not key.startswith("model.") or key in OF_BATCHES]
    if unequal:
        raise UsageError(
            f"--pair: {first.source.name} and {second.source.name} differ in {', '.join(unequal)}; "
            "make them equal with --set"
        )


def label(model: ModelConfig) -> str:
    if model.kind == "transformer":
        return "Transformer"
    return f"{model.cell.upper()} {'without' if model.attention == 'none' else 'with'} attention"


def tested(each: Contestant) -> Tested:
    """Scored on the test split, or on the held-out pairs of a corpus that has none."""
    changed = changed_keys(RunFolder(each.run).load_config(), each.config)
    if of_model := [key for key in changed if key.startswith("model.")]:
        raise DataError(f"{each.run} has another {', '.join(of_model)}; choose another --runs")
    translator = Translator.load(each.run)
    dataset = prepare_dataset(each.config, translator.tokenizer)
    if translator.data_fingerprint != dataset.fingerprint:
        raise DataError(f"{each.run} was begun with other sentence pairs; choose another --runs")
    held_out = [name for name in ("test", "valid") if name in dataset.corpus.splits]
    if not held_out:
        raise DataError("no pairs to test with; name some with --set data.test=FILE")
    split = dataset.corpus.splits[held_out[0]]
    found = evaluate(
        translator.model, list(split), dataset.encoded[split.name], translator.tokenizer,
        each.config,
    )  # fmt: skip
    print(f"{each.run} ({translator.checkpoint}): BLEU {found.bleu.details}", file=sys.stderr)
    return Tested(each, translator, dataset.encoded["train"], split.name, found)


def training_rates(tests: list[Tested]) -> list[list[float]]:
    """Target tokens a second that fresh models learn from, round by round."""

    def new_trainee(each: Tested) -> Callable[[], int]:
        config, tokenizer = each.contestant.config, each.translator.tokenizer
        model = build_model(config.model, len(tokenizer.source), len(tokenizer.target), PAD_ID)
        training_loss = TrainingLoss(model.train(), config.training)
        optimizer = AdamW(model, config.training)
        stream = BatchStream(
            each.train, batch_tokens=config.training.batch_tokens, seed=config.training.seed,
            start_id=tokenizer.start_id,
        )  # fmt: skip

        def learn() -> int:
            tokens = 0
            for _ in range(BATCHES):
                batch = stream.next()
                count = batch.num_target_tokens
                (training_loss(*batch).objective / count).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step(config.training.learning_rate)
                tokens += count
            return tokens

        return learn

    turns = {each.contestant.name: new_trainee(each) for each in tests}
    return list(interleaved(turns, ROUNDS).values())


def decoding_rates(tests: list[Tested]) -> list[list[float]]:
    """Sentences a second, round by round."""

    def translate(each: Tested) -> int:
        sources = [sample.source for sample in each.found.samples]
        sources *= -(-LEAST_SENTENCES // len(sources))
        size = each.contestant.config.evaluation.batch_size
        return len(each.translator.translate(sources, batch_size=size))

    turns = {each.contestant.name: lambda each=each: translate(each) for each in tests}
    return list(interleaved(turns, ROUNDS).values())
