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

from minitransformer import metrics
from minitransformer.config import load_config
from minitransformer.data.corpus import Pair
from minitransformer.data.encoding import EncodedPair
from minitransformer.data.preparation import prepare
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.data.tokens import EOS, EOS_ID, UNK_ID
from minitransformer.data.words import normalize
from minitransformer.decoding import Translator
from minitransformer.errors import DataError
from minitransformer.judging import Judged, batches_by_length, judge
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
    batches = batches_by_length(encoded, config.evaluation.batch_size)
    judged = judge(model, encoded, batches, tokenizer.start_id, config.model.max_length)
    return summarize(pairs, encoded, judged, tokenizer, config, began)


def summarize(
    pairs: list[Pair],
    encoded: Sequence[EncodedPair],
    judged: list[Judged],
    tokenizer: PairTokenizer,
    config: Config,
    began: float,
) -> Evaluation:
    """The scores of a split whose batches have been judged."""
    loss, forced, free = 0.0, Sum(0, 0), Sum(0, 0)
    translations, forced_texts = ([""] * len(pairs) for _ in range(2))
    is_exact = [False] * len(pairs)
    for batch in judged:
        loss += batch.loss
        for place, predicted, ids in zip(
            batch.places, batch.predicted, batch.produced, strict=True
        ):
            expected = encoded[place].target
            forced += metrics.matching_tokens(predicted, expected)
            free += metrics.matching_tokens(ids, expected)
            forced_texts[place] = forced_text(tokenizer, predicted)
            translations[place] = tokenizer.target.decode(ids)
            # An unknown word of the reference is not <UNK>: nothing that is produced equals it.
            # Pieces may be cut otherwise and still make the same text.
            is_exact[place] = (
                ids[-1] == EOS_ID
                and UNK_ID not in ids
                and translations[place] == tokenizer.target.decode(expected)
            )
    references = [normalize(pair.target) for pair in pairs]
    return Evaluation(
        loss=Sum(loss, forced.count),
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
