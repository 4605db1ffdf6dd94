"""BPE tokenizers train, encode, decode, save and load."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minitransformer.data.corpus import shipped_corpora
from minitransformer.data.tokenizer import (
    SPECIALS,
    UNK_ID,
    BpeTokenizer,
    PairTokenizer,
    join_pieces,
    normalize,
    plain_spaces,
)
from minitransformer.errors import CheckpointError
from minitransformer.settings import Config, TokenizerConfig
from tests.support.corpus_files import corpus_of

TEXTS = ["I go to school.", "I go home.", "আমি স্কুলে যাই।", "আমি বাড়ি যাই।", "Let's go!"]


def trained(texts=TEXTS, vocab_size=1000, **settings) -> BpeTokenizer:
    return BpeTokenizer.train(texts, TokenizerConfig(kind="bpe", vocab_size=vocab_size, **settings))


def config_for(vocab_size=1000, **settings) -> Config:
    return Config(tokenizer=TokenizerConfig(kind="bpe", vocab_size=vocab_size, **settings))


def test_pieces_mark_the_beginning_of_a_word():
    tokenizer = trained(vocab_size=60)
    encoded = tokenizer.encode("I go to school.", end=True)
    assert encoded.tokens[0] == "▁I"
    assert encoded.tokens[-2:] == [".", "<EOS>"]
    assert join_pieces(encoded.words) == "I go to school."
    assert tokenizer.decode(encoded.ids) == "I go to school."


def test_punctuation_is_never_merged_with_a_word():
    tokenizer = trained(["yes. yes. no! যাই। যাই।"] * 9)
    assert not any(len(token) > 1 and set(token) & set(".!।") for token in tokenizer.ids)


@given(st.text())
def test_joined_pieces_are_split_into_the_same_pieces(text):
    tokenizer = TOKENIZER
    tokens = tokenizer.encode(text, end=False).tokens
    assert tokenizer.encode(join_pieces(tokens), end=False).tokens == tokens


@given(st.text(alphabet=sorted(set("".join(TEXTS)))))
def test_text_of_known_characters_is_decoded_with_plain_spaces(text):
    assume(set(normalize(text)) <= set("".join(TEXTS)))  # NFC may compose two of them into a third
    encoded = TOKENIZER.encode(text, end=False)
    assert encoded.unknown == []
    assert TOKENIZER.decode(encoded.ids) == plain_spaces(text)


@given(st.lists(st.text(), max_size=9), st.booleans())
def test_encode_batch_equals_encode(texts, end):
    expected = [TOKENIZER.encode(text, end=end).ids for text in texts]
    assert TOKENIZER.encode_batch(texts, end=end) == expected


TOKENIZER = trained(vocab_size=60)


def test_unknown_characters_are_reported():
    encoded = TOKENIZER.encode("I go ☃ to Ω", end=False)
    assert encoded.ids.count(UNK_ID) == 2
    assert encoded.unknown == ["☃", "Ω"]


@pytest.mark.parametrize("special", SPECIALS)
def test_text_is_never_encoded_as_a_special_token(special):
    tokenizer = trained([f"{special} a {special}"] * 20)
    ids = tokenizer.encode(f"a {special}", end=False).ids
    assert all(id >= len(SPECIALS) for id in ids)
    assert tuple(tokenizer.tokens[: len(SPECIALS)]) == SPECIALS


def test_both_apostrophes_are_encoded_alike():
    assert (
        TOKENIZER.encode("Let’s go", end=False).ids == TOKENIZER.encode("Let's go", end=False).ids
    )


def test_training_twice_gives_the_same_bytes():
    assert trained(vocab_size=50).to_bytes() == trained(vocab_size=50).to_bytes()


def test_vocabulary_has_the_requested_size_or_a_note_explains():
    pairs = [("I go to school", "Voy a la escuela"), ("I go home", "Voy a casa")] * 5
    exact = PairTokenizer.train(pairs, config_for(vocab_size=25))
    assert [len(exact.source), len(exact.target)] == [25 + 4, 25 + 4]
    assert exact.size_notes(config_for(vocab_size=25)) == []
    small, large = config_for(vocab_size=2), config_for(vocab_size=5000, joint=True)
    notes = PairTokenizer.train(pairs, small).size_notes(small)
    assert notes[0] == (
        "tokenizer.vocab_size is 2, the vocabulary 11: it has every character of the source"
    )
    tokenizer = PairTokenizer.train(pairs, large)
    (note,) = tokenizer.size_notes(large)
    size = len(tokenizer.source) - 4
    assert note == (
        f"tokenizer.vocab_size is 5,000, the vocabulary {size}: "
        "nothing is left to merge in both languages"
    )
    assert tokenizer.is_joint


def test_rare_pairs_are_not_merged():
    assert "▁once" in trained(["once", "twice twice"]).ids
    tokenizer = trained(["once", "twice twice"], min_frequency=2)
    assert "▁twice" in tokenizer.ids
    assert "▁once" not in tokenizer.ids


@pytest.mark.parametrize("joint", [True, False])
def test_saved_tokenizer_is_loaded_unchanged(joint, tmp_path):
    config = config_for(joint=joint)
    tokenizer = PairTokenizer.train([("I go", "Voy"), ("I eat", "আমি খাই।")], config)
    for name, content in tokenizer.to_files().items():
        (tmp_path / name).write_bytes(content)
    loaded = PairTokenizer.from_folder(tmp_path, config)
    assert loaded.to_files() == tokenizer.to_files()
    assert loaded.is_joint == joint
    assert loaded.encode_target("আমি খাই।") == tokenizer.encode_target("আমি খাই।")
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(tmp_path / "target.json"))  # as other tools would read it
    assert reference.encode("আমি খাই।").ids == tokenizer.target.encode("আমি খাই।", end=False).ids


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: "{",
        lambda data: "[]",
        lambda data: json.dumps({**data, "model": {"vocab": {}, "merges": []}}),
        lambda data: json.dumps({**data, "model": {"vocab": {"a": 0, "b": 7}, "merges": []}}),
        lambda data: json.dumps({**data, "model": {**data["model"], "merges": [["q", "zz"]]}}),
        lambda data: json.dumps({**data, "model": {**data["model"], "merges": [7]}}),
        lambda data: json.dumps({**data, "model": {**data["model"], "merges": [["o", "I"]]}}),
        lambda data: json.dumps({**data, "model": {**data["model"], "merges": [[1, 2]]}}),
        lambda data: json.dumps({**data, "model": {"vocab": {"a": 0}, "merges": [["a", "a"]]}}),
        lambda data: json.dumps({**data, "model": {"vocab": ["a"], "merges": []}}),
        lambda data: json.dumps({**data, "model": {"vocab": {"a": 0.0}, "merges": []}}),
        lambda data: json.dumps(data).replace('"!"', '"two\\nlines"'),
        lambda data: json.dumps(data).replace('"!"', '""'),
        lambda data: "[" * 100_000,
    ],
)
def test_damaged_tokenizer_file_is_named(damage):
    content = damage(json.loads(TOKENIZER.to_bytes())).encode()
    with pytest.raises(CheckpointError, match=r"run/source\.json: "):
        BpeTokenizer.from_bytes(content, TokenizerConfig(kind="bpe"), "run/source.json")


@pytest.mark.parametrize("name", shipped_corpora())
def test_shipped_sentences_are_decoded_exactly(name):
    corpus = corpus_of(train=name)
    tokenizer = PairTokenizer.train(corpus.train, config_for(vocab_size=100))
    for pair in [pair for split in corpus.splits.values() for pair in split]:
        source, target = tokenizer.encode_source(pair.source), tokenizer.encode_target(pair.target)
        assert tokenizer.source.decode(source.ids) == pair.source
        assert tokenizer.target.decode(target.ids) == pair.target
