import math

import pytest
import sacrebleu
import torch

from minitransformer.metrics import (
    Sum,
    bleu,
    chrf,
    matching_tokens,
    perplexity,
    summed_loss,
)

PAD = 0


def test_sums_add_with_their_counts():
    assert (Sum(3.0, 2) + Sum(1.0, 6)).mean == 0.5
    assert Sum(0, 0).mean == 0.0


def test_the_loss_is_the_formula_and_ignores_padding():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, 3], [4, PAD, PAD]])
    expected = 0.0
    for row, place in [(0, 0), (0, 1), (0, 2), (1, 0)]:
        values = [math.exp(value) for value in logits[row, place].tolist()]
        expected -= math.log(values[labels[row, place]] / sum(values))
    assert float(summed_loss(logits, labels, PAD)) == pytest.approx(expected, rel=1e-5)
    wild = logits.clone()
    wild[1, 1:] = 1e4
    assert torch.equal(summed_loss(wild, labels, PAD), summed_loss(logits, labels, PAD))


def test_label_smoothing_is_the_formula_and_ignores_padding():
    logits = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, PAD]])
    smoothing, expected = 0.1, 0.0
    log_probabilities = logits.log_softmax(-1)
    for place in (0, 1):
        row = log_probabilities[0, place]
        expected -= (1 - smoothing) * float(row[labels[0, place]]) + smoothing * float(row.mean())
    assert float(summed_loss(logits, labels, PAD, smoothing)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("produced", "right"), [([5, 6, 3], 3), ([5, 3], 1), ([], 0), ([5, 6, 3, 7], 3), ([6, 5, 3], 1)]
)
def test_free_running_accuracy_compares_place_by_place(produced, right):
    assert matching_tokens(produced, [5, 6, 3]) == Sum(right, 3)


def test_perplexity_is_the_exponential_and_never_raises():
    assert perplexity(math.log(7)) == pytest.approx(7)
    assert perplexity(1e6) is None


def test_bleu_and_chrf_are_sacrebleus_with_their_signatures():
    translations = ["the cat sat on the mat", "আমি স্কুলে যাই।"]
    references = ["the cat sat on a mat", "আমি স্কুলে যাই।"]
    expected = sacrebleu.corpus_bleu(translations, [references], tokenize="intl")
    score = bleu(translations, references, "intl")
    assert score.value == expected.score
    assert "tok:intl" in score.signature
    assert chrf(translations, references).value == pytest.approx(
        sacrebleu.corpus_chrf(translations, [references]).score
    )
    assert bleu(references, references, "13a").value == pytest.approx(100)
    assert bleu(["a b"], ["a b"], "13a").value is None  # no four words in a row anywhere
    assert bleu(["a b"], ["a b c d e"], "13a").value == 0
