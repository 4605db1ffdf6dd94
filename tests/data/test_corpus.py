"""Corpora are read line by line, filtered, limited and split."""

import random
import re
import subprocess
import sys

import numpy
import pytest

from minitransformer.data.corpus import Pair
from minitransformer.errors import DataError
from tests.support.corpus_files import corpus_of, counts, train_split, write, write_aligned


def test_dropped_lines_are_counted_by_reason(tmp_path):
    content = b"a\tb\n\n\t\nonly one\nx\t\n\ty\n1\t2\t3\n\xff\tz\nlast\tline"
    split = train_split(content, tmp_path)
    assert list(split) == [Pair("a", "b"), Pair("last", "line")]
    assert [number for number, _ in split.numbered()] == [1, 9]
    assert counts(split) == {
        "empty": (2, 2), "malformed": (2, 4), "one_sided": (2, 5), "not_utf8": (1, 8),
    }  # fmt: skip
    assert len(split) + split.report.dropped == 9


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\xa0", "\u3000"])
def test_only_a_newline_ends_a_line(separator, tmp_path):
    text = f"one{separator}two\tuno{separator}dos\nthree\ttres\n"
    split = train_split(text.encode(), tmp_path)
    assert list(split) == [Pair(f"one{separator}two", f"uno{separator}dos"), Pair("three", "tres")]
    assert split.report.defects == {}


@pytest.mark.parametrize(
    "control", ["\r", "\u0085", "\x0b", "\x0c", "\x1b", "\x1c", "\x7f", "\x9f"]
)
def test_control_characters_end_no_line_and_are_filtered(control, tmp_path):
    content = f"one{control}two\tuno{control}dos\nthree\ttres\n".encode()
    assert list(train_split(content, tmp_path)) == [Pair("three", "tres")]
    assert counts(train_split(content, tmp_path)) == {"control": (1, 1)}
    kept = train_split(content, tmp_path, filters={"control": "keep"})
    assert len(kept) == 2
    assert kept.report.dropped == 0
    with pytest.raises(
        DataError, match=r"train: 1 with control characters, refused \(first: line 1"
    ):
        train_split(content, tmp_path, filters={"control": "error"})


def test_tsv_keeps_quotes_and_na_and_drops_a_byte_order_mark(tmp_path):
    split = train_split(b'\xef\xbb\xbf"Hi\t"Hola\r\nNA\tnull\r\n"\t"\r\n', tmp_path)
    assert list(split) == [Pair('"Hi', '"Hola'), Pair("NA", "null"), Pair('"', '"')]


@pytest.mark.parametrize("text", ["👩‍👩‍👧 🇪🇸", "می‌خواهم", "مرحبا بالعالم", "আমি স্কুলে যাই।", "क्‍ष"])
def test_emoji_joiners_and_right_to_left_text_are_unchanged(text, tmp_path):
    split = train_split(f"{text}\tx\n".encode(), tmp_path)
    assert list(split) == [Pair(text, "x")]
    assert split.report.defects == {}


@pytest.mark.parametrize(
    ("content", "defect"),
    [
        (b"a\0b\tc\n", "nul"),
        (b"\xed\xa0\x80\tc\n", "not_utf8"),  # a lone surrogate, as some programs write it
        ("a\ufffdb\tc\n".encode(), "not_utf8"),
        (b"source\ttarget\n", "header"),
    ],
)
def test_damaged_rows_are_dropped(content, defect, tmp_path):
    split = train_split(b"x\ty\n" + content, tmp_path)
    assert list(split) == [Pair("x", "y")]
    assert counts(split) == {defect: (1, 2)}


@pytest.mark.parametrize("name", ["rows.tsv", "rows.csv"])
def test_repeated_header_is_dropped(name, tmp_path):
    separator = "," if name.endswith("csv") else "\t"
    rows = [("en", "es"), ("a", "b"), ("en", "es"), ("c", "d")]
    content = "".join(f"{separator.join(row)}\n" for row in rows).encode()
    split = train_split(content, tmp_path, name, columns=("en", "es"))
    assert list(split) == [Pair("a", "b"), Pair("c", "d")]
    assert counts(split) == {"header": (1, 3) if name.endswith("csv") else (2, 1)}


