"""The pitfall lab: a model trained rightly beside a twin with a classic mistake."""

import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from minitransformer import evaluation as judging
from minitransformer import search
from minitransformer import search as beam
from minitransformer.config import load_config
from minitransformer.data import batching
from minitransformer.data.batching import make_batch
from minitransformer.doctor.findings import FAILED, OK, Finding
from minitransformer.doctor.model_checks import few_pairs, new_patient, quick_checks
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

init_weights = base.init_weights


@dataclass(frozen=True)
class Breakage:
    """One mistake: what it is, the line as it is wrongly and rightly written, how it shows."""

    title: str
    file: str
    wrong: tuple[str, ...]
    right: tuple[str, ...]
    shows: str
    check: str  # the name of the finding that catches it
    places: tuple[tuple[Any, str, Callable[..., Any]], ...]
    settings: tuple[str, ...] = ()  # that both twins need, so that it can show
    steps: int = 300  # enough to show it
    recurrent: str = ""  # why a recurrent model cannot make it
    needs_attention: bool = False

    def why_not(self, model: ModelConfig) -> str:
        """Why a model cannot make this mistake; empty where it can."""
        if self.needs_attention and model.attention == "none":
            return "this model has no attention (model.attention is none)"
        return self.recurrent if model.kind == "recurrent" else ""

    @contextmanager
    def made(self) -> Iterator[None]:
        """Everything that runs within makes this mistake."""
        with ExitStack() as undo:
            for owner, name, wrong in self.places:
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, wrong)
            yield


def see_everything(num_queries: int, num_keys: int, device: torch.device | None = None) -> Tensor:
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)


def see_padding(ids: Tensor, pad_id: int) -> Tensor:
    return torch.ones_like(ids, dtype=torch.bool)[:, None, None, :]


def not_shifted(target: Tensor, start_id: int) -> Tensor:
    return target


def embed_without_positions(self: Embedding, ids: Tensor, start: int = 0) -> Tensor:
    tokens = functional.embedding(ids, self.weight) * self.scale
    return dropout(tokens, self.dropout, self.training)


def without_angles(self: transformer.Transformer, ids: Tensor, start: int) -> None:
    return None


def start_too_large(model: EncoderDecoder) -> None:
    for stack in (model.encoder, model.decoder):
        stack.embedding.scale = stack.embedding.weight.shape[1] ** 0.5
    model.embedding_std = 1.0
    init_weights(model)


def mask_with_a_large_number(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, scores, -1e9)


def softmax_over_queries(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-2)


def as_it_is(model: EncoderDecoder) -> nullcontext[None]:
    return nullcontext()


BREAKAGES = {
    "causal": Breakage(
        title="the decoder's causal mask is forgotten",
        file="model/transformer.py",
        wrong=("mask = padding_mask(target, self.pad_id)",),
        right=(
            "mask = padding_mask(target, self.pad_id)",
            "mask = mask & causal_mask(target.shape[1], mask.shape[-1], target.device)",
        ),
        shows="While it learns, each place can look at the next token, which is the answer. When "
        "it translates, nothing stands there yet.",
        check="no look ahead",
        recurrent="a recurrent decoder has no causal mask: word by word, it has not read what is "
        "later",
        places=((transformer, "causal_mask", see_everything),),
    ),
    "padding": Breakage(
        title="padding is not hidden",
        file="model/attention.py",
        wrong=("return torch.ones_like(ids, dtype=torch.bool)[:, None, None, :]",),
        right=("return (ids != pad_id)[:, None, None, :]",),
        shows="It learns all the same. But a sentence is then translated one way alone and another "
        "way beside longer ones.",
        check="padding, neighbours",
        places=tuple((kind, "padding_mask", see_padding) for kind in (transformer, recurrent)),
    ),
    "shift": Breakage(
        title="the decoder's input is not shifted",
        file="data/batching.py",
        wrong=("later = target",),
        right=("later = torch.cat([start, target[:, :-1]], dim=1)",),
        shows="It learns to copy what it reads, which is the answer. When it translates, it reads "
        "the start token and copies that.",
        check="decoder's input",
        places=((batching, "shifted", not_shifted),),
    ),
    "positions": Breakage(
        title="the positional encoding is forgotten",
        file="model/transformer.py",
        wrong=("total = tokens",),
        right=("total = tokens + positions",),
        shows="A sentence is a bag of words: in any order they get the same translation. Scores "
        "may hide it: on en-es, whose words hardly ever change places, this twin scores as well. "
        "On digits that are to be reversed, it cannot.",
        check="word order",
        places=(
            (Embedding, "forward", embed_without_positions),
            (transformer.Transformer, "rotary_positions", without_angles),
        ),
        recurrent="a recurrent encoder notices the order of words without positions",
        settings=("data.train=reverse", "data.limit=600"),
        steps=600,
    ),
    "scale": Breakage(
        title="embeddings start at N(0, 1), and are multiplied by √d_model besides",
        file="model/base.py and model/transformer.py",
        wrong=(
            "table.copy_(torch.randn(table.shape))",
            "tokens = functional.embedding(ids, self.weight) * d_model**0.5",
        ),
        right=(
            "table.copy_(torch.randn(table.shape) * model.embedding_std)",
            "tokens = functional.embedding(ids, self.weight) * self.scale",
        ),
        shows="(Right is a spread of 0.3 and a scale of 1 here.) The first logits are large and "
        "wrong, the softmax of attention is all or nothing, "
        "and positions drown. It learns by heart and generalises badly.",
        check="loss at start",
        recurrent="the states of a recurrent model stay between -1 and 1, however large its "
        "embeddings are",
        places=((base, "init_weights", start_too_large),),
    ),
    "softmax": Breakage(
        title="the softmax of attention goes over the wrong axis",
        file="model/attention.py and model/fast.py",
        wrong=("return torch.where(mask, scores, -1e9)", "return scores.softmax(dim=-2)"),
        right=('return torch.where(mask, scores, float("-inf"))', "return scores.softmax(dim=-1)"),
        shows="Each key is shared out among the queries, later ones included. When it translates, "
        "there is one query at a time, which gets all of every key. (With -inf instead of the "
        "customary -1e9 it would be noticed at once: not-a-number wherever there is padding.)",
        check="attention",
        needs_attention=True,
        places=(
            (attention, "apply_mask", mask_with_a_large_number),
            (attention, "softmax", softmax_over_queries),
        ),
    ),
    "eval": Breakage(
        title="dropout stays on when translating",
        file="search.py",
        wrong=("with torch.inference_mode():",),
        right=("with eval_mode(model), torch.inference_mode():",),
        shows="Every translation is made by a model with holes, and by another one each time.",
        check="same twice",
        places=tuple((module, "eval_mode", as_it_is) for module in (search, judging, beam)),
        settings=("model.dropout=0.3", "model.cross_attention_dropout=0.3"),
    ),
}


