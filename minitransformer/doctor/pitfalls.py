"""The pitfall lab: train a model with a classic mistake, and a twin without it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from minitransformer import evaluation, search
from minitransformer.config import load_config
from minitransformer.data import batching
from minitransformer.data.batching import make_batch
from minitransformer.doctor.model_checks import make_context, quick_checks, sample_pairs
from minitransformer.doctor.report import FAILED, OK, CheckResult
from minitransformer.errors import DataError, UsageError
from minitransformer.evaluation import Evaluation
from minitransformer.model import attention, base, recurrent, transformer
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.fast import dropout
from minitransformer.model.trace import record
from minitransformer.model.transformer import Embedding
from minitransformer.run import RunFolder
from minitransformer.search import eval_mode
from minitransformer.settings import Config, ModelConfig
from minitransformer.training.trainer import Callback, Trainer
from minitransformer.translator import Translator

NUM_SENTENCES = 100  # held-out ones, for measurements
SETTINGS = ("evaluation.train_pairs=300", "logging.tensorboard=false")
ROW = "  {:46} {:>12} {:>12}"

Patch = tuple[Any, str, Callable[..., Any]]  # an object, an attribute of it, and its replacement


class Twin(Callback):
    """One of the two models: its training, its scores, and what was measured of it."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.evaluations: list[dict[str, Evaluation]] = []
        self.trainer = Trainer(config, RunFolder(folder), torch.device("cpu"), [self])
        if "valid" not in self.trainer.encoded:
            raise DataError(
                "--break needs held-out pairs, and this corpus has none: set data.split_valid"
            )
        model, tokenizer = self.trainer.model, self.trainer.tokenizer
        context = make_context(
            model, sample_pairs(self.trainer.encoded["train"]), tokenizer, config
        )
        self.results = quick_checks(context, is_fresh=True)
        self.translator = Translator(model, tokenizer, config)
        self.sources = [pair.source for pair in self.trainer.texts["valid"][:NUM_SENTENCES]]
        self.measured = ""

    def on_evaluation(self, trainer: Trainer, evaluations: dict[str, Evaluation]) -> None:
        self.evaluations.append(evaluations)

    def translate(self, sources: list[str], batch_size: int = NUM_SENTENCES) -> list[str]:
        return [each.text for each in self.translator.translate(sources, batch_size=batch_size)]

    def attention_weights(self, path: str) -> Tensor:
        """Return the weights of one attention module for held-out pairs."""
        pairs = self.trainer.encoded["valid"][:NUM_SENTENCES]
        batch = make_batch(pairs, self.trainer.tokenizer.start_id)
        with eval_mode(self.trainer.model), torch.no_grad(), record(self.trainer.model) as tensors:
            self.trainer.model(batch.source, batch.target_input)
        return tensors[f"{path}.weights"]  # [B, H, query, key]