def test_harmless_defects_are_counted_and_kept(tmp_path):
    rows = ["e\u0301\tx", "same\tsame", "a\tb", "a\tb", "a\tc", "a\tc", "a  \tb"]
    content = "".join(f"{row}\n" for row in rows).encode()
    split = train_split(content, tmp_path)
    assert len(split) == 7
    assert counts(split) == {
        "not_nfc": (1, 1), "same_text": (1, 2), "duplicate": (3, 4), "several_targets": (2, 5),
    }  # fmt: skip
    one_each = train_split(content, tmp_path, filters={"several_targets": "skip"})
    assert [pair for pair in one_each if pair.source == "a"] == [Pair("a", "b")] * 3
    policies = dict.fromkeys(("not_nfc", "same_text", "duplicate", "several_targets"), "skip")
    assert list(train_split(content, tmp_path, filters=policies)) == [Pair("a", "b")]


def test_all_refused_defects_are_reported_at_once(tmp_path):
    with pytest.raises(DataError) as caught:
        train_split(b"a\tb\na\tb\n\nx\tx\n", tmp_path,
                    filters={"duplicate": "error", "empty": "error"})  # fmt: skip
    assert str(caught.value).splitlines() == [
        "train: 1 empty, refused (first: line 3); filters.empty is error",
        "       train: 1 duplicate, refused (first: line 2); filters.duplicate is error",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\n".encode("utf-16"), "looks like UTF-16"),
        ("a\tb\n".encode("utf-16-le"), "looks like UTF-16"),
        (b"\x1f\x8b\x08\x00", "looks like a compressed file"),
        (b"", "there is nothing in it"),
        (b"\n\n", "2 empty"),
        (b"no tab\n", "1 cannot be read, .* 1 column instead of 2"),
        (b"a\tb\tc\n", "choose two of them with data.columns, such as"),
    ],
)
def test_file_without_pairs_is_refused(content, message, tmp_path):
    with pytest.raises(DataError, match=message):
        train_split(content, tmp_path)


def test_unknown_corpus_lists_those_that_ship():
    with pytest.raises(
        DataError,
        match=r"'en-xx' is neither .* \(en-bn, en-es, lets-go, copy, reverse, substitute\)",
    ):
        corpus_of(train="en-xx")


def test_file_has_no_held_out_pairs_unless_they_are_named(tmp_path):
    (tmp_path / "train.tsv").write_bytes(b"a\tb\nc\td\n")
    (tmp_path / "valid.tsv").write_bytes(b"e\tf\n")
    assert list(corpus_of(train=str(tmp_path / "train.tsv")).splits) == ["train"]
    both = corpus_of(train=str(tmp_path / "train.tsv"), valid=str(tmp_path / "valid.tsv"))
    assert list(both.splits["valid"]) == [Pair("e", "f")]
    with pytest.raises(DataError, match=r"data\.valid: there is no file .*absent\.tsv"):
        corpus_of(train="en-es", valid=str(tmp_path / "absent.tsv"))


def test_limit_takes_the_first_pairs():
    everything, few = corpus_of(train="en-es"), corpus_of(train="en-es", limit=7)
    assert list(few.train) == list(everything.train)[:7]
    assert list(few.splits["valid"]) == list(everything.splits["valid"])
    assert few.train.report.set_aside == ", 254 beyond data.limit"


def test_overlap_with_held_out_sources_is_counted_or_dropped(tmp_path):
    (tmp_path / "train.tsv").write_bytes(b"a\t1\nb\t2\nc\t3\nd\t4\n")
    (tmp_path / "valid.tsv").write_bytes(b"b\tother\ne\t5\n")
    (tmp_path / "test.tsv").write_bytes(b"d\t4\ne\t5\nf\t6\n")
    held_out = {name: str(tmp_path / f"{name}.tsv") for name in ("valid", "test")}
    kept = corpus_of(train=str(tmp_path / "train.tsv"), **held_out)
    assert [len(split) for split in kept.splits.values()] == [4, 2, 3]
    assert counts(kept.train) == {"overlap": (2, 2)}
    assert counts(kept.splits["valid"]) == {"overlap": (1, 2)}
    strict = corpus_of(train=str(tmp_path / "train.tsv"), filters={"overlap": "skip"}, **held_out)
    assert [pair.source for pair in strict.train] == ["a", "c"]
    assert [pair.source for pair in strict.splits["valid"]] == ["b"]
    assert len(strict.splits["test"]) == 3  # a published test split is not filtered


