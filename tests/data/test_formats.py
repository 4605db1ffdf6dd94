"""A corpus gives the same pairs in every file format."""

import os
from pathlib import Path

import numpy
import pytest
import torch

from minitransformer.data.batching import BatchStream
from minitransformer.data.corpus import Pair
from minitransformer.data.dataset import prepare_dataset
from minitransformer.errors import DataError
from minitransformer.settings import Config, DataConfig, TokenizerConfig
from tests.support.corpus_files import WRITERS, corpus_of, counts, train_split, write, write_folder

AWKWARD = [
    '"Hi', 'He said "no", twice', "NA", "null", "a,b;c", "1", "-0.5", "true", "'s", "👩‍👩‍👧",
    "مرحبا", "می‌خواهم", "আমি।", "x\u2028y",
]  # fmt: skip


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path_factory):
    """Disable the network and use an empty cache."""
    import datasets
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def thousand_pairs() -> list[Pair]:
    return [
        Pair(f"{AWKWARD[number % len(AWKWARD)]} {number}", f"{AWKWARD[-number % 13]} n{number}")
        for number in range(1000)
    ]


def batches(path, kind: str) -> list[torch.Tensor]:
    config = Config(
        data=DataConfig(train=path, cache=""),
        tokenizer=TokenizerConfig(kind=kind, joint=kind == "bpe", vocab_size=500),
    )
    dataset = prepare_dataset(config)
    assert len(dataset.encoded["train"]) == 1000
    stream = BatchStream(
        dataset.encoded["train"], batch_tokens=300, seed=1, start_id=dataset.tokenizer.start_id
    )
    return [tensor for _ in range(2 * len(stream.order)) for tensor in stream.next()]


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_every_format_gives_the_same_batches(kind, tmp_path):
    expected = batches(WRITERS["tsv"](thousand_pairs(), tmp_path), kind)
    for name, writer in WRITERS.items():
        found = batches(writer(thousand_pairs(), tmp_path), kind)
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected)), name


def test_columns_are_chosen_by_number_or_by_name(tmp_path):
    tsv = b"Go.\tVe.\tCC-BY 2.0\nHi.\tHola.\tCC-BY 2.0\n"
    assert list(train_split(tsv, tmp_path, columns=(1, 2)))[1] == Pair("Hi.", "Hola.")
    assert list(train_split(tsv, tmp_path, columns=(2, 1)))[1] == Pair("Hola.", "Hi.")
    headed = b"id\ten\tes\n1\tGo.\tVe.\n"
    assert list(train_split(headed, tmp_path, columns=("en", "es"))) == [Pair("Go.", "Ve.")]
    csv = b'1,"Go, now.",Ve.\n'
    assert list(train_split(csv, tmp_path, "a.csv", columns=(2, 3))) == [Pair("Go, now.", "Ve.")]
    csv = b"en,id,es\r\nGo.,1,Ve.\r\n"
    assert list(train_split(csv, tmp_path, "a.csv", columns=("en", "es"))) == [Pair("Go.", "Ve.")]
    jsonl = b'{"translation": {"en": "Go.", "es": "Ve."}}\n'
    columns = ("translation.en", "translation.es")
    assert list(train_split(jsonl, tmp_path, "a.jsonl", columns=columns)) == [Pair("Go.", "Ve.")]


def test_header_determines_the_direction(tmp_path):
    for name, content in (("a.tsv", b"es\ten\nVe.\tGo.\n"), ("a.csv", b"es,en\nVe.,Go.\n")):
        assert list(train_split(content, tmp_path, name, columns=("en", "es"))) == [
            Pair("Go.", "Ve.")
        ]
    assert corpus_of(train="en-es", columns=(2, 1)).train.first(1) == [
        Pair("Voy a la escuela", "I go to school")
    ]


def test_unclosed_csv_quote_drops_only_its_row(tmp_path):
    rows = [f"a{number},b{number}" for number in range(30_000)]
    rows[3], rows[20_000], rows[29_999] = '"open,x', 'x,"open', '"'
    content = ("source,target\n" + "\n".join(rows)).encode()
    split = train_split(content, tmp_path, "rows.csv")
    assert len(split) == 30_000 - 3
    assert counts(split) == {"malformed": (3, 5)}
    assert [number for number, _ in split.numbered()][:5] == [2, 3, 4, 6, 7]


