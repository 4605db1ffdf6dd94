"""Scores of a model on sentence pairs: loss, accuracies, BLEU and chrF.

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
from minitransformer.data.tokenizer import EOS, EOS_ID, PAD_ID, UNK_ID, PairTokenizer, normalize
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
    teacher_forced: str  # the predictions, each made from the reference's earlier tokens
    is_exact: bool


@dataclass(frozen=True)
class Evaluation:
    """The scores of one split; sums keep their counts."""

    loss: Sum
    accuracy_teacher_forced: Sum
    accuracy_free_running: Sum
    exact_match: Sum
    bleu: Score
    chrf: Score
    samples: list[Sample]
    seconds: float

    def row(self) -> dict[str, Any]:
        """Return the scores as a row of metrics.jsonl."""
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
    model: EncoderDecoder,
    pairs: list[Pair],
    encoded: Sequence[EncodedPair],
    tokenizer: PairTokenizer,
    config: Config,
    search: SearchConfig = GREEDY_SEARCH,
) -> Evaluation:
    """Score a model on sentence pairs."""
    start_time = time.perf_counter()
    batches = batches_by_length(encoded, search.num_sentences(config.evaluation.batch_size))
    results = score_batches(
        model, encoded, batches, tokenizer.start_id, config.model.max_length, search,
        is_capped=False,
    )  # fmt: skip
    return summarize(pairs, encoded, results, tokenizer, config, start_time)


def batches_by_length(encoded: Sequence[EncodedPair], size: int) -> list[list[int]]:
    """Return the indices of pairs in batches of similar source length."""
    by_length = sorted(range(len(encoded)), key=lambda index: len(encoded[index].source))
    return [by_length[start : start + size] for start in range(0, len(by_length), size)]


class BatchResult(NamedTuple):
    """A model's loss and tokens on one batch: plain numbers, which can be sent between ranks."""

    indices: list[int]
    loss: float
    teacher_forced: list[list[int]]
    free_running: list[list[int]]


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
    """Run a model on each batch, with teacher forcing and with search.

    Capped, translations end at about twice the length of the pair: models early in training rarely
    produce <EOS>.
    """
    device = next(model.parameters()).device
    results = []
    for indices in batches:
        pairs = [encoded[index] for index in indices]
        batch = make_batch(pairs, start_id).to(device)
        loss, predicted = teacher_forced(model, batch)
        by_pair = torch.split(predicted, [len(pair.target) for pair in pairs])
        max_lengths = [
            min(2 * max(map(len, pair)) + 10, max_length) if is_capped else max_length
            for pair in pairs
        ]
        translations = translate_ids(model, batch.source, start_id, max_lengths, search)
        results.append(BatchResult(indices, loss, [ids.tolist() for ids in by_pair], translations))
    return results


def teacher_forced(model: EncoderDecoder, batch: Batch) -> tuple[float, Int[Tensor, " labels"]]:
    """Return the summed loss and the predicted ids of all labels, given all earlier tokens."""
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


def summarize(
    pairs: list[Pair],
    encoded: Sequence[EncodedPair],
    results: list[BatchResult],
    tokenizer: PairTokenizer,
    config: Config,
    start_time: float,
) -> Evaluation:
    """Return the scores of a split from the results of its batches."""
    loss, forced, free = 0.0, Sum(0, 0), Sum(0, 0)
    translations, forced_texts = ([""] * len(pairs) for _ in range(2))
    is_exact = [False] * len(pairs)
    for batch in results:
        loss += batch.loss
        for index, predicted, ids in zip(
            batch.indices, batch.teacher_forced, batch.free_running, strict=True
        ):
            expected = encoded[index].target
            forced += metrics.matching_tokens(predicted, expected)
            free += metrics.matching_tokens(ids, expected)
            forced_texts[index] = forced_text(tokenizer, predicted)
            translations[index] = tokenizer.target.decode(ids)
            # An unknown word of the reference is never matched, not even by <UNK>. Texts are
            # compared, since other subwords may make the same text.
            is_exact[index] = (
                ids[-1] == EOS_ID
                and UNK_ID not in ids
                and translations[index] == tokenizer.target.decode(expected)
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
            Sample(*pair, translations[index], forced_texts[index], is_exact[index])
            for index, pair in enumerate(pairs)
        ],
        seconds=time.perf_counter() - start_time,
    )


def forced_text(tokenizer: PairTokenizer, predicted: list[int]) -> str:
    """Return the text of teacher-forced predictions; an <EOS> before the last one is shown."""
    parts: list[list[int]] = [[]]
    for index, id in enumerate(predicted):
        if id != EOS_ID:
            parts[-1].append(id)
        elif index < len(predicted) - 1:
            parts.append([])
    return f" {EOS} ".join(tokenizer.target.decode(part) for part in parts)