def test_split_shares_no_source_and_depends_on_its_seed(tmp_path):
    rows = [f"s{number % 300}\tt{number}" for number in range(1000)]
    random.Random(1).shuffle(rows)
    (tmp_path / "all.tsv").write_text("\n".join(rows) + "\n")
    settings = {"train": str(tmp_path / "all.tsv"), "split_valid": 100, "split_test": 50}
    corpus = corpus_of(**settings)
    pairs = {name: list(split) for name, split in corpus.splits.items()}
    assert sum(map(len, pairs.values())) == 1000
    assert 97 <= len(pairs["valid"]) <= 100  # each source has 3 or 4 pairs, which stay together
    assert 47 <= len(pairs["test"]) <= 50
    assert corpus.train.report.set_aside == f", {1000 - len(pairs['train'])} split off"
    sources = [{pair.source for pair in each} for each in pairs.values()]
    assert sum(map(len, sources)) == 300
    again = {name: list(split) for name, split in corpus_of(**settings).splits.items()}
    other = corpus_of(**settings, split_seed=2).splits
    assert again == pairs
    assert list(other["valid"]) != pairs["valid"]
    # The order of the file's lines does not matter.
    (tmp_path / "all.tsv").write_text("\n".join(sorted(rows)) + "\n")
    assert set(corpus_of(**settings).splits["valid"]) == set(pairs["valid"])


def test_split_that_leaves_no_training_pairs_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"ask for 5 pairs, and .* has 3: none are left"):
        train_split(b"a\tb\nc\td\ne\tf\n", tmp_path, split_valid=5)
    with pytest.raises(DataError, match=r"split_valid: en-es already has a valid split of its own"):
        corpus_of(train="en-es", split_valid=5)


def test_split_keeps_all_translations_of_a_sentence_together(tmp_path):
    content = "".join(f"s{number % 3}\tt{number}\n" for number in range(30)).encode()
    corpus = corpus_of(train=write(content, tmp_path), split_valid=5)
    assert [len(split) for split in corpus.splits.values()] == [20, 10]


def test_split_of_a_file_with_other_columns_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"3 columns instead of 2; choose two of them"):
        train_split(b"a\tb\tc\n", tmp_path, split_valid=1)


def random_pair(random: numpy.random.RandomState) -> Pair:
    words = [f"w{number}" for number in random.randint(1000, size=random.randint(1, 12))]
    mark = "?" if random.randint(3) == 0 else "."
    return Pair(" ".join(words) + mark, " ".join(f"{word}o" for word in words) + mark)


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("missing", [[0], [150], [321, 400], [499]])
def test_misaligned_files_report_both_counts_and_the_line(missing, is_sorted, tmp_path):
    random = numpy.random.RandomState(1)
    pairs = [random_pair(random) for _ in range(500)]
    if is_sorted:
        pairs.sort(key=lambda pair: len(pair.source))
    source, target = write_aligned(pairs, tmp_path)
    lines = (tmp_path / "pairs.es").read_text().splitlines()
    for index in reversed(missing):
        del lines[index]
    (tmp_path / "pairs.es").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as caught:
        corpus_of(train=(source, target))
    message = str(caught.value)
    assert f"{source} has 500 lines, {target} has {500 - len(missing)}" in message
    found = int(re.search(r"stop matching at about line (\d+): ", message)[1])
    assert abs(found - 1 - missing[0]) <= (12 if is_sorted else 2)


def test_missing_line_among_equal_lines_is_not_located(tmp_path):
    source, target = write_aligned([Pair("same", "mismo")] * 9, tmp_path)
    write(b"mismo\n" * 8, tmp_path, "pairs.es")
    with pytest.raises(DataError, match="has 8; the lines are too much alike to tell"):
        corpus_of(train=(source, target))


@pytest.mark.parametrize("unit", [b"x", b"x ", "é".encode()])
def test_line_of_ten_megabytes_is_one_row_that_is_too_long(unit, tmp_path):
    split = train_split(unit * (10_000_000 // len(unit)) + b"\ty\na\tb\n", tmp_path)
    assert [number for number, _ in split.numbered()] == [2]
    assert counts(split) == {"too_long": (1, 1)}


def test_file_changed_while_it_is_read_is_refused(tmp_path):
    split = train_split(b"a\tb\nc\td\n", tmp_path)
    (tmp_path / "pairs.tsv").write_bytes(b"a\tb\n")
    with pytest.raises(DataError, match="was changed while it was read"):
        list(split)


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import minitransformer.translator", {"tokenizer"}),
        (
            "import minitransformer.training.trainer; "
            "from minitransformer.settings import Config, DataConfig; "
            "from minitransformer.data.dataset import prepare_dataset; "
            "prepare_dataset(Config(data=DataConfig(train='pairs.tsv', cache='')))",
            {"readers", "corpus", "filters", "tokenizer", "dataset", "batching"},
        ),
    ],
    ids=["translating", "training on a tsv file"],
)
def test_data_modules_are_imported_only_when_needed(code, modules, tmp_path):
    write(b"a\tb\n", tmp_path)
    code += "; import sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    prefix = "minitransformer.data."
    loaded = {name for name in result.stdout.split() if name.startswith(prefix)}
    assert loaded == {prefix + module for module in modules}
