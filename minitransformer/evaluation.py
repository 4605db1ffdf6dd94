"""How good a model is on sentence pairs: loss, accuracies, BLEU and chrF of a split.

B batch, T target, N labels, C chunk, V vocabulary.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from minitransformer import metrics
from minitransformer.data.batching import Batch, make_batch
from minitransformer.data.corpus import Pair
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import (
    EOS,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    PairTokenizer,
    normalize,
)
from minitransformer.metrics import Score, Sum
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.loss import cross_entropy, rows_per_chunk
from minitransformer.search import GREEDY_SEARCH, SearchConfig, eval_mode, translate_ids
from minitransformer.settings import Config


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


class BatchResult(NamedTuple):
    """What a model said of one batch: plain numbers, which another process can send."""

    indices: list[int]
    loss: float
    predicted: list[list[int]]  # where every earlier token is given
    produced: list[list[int]]


def batches_by_length(encoded: Sequence[EncodedPair], size: int) -> list[list[int]]:
    """Places of pairs, those of similar length together."""
    by_length = sorted(range(len(encoded)), key=lambda place: len(encoded[place].source))
    return [by_length[start : start + size] for start in range(0, len(by_length), size)]


def score_batches(
    model: EncoderDecoder,
    encoded: Sequence[EncodedPair],
    batches: list[list[int]],
    start_id: int,
    max_length: int,
    search: SearchConfig = GREEDY_SEARCH,
    *,
    is_capped: bool,
) -> list[BatchResult]:
    """What a model says of each batch, with every earlier token given and on its own.

    Early models run on and on; capped, a translation ends where nothing more can be right.
    """
    device = next(model.parameters()).device
    judged = []
    for places in batches:
        batch = make_batch([encoded[place] for place in places], start_id).to(device)
        lengths = [len(encoded[place].target) for place in places]
        loss, predicted = teacher_forced(model, batch)
        max_lengths = [
            min(2 * max(map(len, encoded[place])) + 10, max_length) if is_capped else max_length
            for place in places
        ]
        judged.append(
            BatchResult(
                places,
                loss,
                [ids.tolist() for ids in torch.split(predicted, lengths)],
                translate_ids(model, batch.source, start_id, max_lengths, search),
            )
        )
    return judged


def teacher_forced(model: EncoderDecoder, batch: Batch) -> tuple[float, Int[Tensor, " labels"]]:
    """The summed loss and the predicted ids of all labels, when every earlier token is given."""
    is_label = batch.target_output != PAD_ID  # [B, T]
    labels = batch.target_output[is_label]  # [N]
    with eval_mode(model), torch.inference_mode():
        states = model.decode_states(batch.target_input, model.encode(batch.source))[is_label]
        loss, predicted = 0.0, []
        rows = rows_per_chunk(model.head.weight)
        for chunk, label in zip(torch.split(states, rows), torch.split(labels, rows), strict=True):
            logits = model.head(chunk)  # [C, V]
            loss += float(cross_entropy(logits, label))
            predicted.append(logits.argmax(dim=-1))
    return loss, torch.cat(predicted)


def evaluate(
    model: EncoderDecoder,
    pairs: list[Pair],
    encoded: Sequence[EncodedPair],
    tokenizer: PairTokenizer,
    config: Config,
    search: SearchConfig = GREEDY_SEARCH,
) -> Evaluation:
    """Score a model on sentence pairs."""
    began = time.perf_counter()
    size = search.num_sentences(config.evaluation.batch_size)
    batches = batches_by_length(encoded, size)
    judged = score_batches(
        model, encoded, batches, tokenizer.start_id, config.model.max_length, search,
        is_capped=False,
    )  # fmt: skip
    return summarize(pairs, encoded, judged, tokenizer, config, began)


def summarize(
    pairs: list[Pair],
    encoded: Sequence[EncodedPair],
    judged: list[BatchResult],
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
            batch.indices, batch.predicted, batch.produced, strict=True
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
    references = [[normalize(pair.target)] for pair in pairs]
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