@dataclass(frozen=True, kw_only=True)
class Pitfall:
    """A mistake: its code, the correct code, its effect, and the check that finds it."""

    title: str
    file: str
    wrong: tuple[str, ...]
    right: tuple[str, ...]
    effect: str
    check: str  # the name of the check that finds it
    patches: tuple[Patch, ...]
    label: str  # of the measurement
    measure: Callable[[Twin], str]
    settings: tuple[str, ...] = ()  # with which the effect can be seen
    steps: int = 300
    not_recurrent: str = ""  # why a recurrent model cannot have it
    needs_attention: bool = False

    def why_impossible(self, model: ModelConfig) -> str:
        """Return why a model of this shape cannot have the mistake, or nothing."""
        if self.needs_attention and model.attention == "none":
            return "this model has no attention (model.attention is none)"
        return self.not_recurrent if model.kind == "recurrent" else ""


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Replace attributes within, and restore them afterwards."""
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


def show_pitfalls(names: Sequence[str], path: Path, changes: list[str]) -> int:
    """Train both twins for each pitfall, and print its cause, its effect and what finds it."""
    for number, name in enumerate(names):
        pitfall = PITFALLS[name]
        config = pitfall_config(pitfall, path, changes)
        if number:
            print()
        if reason := pitfall.why_impossible(config.model):
            if len(names) == 1:
                raise UsageError(f"--break {name}: {reason}")
            print(f"{name}: {reason}", flush=True)
            continue
        print(f"{name}: {pitfall.title}\n\n  in minitransformer/{pitfall.file}")
        for label, code in (("wrong", pitfall.wrong), ("right", pitfall.right)):
            for index, line in enumerate(code):
                print(f"  {'' if index else label:5}   {line}")
        effect = wrap(pitfall.effect, 88, initial_indent="  ", subsequent_indent="  ")
        print("", *effect, "", sep="\n", flush=True)
        right = train_twin(config, pitfall, nullcontext())
        wrong = train_twin(config, pitfall, patched(pitfall.patches))
        print(*comparison_lines(path.name, pitfall, right, wrong), sep="\n")
        print(*check_lines(pitfall, wrong.results), sep="\n", flush=True)
    return 0


def pitfall_config(pitfall: Pitfall, path: Path, changes: list[str]) -> Config:
    """Return a config with the steps and settings that show the effect."""
    keys = ("training.steps", "training.save_every", "evaluation.every")
    steps = [f"{key}={pitfall.steps}" for key in keys]
    return load_config(path, [*changes, *steps, *SETTINGS, *pitfall.settings])


def train_twin(config: Config, pitfall: Pitfall, mistake: AbstractContextManager[None]) -> Twin:
    """Check, train and measure a model, in a temporary run folder."""
    with mistake, tempfile.TemporaryDirectory() as folder:
        twin = Twin(config, Path(folder) / "run")
        if code := twin.trainer.fit():  # a signal
            raise SystemExit(code)
        twin.measured = pitfall.measure(twin)
        return twin


def comparison_lines(config: str, pitfall: Pitfall, right: Twin, wrong: Twin) -> list[str]:
    """Return the table of the scores of both twins."""
    columns = []
    for twin in (right, wrong):
        train, valid = (twin.evaluations[-1][name] for name in ("train", "valid"))
        columns.append(
            {
                "loss on training pairs": f"{train.loss.mean:.3f}",
                "loss on held-out pairs": f"{valid.loss.mean:.3f}",
                "held-out accuracy, teacher-forced": f"{valid.accuracy_teacher_forced.mean:.1%}",
                "held-out accuracy, free-running": f"{valid.accuracy_free_running.mean:.1%}",
                "held-out exact matches": f"{valid.exact_match.mean:.1%}",
                pitfall.label: twin.measured,
            }
        )
    settings = ", ".join(pitfall.settings)
    return [
        ROW.format(f"{config}, {pitfall.steps} steps", "right", "wrong"),
        *([f"    (both with {settings})"] if settings else []),
        *(ROW.format(label, *(column[label] for column in columns)) for label in columns[0]),
        "",
    ]


def check_lines(pitfall: Pitfall, results: list[CheckResult]) -> list[str]:
    """Return what the checks found in the wrong twin before its first step."""
    failed = [result for result in results if result.status != OK]
    expected = [result for result in failed if result.name == pitfall.check]
    others = "; ".join(result.name for result in failed if result not in expected)
    lines = ["  The check meant for it does not find it in this model."]
    if expected:
        is_refused = any(result.status == FAILED for result in expected)
        consequence = "training refuses the model" if is_refused else "training prints it as a note"
        lines = [f"  Found before the first step; {consequence}:"]
        lines += [f"  {line}" for result in expected for line in result.lines()]
    return lines + ([f"  (found by other checks, too: {others})"] if others else [])


# The mistakes.


def no_causal_mask(num_queries: int, num_keys: int, device: torch.device | None = None) -> Tensor:
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)


def no_padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    return torch.ones_like(ids, dtype=torch.bool)[:, None, None, :]


def not_shifted(target: Tensor, start_id: int) -> Tensor:
    return target


def embed_without_positions(self: Embedding, ids: Tensor, start: int = 0) -> Tensor:
    tokens = functional.embedding(ids, self.weight) * self.scale
    return dropout(tokens, self.dropout, self.training)


def no_rotation(states: Tensor, positions: Tensor) -> Tensor:
    return states


original_init_weights = base.init_weights


def init_too_large(model: EncoderDecoder) -> None:
    for stack in (model.encoder, model.decoder):
        stack.embedding.scale = stack.embedding.weight.shape[1] ** 0.5
    model.embedding_std = 1.0
    original_init_weights(model)


def mask_with_large_number(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, scores, -1e9)


def softmax_over_queries(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-2)


def mode_unchanged(model: EncoderDecoder) -> nullcontext[None]:
    return nullcontext()


# Their effects.


def weight_on_later_tokens(twin: Twin) -> str:
    weights = twin.attention_weights("decoder.layers.0.self_attention")  # [B, H, T, T]
    return f"{float(weights[:, :, 0, 1:].sum(dim=-1).mean()):.0%}"


def changed_by_a_long_sentence(twin: Twin) -> str:
    alone = twin.translate(twin.sources, batch_size=1)
    tokens = " ".join(twin.sources).split()[: twin.trainer.config.model.max_length]
    in_batch = twin.translate([*twin.sources, " ".join(tokens)], len(twin.sources) + 1)
    return count_different(alone, in_batch[:-1])


def empty_translations(twin: Twin) -> str:
    translations = twin.translate(twin.sources)
    return f"{translations.count('')} of {len(translations)}"


def unchanged_by_reversal(twin: Twin) -> str:
    reversed_sources = [" ".join(reversed(source.split())) for source in twin.sources]
    pairs = zip(twin.translate(twin.sources), twin.translate(reversed_sources), strict=True)
    return f"{sum(one == other for one, other in pairs)} of {len(twin.sources)}"


def initial_loss(twin: Twin) -> str:
    return f"{twin.evaluations[0]['valid'].loss.mean:.2f}"


def sums_of_weights(twin: Twin) -> str:
    sums = twin.attention_weights(twin.trainer.model.source_attentions()[0]).sum(dim=-1)
    low, high = f"{float(sums.min()):.2f}", f"{float(sums.max()):.2f}"
    return low if low == high else f"{low} to {high}"


def changed_when_repeated(twin: Twin) -> str:
    twin.trainer.model.train()
    return count_different(*(twin.translate(twin.sources) for _ in range(2)))


def count_different(some: list[str], others: list[str]) -> str:
    count = sum(one != other for one, other in zip(some, others, strict=True))
    return f"{count} of {len(some)}"


PITFALLS = {
    "causal": Pitfall(
        title="the decoder's causal mask is missing",
        file="model/transformer.py",
        wrong=("mask = padding_mask(target, self.pad_id)",),
        right=(
            "mask = padding_mask(target, self.pad_id)",
            "mask = mask & causal_mask(target.shape[1], mask.shape[-1], target.device)",
        ),
        effect="In training, each position can attend to the next token, which is its label. In "
        "translation, that token does not exist yet.",
        check="causality",
        patches=((transformer, "causal_mask", no_causal_mask),),
        label="attention of the first position to later ones",
        measure=weight_on_later_tokens,
        not_recurrent="a recurrent decoder has no causal mask: it reads token by token, from left "
        "to right",
    ),
    "padding": Pitfall(
        title="padding is not masked",
        file="model/attention.py",
        wrong=("return torch.ones_like(ids, dtype=torch.bool)[:, None, None, :]",),
        right=("return (ids != pad_id)[:, None, None, :]",),
        effect="The loss decreases as usual. But the translation of a sentence changes when it is "
        "padded in a batch with longer ones.",
        check="padding",
        patches=tuple((kind, "padding_mask", no_padding_mask) for kind in (transformer, recurrent)),
        label="translations changed by a long one in the batch",
        measure=changed_by_a_long_sentence,
    ),
    "shift": Pitfall(
        title="the decoder's input is not shifted",
        file="data/batching.py",
        wrong=("later = target",),
        right=("later = torch.cat([start, target[:, :-1]], dim=1)",),
        effect="The model learns to copy its input, which is the label. In translation, its input "
        "is the start token, and it copies that.",
        check="decoder input",
        patches=((batching, "shifted", not_shifted),),
        label="empty translations",
        measure=empty_translations,
    ),
    "positions": Pitfall(
        title="the positional encoding is missing",
        file="model/transformer.py",
        wrong=("total = tokens",),
        right=("total = tokens + positions",),
        effect="To the encoder, a sentence is a bag of words: any order gives the same "
        "translation. Scores do not always show it: on en-es, whose word orders are similar, this "
        "model scores as well as the right one. It cannot learn to reverse digits.",
        check="word order",
        patches=(
            (Embedding, "forward", embed_without_positions),
            (transformer, "rotate", no_rotation),
        ),
        label="translations that reversing does not change",
        measure=unchanged_by_reversal,
        settings=("data.train=reverse", "data.limit=600"),
        steps=600,
        not_recurrent="a recurrent encoder depends on word order without positions",
    ),
    "scale": Pitfall(
        title="embeddings are drawn from N(0, 1) and also multiplied by √d_model",
        file="model/base.py and model/transformer.py",
        wrong=(
            "table.copy_(torch.randn(table.shape))",
            "tokens = functional.embedding(ids, self.weight) * d_model**0.5",
        ),
        right=(
            "table.copy_(torch.randn(table.shape) * model.embedding_std)",
            "tokens = functional.embedding(ids, self.weight) * self.scale",
        ),
        effect="(The right model has a standard deviation of 0.3 and a scale of 1.) The initial "
        "logits are large and wrong, attention is nearly one-hot, and positional encodings are "
        "negligible. The model overfits and generalizes badly.",
        check="initial loss",
        patches=((base, "init_weights", init_too_large),),
        label="held-out loss before the first step",
        measure=initial_loss,
        not_recurrent="the states of a recurrent model stay between -1 and 1, however large its "
        "embeddings are",
    ),
    "softmax": Pitfall(
        title="the softmax of attention is over the wrong dimension",
        file="model/attention.py and model/fast.py",
        wrong=("return torch.where(mask, scores, -1e9)", "return scores.softmax(dim=-2)"),
        right=('return torch.where(mask, scores, float("-inf"))', "return scores.softmax(dim=-1)"),
        effect="Each key is divided among the queries, later ones included. In translation, there "
        "is one query at a time, and each of its weights is 1. (With -inf instead of the usual "
        "-1e9, the mistake would be obvious: NaN wherever there is padding.)",
        check="attention weights",
        patches=(
            (attention, "apply_mask", mask_with_large_number),
            (attention, "softmax", softmax_over_queries),
        ),
        label="sum of a query's weights over the source",
        measure=sums_of_weights,
        needs_attention=True,
    ),
    "eval": Pitfall(
        title="dropout stays on in translation",
        file="search.py",
        wrong=("with torch.inference_mode():",),
        right=("with eval_mode(model), torch.inference_mode():",),
        effect="Each translation is made with randomly dropped values, and differs from one call "
        "to the next.",
        check="determinism",
        patches=tuple((module, "eval_mode", mode_unchanged) for module in (search, evaluation)),
        label="translations that change when repeated",
        measure=changed_when_repeated,
        settings=("model.dropout=0.3", "model.cross_attention_dropout=0.3"),
    ),
}
