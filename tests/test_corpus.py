from pathlib import Path

import pytest

from minitransformer.config import DataConfig
from minitransformer.data.corpus import Pair, load_corpus, read_tab_separated
from minitransformer.errors import DataError


def split_of(content: bytes, tmp_path: Path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    return read_tab_separated(path, "train")


def test_every_line_is_kept_or_dropped_for_a_stated_reason(tmp_path):
    split = split_of(b"a\tb\n\n\t\nonly one\nx\t\n\ty\n1\t2\t3\n\xff\tz\nlast\tline", tmp_path)
    assert split.pairs == [Pair("a", "b"), Pair("last", "line")]
    assert split.lines == [1, 9]
    assert split.dropped == {
        "empty": [2, 3],
        "not two columns with one tab between": [4, 7],
        "one side empty": [5, 6],
        "not UTF-8": [8],
    }


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\r", "\x0b", "\x0c"])
def test_only_a_newline_ends_a_line(separator, tmp_path):
    split = split_of(f"one{separator}two\tuno{separator}dos\nthree\ttres\n".encode(), tmp_path)
    assert len(split.pairs) == 2
    assert split.dropped == {}


def test_quotes_and_na_are_ordinary_text_and_a_byte_order_mark_is_not(tmp_path):
    split = split_of(b'\xef\xbb\xbf"Hi\t"Hola\r\nNA\tnull\r\n', tmp_path)
    assert split.pairs == [Pair('"Hi', '"Hola'), Pair("NA", "null")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\n".encode("utf-16"), "looks like UTF-16"),
        (b"", "the file is empty"),
        (b"\n\n", "2 empty"),
        (b"no tab\n", "1 not two columns"),
    ],
)
def test_a_file_without_pairs_is_refused(content, message, tmp_path):
    with pytest.raises(DataError, match=message):
        split_of(content, tmp_path)


def test_a_source_that_is_neither_file_nor_shipped_names_what_ships():
    with pytest.raises(DataError, match=r"'en-xx' is neither a file nor .* \(en-bn, en-es\)"):
        load_corpus(DataConfig(source="en-xx"))


def test_a_file_of_ones_own_has_no_held_out_pairs_unless_it_names_some(tmp_path):
    (tmp_path / "train.tsv").write_bytes(b"a\tb\nc\td\n")
    (tmp_path / "valid.tsv").write_bytes(b"e\tf\n")
    alone = load_corpus(DataConfig(source=str(tmp_path / "train.tsv")))
    assert alone.valid.pairs == []
    both = load_corpus(
        DataConfig(source=str(tmp_path / "train.tsv"), valid=str(tmp_path / "valid.tsv"))
    )
    assert both.valid.pairs == [Pair("e", "f")]
    with pytest.raises(DataError, match="No such file"):
        load_corpus(DataConfig(source="en-es", valid=str(tmp_path / "absent.tsv")))


def test_a_limit_takes_the_first_pairs():
    everything = load_corpus(DataConfig(source="en-es"))
    few = load_corpus(DataConfig(source="en-es", limit=7))
    assert few.train.pairs == everything.train.pairs[:7]
    assert few.valid.pairs == everything.valid.pairs


def test_the_fingerprint_notices_any_change_of_the_pairs(tmp_path):
    prints = set()
    for content in (b"a\tb\n", b"a\tb\na\tb\n", b"ab\tc\n", b"a\tbc\n"):
        (tmp_path / "train.tsv").write_bytes(content)
        prints.add(load_corpus(DataConfig(source=str(tmp_path / "train.tsv"))).fingerprint())
    assert len(prints) == 4
