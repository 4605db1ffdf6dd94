"""BLEU and chrF are sacrebleu's; accuracy and perplexity follow their definitions."""

import math

import pytest
import sacrebleu

from minitransformer.metrics import Sum, bleu, chrf, compare, matching_tokens, perplexity


def test_sums_add_totals_and_counts():
    assert (Sum(3.0, 2) + Sum(1.0, 6)).mean == 0.5
    assert Sum(0, 0).mean == 0.0


@pytest.mark.parametrize(
    ("produced", "num_correct"),
    [([5, 6, 3], 3), ([5, 3], 1), ([], 0), ([5, 6, 3, 7], 3), ([6, 5, 3], 1)],
)
def test_free_running_accuracy_compares_by_position(produced, num_correct):
    assert matching_tokens(produced, [5, 6, 3]) == Sum(num_correct, 3)


def test_perplexity_is_the_exponential_and_never_raises():
    assert perplexity(math.log(7)) == pytest.approx(7)
    assert perplexity(1e6) is None


def test_bleu_and_chrf_equal_sacrebleu():
    translations = ["the cat sat on the mat", "আমি স্কুলে যাই।"]
    texts = ["the cat sat on a mat", "আমি স্কুলে যাই।"]
    references = [[text] for text in texts]
    expected = sacrebleu.corpus_bleu(translations, [texts], tokenize="intl")
    score = bleu(translations, references, "intl")
    assert score.value == expected.score
    assert "tok:intl" in score.signature
    assert chrf(translations, references).value == pytest.approx(
        sacrebleu.corpus_chrf(translations, [texts]).score
    )
    assert bleu(texts, references, "13a").value == pytest.approx(100)
    assert bleu(["a b"], [["a b"]], "13a").value is None  # too short for a 4-gram
    assert bleu(["a b"], [["a b c d e"]], "13a").value == 0


def test_bleu_is_case_sensitive_unless_lowercase():
    cased, lowered = (
        bleu(["the cat sat on"], [["The Cat Sat On"]], "13a", lowercase=each)
        for each in (False, True)
    )
    assert (cased.value, lowered.value) == (0, pytest.approx(100))
    assert "case:lc" in lowered.signature


def test_bleu_allows_a_different_number_of_references_per_sentence():
    references = [["a b c d", "e f g h"], ["i j k l"]]
    score = bleu(["e f g h", "i j k l"], references, "none")
    assert score.value == pytest.approx(100)
    assert "nrefs:var" in score.signature
    # A missing reference must not count as an empty one, which would avoid the brevity penalty.
    short = bleu(["e f g h", "i j k"], [["a b c d", "e f g h"], ["i j k l m n"]], "none")
    assert "ref_len = 10" in short.details


def test_bleu_does_not_tokenize_tokenized_text(caplog):
    score = bleu(["a dog . . ."] * 101, [["a dog , it 's ."]] * 101, "none")
    assert "hyp_len = 505 ref_len = 606" in score.details
    assert not caplog.records  # no warning about text that looks tokenized


def test_compare_finds_only_real_differences_significant():
    references = [[f"a b c d e{number} f g h"] for number in range(60)]
    right = [each for [each] in references]
    wrong = [each.replace("c", "x") for each in right]
    equal = compare(right, right, references, "13a")
    assert [each.metric for each in equal] == ["BLEU", "chrF2"]
    assert [each.p for each in equal] == [1, 1]
    for each in compare(right, wrong, references, "13a"):
        assert each.first.score == pytest.approx(100)
        assert each.second.score < 90
        assert each.p < 0.05
        assert "bs:1000" in each.signature


def test_compare_of_too_little_text_has_no_significance():
    references = [["a b c d e"], ["f g h i j"]]
    right, wrong = [each for [each] in references], ["a b c d x", "f g h i x"]
    assert [each.p for each in compare(right, wrong, references, "13a")] == [None, None]
    no_matches = compare(["b"] * 30, ["c"] * 30, [["a d e f"]] * 30, "13a")
    assert [(each.first.score, each.p) for each in no_matches] == [(0, 1), (0, 1)]
    short = compare(["b"] * 30, ["a"] * 30, [["a"]] * 30, "13a")
    assert [each.metric for each in short] == ["chrF2"]
