import math

import pytest
import sacrebleu

from minitransformer.metrics import Sum, bleu, chrf, compare, matching_tokens, perplexity


def test_sums_add_with_their_counts():
    assert (Sum(3.0, 2) + Sum(1.0, 6)).mean == 0.5
    assert Sum(0, 0).mean == 0.0


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
    assert bleu(["a b"], [["a b"]], "13a").value is None  # no four words in a row anywhere
    assert bleu(["a b"], [["a b c d e"]], "13a").value == 0


def test_capital_letters_count_unless_they_are_lowered():
    cased, lowered = (
        bleu(["the cat sat on"], [["The Cat Sat On"]], "13a", lowercase=each)
        for each in (False, True)
    )
    assert (cased.value, lowered.value) == (0, pytest.approx(100))
    assert "case:lc" in lowered.signature


def test_each_sentence_may_have_its_own_number_of_references():
    references = [["a b c d", "e f g h"], ["i j k l"]]
    score = bleu(["e f g h", "i j k l"], references, "none")
    assert score.value == pytest.approx(100)
    assert "nrefs:var" in score.signature
    # A missing reference is none at all: an empty one would have length 0, and no brevity penalty.
    short = bleu(["e f g h", "i j k"], [["a b c d", "e f g h"], ["i j k l m n"]], "none")
    assert "ref_len = 10" in short.details


def test_tokenized_text_is_counted_as_it_stands(caplog):
    score = bleu(["a dog . . ."] * 101, [["a dog , it 's ."]] * 101, "none")
    assert "hyp_len = 505 ref_len = 606" in score.details
    assert not caplog.records  # nothing said about text that looks tokenized: it is meant to be


def test_a_comparison_knows_chance_from_difference():
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


def test_a_comparison_of_too_little_says_nothing():
    references = [["a b c d e"], ["f g h i j"]]
    right, wrong = [each for [each] in references], ["a b c d x", "f g h i x"]
    assert [each.p for each in compare(right, wrong, references, "13a")] == [None, None]
    nothing = compare(["b"] * 30, ["c"] * 30, [["a d e f"]] * 30, "13a")
    assert [(each.first.score, each.p) for each in nothing] == [(0, 1), (0, 1)]
    short = compare(["b"] * 30, ["a"] * 30, [["a"]] * 30, "13a")
    assert [each.metric for each in short] == ["chrF2"]
