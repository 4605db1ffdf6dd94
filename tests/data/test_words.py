"""Text is split into words and joined again in any script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer.data.tokenizer import join_words, normalize, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Let's go", ["Let's", "go"]),
        ("Let’s go!", ["Let’s", "go", "!"]),
        ("আমি স্কুলে যাই।", ["আমি", "স্কুলে", "যাই", "।"]),
        ("¿Dónde está, «mi amigo»?", ["¿", "Dónde", "está", ",", "«", "mi", "amigo", "»", "?"]),
        ("'quoted' don''t", ["'", "quoted", "'", "don", "'", "'", "t"]),
        ("3.14, 1,000 and 5.", ["3.14", ",", "1,000", "and", "5", "."]),
        ("क्या है?", ["क्या", "है", "?"]),
        ("إلى المدرسة؟", ["إلى", "المدرسة", "؟"]),
        ("می‌روم", ["می‌روم"]),  # a zero-width non-joiner inside a word
        ("👩‍👩‍👧 👍🏽!", ["👩‍👩‍👧", "👍🏽", "!"]),
        ("<EOS> <PAD>", ["<", "EOS", ">", "<", "PAD", ">"]),
        ("a\u2028b\u0085c\u00a0d\te", ["a", "b", "c", "d", "e"]),
        (" \t\n", []),
        ("", []),
    ],
)
def test_split_words_finds_the_words_of_many_scripts(text, words):
    assert split_words(text) == words


def test_normalize_gives_a_letter_and_its_marks_one_spelling():
    composed, decomposed = "está", "esta\u0301"
    assert split_words(normalize(composed)) == split_words(normalize(decomposed))


@pytest.mark.parametrize(
    "text",
    ["¿Dónde está, «mi amigo»?", "আমি স্কুলে যাই।", "(Let's go!)", "3.14 is fine.", "“Yes”, he said."],
)
def test_join_words_restores_ordinary_sentences(text):
    assert join_words(split_words(text)) == text


@given(st.text())
def test_split_join_split_gives_the_same_words(text):
    words = split_words(normalize(text))
    assert split_words(normalize(join_words(words))) == words


@given(st.text())
def test_split_words_loses_only_spaces(text):
    assert "".join(split_words(text)) == "".join(c for c in text if not c.isspace())


@given(st.text(alphabet="ab'’.,1 ()¿!—\u200c\u200d👩🏽ািক্।\u0338=<"))
def test_split_join_split_of_awkward_characters(text):
    words = split_words(normalize(text))
    assert split_words(normalize(join_words(words))) == words