def test_malformed_csv_rows_are_counted(tmp_path):
    content = (
        b'source,target\n"a, b",c\n\nonly one\n1,2,3\n"x""y",z\n"two\nlines",1\nsource,target\n'
        b"f,g\r\xffh,i\nj\xff,k\nl,m\n"
    )
    split = train_split(content, tmp_path, "rows.csv")
    assert list(split) == [Pair("a, b", "c"), Pair('x"y', "z"), Pair("l", "m")]
    assert counts(split) == {
        "empty": (1, 3), "malformed": (3, 4), "control": (1, 7), "header": (1, 9),
        "not_utf8": (1, 11),
    }  # fmt: skip


def test_csv_may_be_separated_by_semicolons(tmp_path):
    content = b'source;target\n"a; b";"c, d"\n'
    assert list(train_split(content, tmp_path, "a.csv")) == [Pair("a; b", "c, d")]


def test_changed_parquet_file_is_read_again(tmp_path):
    first = WRITERS["parquet"]([Pair("a", "b")], tmp_path)
    assert list(corpus_of(train=first).train) == [Pair("a", "b")]
    times = os.stat(first)
    WRITERS["parquet"]([Pair("c", "d")], tmp_path)
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert list(corpus_of(train=first).train) == [Pair("c", "d")]
    WRITERS["parquet"]([], tmp_path)
    with pytest.raises(DataError, match="there is nothing in it"):
        corpus_of(train=first)