SENTENCES = 100  # held-out ones that are looked at


class Trained(NamedTuple):
    """A model after its training, and its scores before the first step and after the last."""

    trainer: Trainer
    before: dict[str, Evaluation]
    after: dict[str, Evaluation]

    @property
    def sources(self) -> list[str]:
        return [pair.source for pair in self.trainer.texts["valid"][:SENTENCES]]

    def translations(self, sources: list[str], batch_size: int = SENTENCES) -> list[str]:
        translator = Translator(self.trainer.model, self.trainer.tokenizer, self.trainer.config)
        return [each.text for each in translator.translate(sources, batch_size=batch_size)]

    def attention(self, where: str) -> Tensor:
        """The weights of the first layer's attention there, over held-out pairs."""
        pairs = self.trainer.encoded["valid"][:SENTENCES]
        batch = make_batch(pairs, self.trainer.tokenizer.start_id)
        with eval_mode(self.trainer.model), torch.no_grad(), record(self.trainer.model) as tensors:
            self.trainer.model(batch.source, batch.target_input)
        return tensors[f"{where}.weights"]


class Symptom(NamedTuple):
    label: str
    measured: Callable[[Trained], str]


def share_on_the_next(trained: Trained) -> str:
    """How much the first place looks at what comes after it."""
    weights = trained.attention("decoder.layers.0.self_attention")  # [B, H, T, T]
    return f"{float(weights[:, :, 0, 1:].sum(dim=-1).mean()):.0%}"


def changed_by_a_neighbour(trained: Trained) -> str:
    """What one long sentence in the same batch does to the others."""
    sources = trained.sources
    words = " ".join(sources).split()[: trained.trainer.config.model.max_length]
    beside = trained.translations([*sources, " ".join(words)], batch_size=len(sources) + 1)
    return differing(trained.translations(sources, batch_size=1), beside[:-1])


def empty_ones(trained: Trained) -> str:
    translations = trained.translations(trained.sources)
    return f"{translations.count('')} of {len(translations)}"


def unchanged_backwards(trained: Trained) -> str:
    backwards = [" ".join(reversed(source.split())) for source in trained.sources]
    pairs = zip(trained.translations(trained.sources), trained.translations(backwards), strict=True)
    same = sum(one == other for one, other in pairs)
    return f"{same} of {len(backwards)}"


def loss_at_start(trained: Trained) -> str:
    return f"{trained.before['valid'].loss.mean:.2f}"


def sums_of_weights(trained: Trained) -> str:
    sums = trained.attention(trained.trainer.model.source_attentions()[0]).sum(dim=-1)
    low, high = f"{float(sums.min()):.2f}", f"{float(sums.max()):.2f}"
    return low if low == high else f"{low} to {high}"


def changed_by_asking_again(trained: Trained) -> str:
    trained.trainer.model.train()
    return differing(*(trained.translations(trained.sources) for _ in range(2)))


def differing(some: list[str], others: list[str]) -> str:
    count = sum(one != other for one, other in zip(some, others, strict=True))
    return f"{count} of {len(some)}"


SYMPTOMS = {
    "causal": Symptom("attention of the first place to later ones", share_on_the_next),
    "padding": Symptom("translations that change beside a long one", changed_by_a_neighbour),
    "shift": Symptom("translations that are empty", empty_ones),
    "positions": Symptom("sentences translated the same backwards", unchanged_backwards),
    "scale": Symptom("held-out loss before the first step", loss_at_start),
    "softmax": Symptom("a query's weights over the source sum to", sums_of_weights),
    "eval": Symptom("translations that change when asked again", changed_by_asking_again),
}


SETTINGS = ("evaluation.train_pairs=300", "logging.tensorboard=false")
ROW = "  {:46} {:>12} {:>12}"


class Twin(NamedTuple):
    """What was measured of one of two models."""

    findings: list[Finding]  # before the first step
    after: dict[str, Evaluation]
    symptom: str


class Scores(Callback):
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
        if code := trainer.fit():  # a signal
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
