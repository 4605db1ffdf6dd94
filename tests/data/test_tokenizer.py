"""The word tokenizer keeps its vocabulary and special tokens, in memory and in its files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer.data.corpus import shipped_corpora
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, SPECIALS, UNK_ID, PairTokenizer
from minitransformer.errors import CheckpointError, ConfigError, DataError
from minitransformer.settings import Config, ModelConfig, TokenizerConfig
from tests.support.corpus_files import corpus_of

PAIRS = [("I go to school", "আমি স্কুলে যাই।"), ("I go", "আমি যাই।"), ("Let's go", "চলো যাই")]


def tokenizer_for(pairs=PAIRS, **settings) -> PairTokenizer:
    return PairTokenizer.train(pairs, Config(tokenizer=TokenizerConfig(**settings)))


def write(tokenizer: PairTokenizer, folder: Path) -> None:
    for name, content in tokenizer.to_files().items():
        (folder / name).write_bytes(content)


def test_encoded_ids_match_their_tokens():
    tokenizer = tokenizer_for()
    encoded = tokenizer.encode_target("আমি স্কুলে যাই।")
    assert encoded.tokens == ["আমি", "স্কুলে", "যাই", "।", "<EOS>"]
    assert [tokenizer.target.tokens[id] for id in encoded.ids] == encoded.tokens
    assert tokenizer.target.decode(encoded.ids) == encoded.text


def test_vocabulary_is_sorted_by_frequency_then_alphabet():
    assert tokenizer_for().source.tokens == [*SPECIALS, "go", "I", "Let's", "school", "to"]


def test_vocabulary_is_a_torchtext_vocab():
    from torchtext.vocab import Vocab

    assert isinstance(tokenizer_for().source.vocabulary, Vocab)


def test_unknown_words_are_listed_once():
    encoded = tokenizer_for().encode_source("I go to Mars to Mars")
    assert encoded.ids.count(UNK_ID) == 2
    assert encoded.unknown == ["Mars"]


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("words", ["unicode", "basic_english"])
def test_text_never_becomes_a_special_token(special, words):
    tokenizer = tokenizer_for([*PAIRS, (f"{special} a", "b")], words=words)
    ids = tokenizer.encode_source(f"I {special} go").ids
    assert EOS_ID not in ids
    assert BOS_ID not in ids
    assert tokenizer.source.tokens[: len(SPECIALS)] == list(SPECIALS)


def test_special_tokens_follow_the_model_settings():
    tokenizer = tokenizer_for()
    assert tokenizer.encode_source("I go").tokens == ["I", "go"]
    assert tokenizer.start_id == EOS_ID
    config = Config(model=ModelConfig(source_eos=True, decoder_start_token="bos"))
    tokenizer = PairTokenizer.train(PAIRS, config)
    assert tokenizer.encode_source("I go").tokens == ["I", "go", "<EOS>"]
    assert tokenizer.encode_source("I go").words == ["I", "go"]
    assert tokenizer.start_id == BOS_ID


def test_joint_vocabulary_is_shared_by_both_languages():
    tokenizer = tokenizer_for(joint=True)
    assert tokenizer.source.tokens == tokenizer.target.tokens
    assert {"school", "স্কুলে"} <= set(tokenizer.source.tokens)


def test_rare_words_and_words_beyond_the_limit_have_no_id():
    assert tokenizer_for(min_frequency=2).source.tokens == [*SPECIALS, "go", "I"]
    assert tokenizer_for(vocab_size=1).source.tokens == [*SPECIALS, "go"]


def test_empty_vocabulary_is_refused():
    with pytest.raises(DataError, match=r"no words are left \(tokenizer\.min_frequency is 9\)"):
        tokenizer_for(min_frequency=9)


def test_composed_and_decomposed_text_have_the_same_ids():
    tokenizer = tokenizer_for([("a", "está")])
    assert tokenizer.encode_target("esta\u0301").ids == tokenizer.encode_target("está").ids
    assert UNK_ID not in tokenizer.encode_target("esta\u0301").ids


def test_torchtext_tokenizer_is_found_by_name():
    tokenizer = tokenizer_for([("Let's GO.", "a")], words="basic_english")
    assert tokenizer.encode_source("let's go.").tokens == ["let", "'", "s", "go", "."]


def test_unknown_tokenizer_is_a_config_error():
    with pytest.raises(ConfigError, match="'klingon' is neither unicode nor a tokenizer"):
        tokenizer_for(words="klingon")


def test_tokenizer_without_its_package_is_a_config_error(capsys):
    with pytest.raises(ConfigError, match="needs a package that is not installed"):
        tokenizer_for(words="revtok")
    assert capsys.readouterr().out == ""


def test_saved_tokenizer_loads_unchanged(tmp_path: Path):
    tokenizer = tokenizer_for()
    write(tokenizer, tmp_path)
    loaded = PairTokenizer.from_folder(tmp_path, Config())
    assert loaded.source.tokens == tokenizer.source.tokens
    assert loaded.target.tokens == tokenizer.target.tokens
    assert (tmp_path / "source.tsv").read_text(encoding="utf-8").splitlines()[4] == "go\t3"


def test_missing_vocabulary_file_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"source\.tsv: No such file"):
        PairTokenizer.from_folder(tmp_path, Config())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"go", "not a vocabulary"),
        (b"go\tmany\n", "not a vocabulary"),
        (b"\xff\t1\n", "not a vocabulary"),
        (b"", "not a vocabulary"),
        (b"<PAD>\t0\n<UNK>\t0\n<BOS>\t0\n<EOS>\t0\na\t1\nb\t2\n", "not in the order"),
    ],
)
def test_damaged_vocabulary_file_is_named(tmp_path: Path, content: bytes, message: str):
    write(tokenizer_for(), tmp_path)
    (tmp_path / "source.tsv").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        PairTokenizer.from_folder(tmp_path, Config())


sentences = st.text(min_size=1).filter(str.strip)


@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=5))
def test_tokenizer_of_any_corpus_survives_saving(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tokenizer_for(pairs)
    write(tokenizer, folder)
    loaded = PairTokenizer.from_folder(folder, Config())
    for source, target in pairs:
        encoded = loaded.encode_target(target)
        assert encoded == tokenizer.encode_target(target)
        assert UNK_ID not in encoded.ids
        assert loaded.source.encode(source, end=False).unknown == []


@pytest.mark.parametrize("name", shipped_corpora())
def test_shipped_sentences_are_decoded_exactly(name):
    corpus = corpus_of(train=name)
    tokenizer = PairTokenizer.train(corpus.train, Config())
    for pair in [pair for split in corpus.splits.values() for pair in split]:
        source, target = tokenizer.encode_source(pair.source), tokenizer.encode_target(pair.target)
        assert source.unknown == target.unknown == []
        assert tokenizer.source.decode(source.ids) == pair.source
        assert tokenizer.target.decode(target.ids) == pair.target
