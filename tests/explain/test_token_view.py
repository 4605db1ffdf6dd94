"""The view of a sentence's tokens has its code points, graphemes and tokens."""

import pytest

from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.explain.token_view import graphemes, token_lines
from minitransformer.settings import Config, TokenizerConfig
from tests.support.processes import run

PAIRS = [("I go to school", "আমি স্কুলে যাই।"), ("I go", "আমি যাই।")]


def view(text: str, **settings) -> str:
    tokenizer = PairTokenizer.train(PAIRS, Config(tokenizer=TokenizerConfig(**settings)))
    return "\n".join(token_lines(text, tokenizer))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("আমি স্কুলে", ["আ", "মি", " ", "স্কু", "লে"]),
        ("ক্ষ", ["ক্ষ"]),
        ("ক্\u200cষ", ["ক্\u200c", "ষ"]),  # a zero-width non-joiner keeps them apart
        ("क्\u200dष", ["क्\u200dष"]),
        ("e\u0301a", ["e\u0301", "a"]),
        ("👩‍👩‍👧🇪🇸", ["👩‍👩‍👧", "🇪🇸"]),
        ("مرحبا", list("مرحبا")),
        ("한국", ["한", "국"]),
        ("", []),
    ],
)
def test_graphemes_are_what_a_reader_sees_as_characters(text, parts):
    assert graphemes(text) == parts


def test_token_lines_show_code_points_graphemes_and_tokens():
    shown = view("আমি স্কুলে যাই।").splitlines()
    assert shown[:2] == ["আমি স্কুলে যাই।", "15 code points, 9 graphemes"]
    assert [line.split("U+")[1] for line in shown[6:10]] == [
        "09B8 BENGALI LETTER SA", "09CD BENGALI SIGN VIRAMA", "0995 BENGALI LETTER KA",
        "09C1 BENGALI VOWEL SIGN U",
    ]  # fmt: skip
    source = shown.index("as source (4 words known): 4 tokens, 4 unknown")
    assert shown[source + 1].split() == ["1", "আমি", "unknown"]
    target = shown.index("as target (4 words known): 5 tokens, 0 unknown")
    assert [line.split()[1] for line in shown[target + 1 :]] == [
        "আমি", "স্কুলে", "যাই", "।", "<EOS>",
    ]  # fmt: skip
    assert "warning" not in view("আমি স্কুলে যাই।")


def test_token_lines_warn_of_a_split_grapheme():
    shown = view("স্কুলে", kind="bpe", vocab_size=1)
    warning = "warning: a token ends inside স্কু, after U+09B8 BENGALI LETTER SA"
    assert shown.count(warning) == 1  # on the source side it is unknown
    assert "warning: a token ends inside লে, after U+09B2 BENGALI LETTER LA" in shown


def test_token_lines_make_invisible_characters_visible():
    shown = view("a\u00a0\x1b b")
    assert "\x1b" not in shown
    assert "U+00A0 NO-BREAK SPACE" in shown
    assert "␣" in shown
    assert view("e\u0301").splitlines()[1] == "1 code point, after NFC (2 before), 1 grapheme"


def test_token_lines_show_a_joint_vocabulary_once():
    assert "as source and target (8 words known)" in view("I go", joint=True)


def test_tokens_option_takes_arguments_and_lines(tiny_bn):
    by_argument = run("translate.py", "--tokens", "আমি স্কুলে যাই।", folder=tiny_bn.folder)
    by_line = run("translate.py", "--tokens", folder=tiny_bn.folder,
                  stdin="আমি স্কুলে যাই।\n".encode())  # fmt: skip
    assert by_argument.code == 0
    assert "15 code points, 9 graphemes" in by_argument.out
    assert "5 tokens, 1 unknown" in by_argument.out  # the shipped sentences have no danda
    assert by_argument.out == by_line.out