def test_parquet_column_may_be_nested_or_have_a_dot_in_its_name(tmp_path):
    import pyarrow
    import pyarrow.parquet

    inner = [{"en": "a", "es": "b", "fr": "c"}]
    table = pyarrow.table({"id": [1], "t": inner, "u.en": ["d"], "u.es": ["e"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    for columns, pair in ((("t.en", "t.es"), Pair("a", "b")), (("u.en", "u.es"), Pair("d", "e"))):
        assert list(corpus_of(train=str(tmp_path / "a.parquet"), columns=columns).train) == [pair]


@pytest.mark.parametrize("name", ["a.parquet", "data/train-00000-of-00001.parquet"])
def test_invalid_parquet_value_drops_only_its_row(name, tmp_path):
    import pyarrow
    import pyarrow.parquet

    ends = numpy.array([0, 1, 2, 3, 4], dtype=numpy.int32).tobytes()
    damaged = pyarrow.Array.from_buffers(
        pyarrow.string(), 4, [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(b"a\xffbc")]
    )
    (tmp_path / name).parent.mkdir(exist_ok=True)
    inner = pyarrow.StructArray.from_arrays([damaged, pyarrow.array(list("wxyz"))], ["en", "es"])
    moments = pyarrow.array([2**50] * 4, pyarrow.timestamp("s"))  # beyond the year 9999
    table = pyarrow.table({"source": damaged, "target": list("wxyz"), "t": inner, "when": moments})
    pyarrow.parquet.write_table(table, tmp_path / name)
    source = str(tmp_path / name if name == "a.parquet" else tmp_path / "data")
    for columns in (("source", "target"), ("t.en", "t.es")):
        split = corpus_of(train=source, columns=columns).train
        assert list(split) == [Pair("a", "w"), Pair("b", "y"), Pair("c", "z")]
        assert counts(split) == {"not_utf8": (1, 2)}
    with pytest.raises(DataError, match="column 'when' holds no text"):
        corpus_of(train=source, columns=("when", "target"))


def test_dataset_of_csv_files_keeps_na_and_null_as_text(tmp_path):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "train-00000-of-00001.csv"
    path.write_text("source,target\nNA,null\n1,2\n")
    assert list(corpus_of(train=str(tmp_path / "data")).train) == [
        Pair("NA", "null"), Pair("1", "2"),
    ]  # fmt: skip


def test_malformed_jsonl_rows_are_counted(tmp_path):
    lines = [
        '{"source": "a", "target": "b"}', "", "not json", "[1]", '{"source": "a"}',
        '{"source": 1, "target": "b"}', '{"source": null, "target": "b"}',
        '{"source": "\\ud800", "target": "b"}', '{"source": "a\\u0000", "target": "b"}',
        '{"source": "two\\nlines", "target": "b"}', '{"source": "c", "target": "d"}',
    ]  # fmt: skip
    split = train_split("\n".join(lines).encode(), tmp_path, "rows.jsonl")
    assert list(split) == [Pair("a", "b"), Pair("c", "d")]
    assert counts(split) == {
        "empty": (1, 2), "malformed": (4, 3), "one_sided": (1, 7), "not_utf8": (1, 8),
        "nul": (1, 9), "control": (1, 10),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("a.csv", b"en,es\na,b\n", {}, r"no column 'source' \(there: en, es\)"),
        ("a.csv", b"source,source,target\na,b,c\n", {}, "duplicate column 'source'"),
        ("a.tsv", b"source\tsource\ttarget\na\tb\tc\n", {}, "duplicate column 'source'"),
        ("a.csv", b'"source,target\na,b\n', {}, "line 1, the header: "),
        ("a.csv", b"a,b\n", {"columns": (2, 3)}, "2 columns instead of 3"),
        (
            "a.tsv",
            b"en\tes\na\tb\n",
            {"columns": ("en", "fr")},
            r"no column 'fr' \(there: en, es\)",
        ),
        ("a.jsonl", b'{"t": {"en": "a"}}\n', {"columns": ("t.en", "t.fr")}, r"\(there: t.en\)"),
        ("a.jsonl", b'{"en": "a"}\n', {}, r"no column 'source' \(there: en\)"),
        ("a.jsonl", b'{"en": "a"}\n', {"columns": (1, 2)}, "its columns have names"),
        ("a.parquet", b"not parquet", {}, "not readable as parquet"),
        ("a.json", b"[]", {}, "write one JSON object a line"),
    ],
)
def test_file_without_the_requested_columns_is_refused(name, content, settings, message, tmp_path):
    with pytest.raises(DataError, match=message):
        train_split(content, tmp_path, name, **settings)


def test_files_named_after_splits_are_the_splits(tmp_path):
    write(b"a,b\nc,d\n", tmp_path, "train.csv")
    write(b"e\tf\n", tmp_path, "dev.tsv")
    write(b'{"1": "x"}\n', tmp_path, "notes.jsonl")
    corpus = corpus_of(train=str(tmp_path), columns=(1, 2))
    assert {name: list(split) for name, split in corpus.splits.items()} == {
        "train": [Pair("a", "b"), Pair("c", "d")], "valid": [Pair("e", "f")],
    }  # fmt: skip
    write(b"g\th\n", tmp_path, "train.tsv")
    with pytest.raises(DataError, match=r"has both train\.tsv and train\.csv"):
        corpus_of(train=str(tmp_path), columns=(1, 2))


def test_folder_of_several_formats_is_refused(tmp_path):
    write(b"source,target\na,b\n", tmp_path, "one.csv")
    write(b'{"source": "a", "target": "b"}\n', tmp_path, "two.jsonl")
    with pytest.raises(DataError, match=r"has several kinds of csv, tsv, jsonl or parquet files"):
        corpus_of(train=str(tmp_path))
    (tmp_path / "aligned").mkdir()
    with pytest.raises(DataError, match=r"for two aligned files, name both: \[a.en, a.es\]"):
        corpus_of(train=str(tmp_path / "aligned"))


def test_dataset_uses_its_splits_unless_others_are_named(tmp_path):
    pairs = thousand_pairs()
    folder = Path(write_folder(pairs, tmp_path))
    for name, count in (("validation", 3), ("test", 2)):
        path = Path(WRITERS["parquet"](pairs[:count], folder))
        path.rename(folder / f"{name}-00000-of-00001.parquet")
    corpus = corpus_of(train=str(folder))
    assert [len(split) for split in corpus.splits.values()] == [1000, 3, 2]
    assert list(corpus.splits["valid"]) == pairs[:3]
    swapped = corpus_of(train=str(folder), valid="test", test=write(b"x\ty\n", tmp_path))
    assert [len(split) for split in swapped.splits.values()] == [1000, 2, 1]
    with pytest.raises(DataError, match=r"no split 'dev' \(there: train, validation, test\)"):
        corpus_of(train=str(folder), valid="dev")
    with pytest.raises(DataError, match=r"no column 'en' \(there: source, target\)"):
        corpus_of(train=str(folder), columns=("en", "es"))


def test_hub_name_without_network_is_refused():
    with pytest.raises(DataError, match="it is not in the cache, and the hub cannot be reached"):
        corpus_of(train="owner/corpus", columns=("en", "es"))
    with pytest.raises(DataError, match="neither a file"):
        corpus_of(train="data/train.tsv")  # a path with a typo is not a hub name


def test_unreachable_hub_is_not_waited_for(tmp_path, monkeypatch):
    import huggingface_hub

    from minitransformer.data.readers import hub_is_reachable

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert not hub_is_reachable()
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert not hub_is_reachable()


def test_cached_hub_dataset_is_used_without_network(tmp_path):
    import datasets

    folder = write_folder(thousand_pairs(), tmp_path)
    corpus_of(train=folder)
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    (cache / "corpus").rename(cache / "owner___corpus")  # where a download would have put it
    assert list(corpus_of(train="owner/corpus").train) == thousand_pairs()
