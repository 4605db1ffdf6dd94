"""How well a model does on a split: teacher-forced and free-running, side by side.

python -m minitransformer.evaluation runs/tiny --split valid
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitransformer import metrics
from minitransformer.config import load_config
from minitransformer.data.batching import Batch, make_batch
from minitransformer.data.corpus import Pair
from minitransformer.data.encoding import EncodedPair
from minitransformer.data.preparation import prepare
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.data.tokens import EOS, EOS_ID, PAD_ID, UNK_ID
from minitransformer.data.words import normalize
from minitransformer.decoding import Translator, evaluating, greedy
from minitransformer.errors import DataError
from minitransformer.metrics import Score, Sum
from minitransformer.model.transformer import Transformer
from minitransformer.settings import Config
from minitransformer.terminal import run_command


@dataclass(frozen=True)
class Sample:
    """One evaluated sentence."""

    source: str
    reference: str
    translation: str
    forced: str  # what was predicted where every earlier token was given
    is_exact: bool


@dataclass(frozen=True)
class Evaluation:
    """What one split scored; sums keep their counts."""

    loss: Sum
    accuracy_teacher_forced: Sum
    accuracy_free_running: Sum
    exact_match: Sum
    bleu: Score
    chrf: Score
    samples: list[Sample]
    seconds: float

    def row(self) -> dict[str, Any]:
        """The numbers alone, ready for a line of JSON."""
        return {
            "loss": self.loss.mean,
            "perplexity": metrics.perplexity(self.loss.mean),
            "exact_match": self.exact_match.mean,
            "accuracy_teacher_forced": self.accuracy_teacher_forced.mean,
            "accuracy_free_running": self.accuracy_free_running.mean,
            "bleu": self.bleu.value,
            "bleu_signature": self.bleu.signature,
            "chrf": self.chrf.value,
            "chrf_signature": self.chrf.signature,
        }


def evaluate(
    model: Transformer,
    pairs: list[Pair],
    encoded: Sequence[EncodedPair],
    tokenizer: PairTokenizer,
    config: Config,
) -> Evaluation:
    """Score a model on sentence pairs."""
    began = time.perf_counter()
    device = next(model.parameters()).device
    loss = forced = free = Sum(0, 0)
    translations, forced_texts = ([""] * len(pairs) for _ in range(2))
    is_exact = [False] * len(pairs)
    by_length = sorted(range(len(pairs)), key=lambda place: len(encoded[place].source))
    size = config.evaluation.batch_size
    for start in range(0, len(by_length), size):
        places = by_length[start : start + size]
        batch = make_batch([encoded[place] for place in places], tokenizer.start_id).to(device)
        batch_loss, batch_forced, predicted = teacher_forced(model, batch)
        loss, forced = loss + batch_loss, forced + batch_forced
        produced = greedy(
            model,
            batch.source,
            start_id=tokenizer.start_id,
            limits=[
                # No output beyond this can be right, and early models run on and on.
                min(2 * len(encoded[place].target) + 10, config.model.max_length)
                for place in places
            ],
        )
        for place, choices, row in zip(places, produced, predicted.tolist(), strict=True):
            ids = [choice.id for choice in choices]
            forced_texts[place] = forced_text(tokenizer, row[: len(encoded[place].target)])
            free += metrics.matching_tokens(ids, encoded[place].target)
            translations[place] = tokenizer.target.decode(ids)
            # An unknown word of the reference is not <UNK>: nothing that is produced equals it.
            # Pieces may be cut otherwise and still make the same text.
            is_exact[place] = (
                ids[-1] == EOS_ID
                and UNK_ID not in ids
                and translations[place] == tokenizer.target.decode(encoded[place].target)
            )
    references = [normalize(pair.target) for pair in pairs]
    return Evaluation(
        loss=loss,
        accuracy_teacher_forced=forced,
        accuracy_free_running=free,
        exact_match=Sum(sum(is_exact), len(pairs)),
        bleu=metrics.bleu(translations, references, config.evaluation.bleu_tokenizer),
        chrf=metrics.chrf(translations, references),
        samples=[
            Sample(*pair, translations[place], forced_texts[place], is_exact[place])
            for place, pair in enumerate(pairs)
        ],
        seconds=time.perf_counter() - began,
    )


def teacher_forced(model: Transformer, batch: Batch) -> tuple[Sum, Sum, Tensor]:
    """Loss, accuracy and predicted ids [B, T] when every earlier token is given."""
    with evaluating(model), torch.inference_mode():
        logits = model(batch.source, batch.target_input)
        loss = float(metrics.summed_loss(logits, batch.target_output, PAD_ID))
        predicted = logits.argmax(dim=-1)
    return (
        Sum(loss, batch.num_target_tokens),
        metrics.correct_tokens(predicted, batch.target_output, PAD_ID),
        predicted,
    )


def forced_text(tokenizer: PairTokenizer, predicted: list[int]) -> str:
    """What was predicted at each place; an <EOS> before the last is shown, for it ends nothing."""
    parts: list[list[int]] = [[]]
    for place, id in enumerate(predicted):
        if id != EOS_ID:
            parts[-1].append(id)
        elif place < len(predicted) - 1:
            parts.append([])
    return f" {EOS} ".join(tokenizer.target.decode(part) for part in parts)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m minitransformer.evaluation",
        description="Score a trained run on a split of the corpus that its config names.",
    )
    parser.add_argument("run", type=Path, help="a run's folder, such as runs/tiny")
    parser.add_argument(
        "--split", choices=("train", "valid", "test"), default="test", help="default: test"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="look elsewhere, such as data.test=other.tsv (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint", choices=("last", "best"),
        help="default: best where the run's config selects one, else last",
    )  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    translator = Translator.load(options.run, device=options.device, checkpoint=options.checkpoint)
    config = load_config(options.run / "config.yaml", options.set)
    tokenizer = translator.tokenizer
    prepared = prepare(config, tokenizer)
    if options.split != "test" and prepared.fingerprint != translator.data_fingerprint:
        raise DataError(
            f"{prepared.corpus.name} has other sentence pairs now than {options.run} was trained "
            "with, so that its splits are others, too; only --split test can be scored"
        )
    split = prepared.corpus.splits.get(options.split)
    if split is None:
        raise DataError(
            f"{prepared.corpus.name} has no {options.split} split "
            f"(there: {', '.join(prepared.corpus.splits)}); name one with --set data.test=FILE, "
            "or choose another --split"
        )
    encoded = prepared.encoded[options.split]
    evaluation = evaluate(translator.model, list(split), encoded, tokenizer, config)
    pairs = f"{len(split):,} pair{'s' * (len(split) != 1)}"
    print(f"{options.run} ({translator.checkpoint}) on {split.source.name}: {pairs}")
    for line in split.report.lines():
        print(f"  {line}")
    for name, value in evaluation.row().items():
        shown = f"{value:.4f}" if isinstance(value, float) else "-" if value is None else value
        print(f"  {name:24} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:])))
