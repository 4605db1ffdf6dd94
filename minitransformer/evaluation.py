"""How well a model does on a split: teacher-forced and free-running, side by side."""

import time
from dataclasses import dataclass
from typing import Any

import torch

from minitransformer import metrics
from minitransformer.config import Config
from minitransformer.data.batching import Batch, make_batch
from minitransformer.data.corpus import Pair
from minitransformer.data.encoding import EncodedPair
from minitransformer.data.tokenizer import PAD_ID, UNK_ID, PairTokenizer
from minitransformer.data.words import normalize
from minitransformer.decoding import greedy
from minitransformer.metrics import Score, Sum
from minitransformer.model.transformer import Transformer


@dataclass(frozen=True)
class Sample:
    """One evaluated sentence."""

    source: str
    reference: str
    translation: str
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
    encoded: list[EncodedPair],
    tokenizer: PairTokenizer,
    config: Config,
) -> Evaluation:
    """Score a model on sentence pairs, in eval mode, and leave its mode as it was."""
    began = time.perf_counter()
    device = next(model.parameters()).device
    loss = forced = free = Sum(0, 0)
    translations = [""] * len(pairs)
    is_exact = [False] * len(pairs)
    by_length = sorted(range(len(pairs)), key=lambda place: len(encoded[place].source))
    size = config.evaluation.batch_size
    was_training = model.training
    model.eval()
    for start in range(0, len(by_length), size):
        places = by_length[start : start + size]
        batch = make_batch([encoded[place] for place in places], tokenizer.start_id).to(device)
        batch_loss, batch_forced = teacher_forced(model, batch)
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
        for place, choices in zip(places, produced, strict=True):
            ids = [choice.id for choice in choices]
            free += metrics.matching_tokens(ids, encoded[place].target)
            translations[place] = tokenizer.target.decode(ids)
            # An unknown word of the reference is not <UNK>: nothing that is produced equals it.
            is_exact[place] = ids == encoded[place].target and UNK_ID not in ids
    model.train(was_training)
    references = [normalize(pair.target) for pair in pairs]
    return Evaluation(
        loss=loss,
        accuracy_teacher_forced=forced,
        accuracy_free_running=free,
        exact_match=Sum(sum(is_exact), len(pairs)),
        bleu=metrics.bleu(translations, references, config.evaluation.bleu_tokenizer),
        chrf=metrics.chrf(translations, references),
        samples=[
            Sample(*pair, translation, right)
            for pair, translation, right in zip(pairs, translations, is_exact, strict=True)
        ],
        seconds=time.perf_counter() - began,
    )


@torch.inference_mode()
def teacher_forced(model: Transformer, batch: Batch) -> tuple[Sum, Sum]:
    """Loss and accuracy when every earlier token is given."""
    logits = model(batch.source, batch.target_input)
    loss = float(metrics.summed_loss(logits, batch.target_output, PAD_ID))
    return (
        Sum(loss, batch.num_target_tokens),
        metrics.correct_tokens(logits, batch.target_output, PAD_ID),
    )
