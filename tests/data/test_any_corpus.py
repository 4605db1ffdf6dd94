"""Every line of a random corpus is kept or counted as dropped, and pairs stay aligned."""

import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitransformer.data.corpus import find_sources
from minitransformer.errors import DataError
from minitransformer.settings import DataConfig
from tests.support.corpus_files import corpus_of
from tests.support.damage import damaged, garbage_lines, result_or_error

COLUMNS = st.sampled_from([("source", "target"), (1, 2), (2, 1), ("en", "es"), ("t.en", "t.es")])


def write_corpus(name: str, content: bytes, folder: Path):
    """Write a corpus and return its data.train; of aligned files, both get as many lines."""
    if name != "aligned":
        (folder / f"any.{name}").write_bytes(content)
        return str(folder / f"any.{name}")
    (folder / "any.en").write_bytes(content)
    lines = num_lines(content)
    (folder / "any.es").write_bytes(b"".join(b"t%d\n" % n for n in range(lines)))
    return str(folder / "any.en"), str(folder / "any.es")


def num_lines(content: bytes) -> int:
    return content.count(b"\n") + (not content.endswith(b"\n") and content != b"")


@pytest.mark.parametrize("name", ["tsv", "csv", "jsonl", "aligned"])
@given(data=st.data(), columns=COLUMNS)
def test_every_line_is_kept_or_counted_as_dropped(name, data, columns, tmp_path_factory):
    good = {"tsv": b"a\tb", "csv": b'"a, c",b', "jsonl": b'{"source": "a", "target": "b"}'}
    lines = data.draw(st.lists(st.just(good.get(name, b"a")) | garbage_lines, max_size=12))
    ending = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    content = ending.join(lines) + data.draw(st.sampled_from([b"", ending]))
    path = write_corpus(name, content, tmp_path_factory.getbasetemp())
    source = find_sources(DataConfig(train=path, columns=columns))["train"]
    rows = result_or_error(lambda: list(source.rows()), DataError)
    if isinstance(rows, DataError):
        return
    numbers = [row.number for row in rows]
    line_count = num_lines(content)
    if name == "csv":  # a quoted row may have several lines, and a header is not a row
        assert numbers == sorted(set(numbers))
        assert all(1 <= number <= line_count for number in numbers)
    else:
        assert numbers == list(range(1, line_count + 1))
    split = result_or_error(lambda: corpus_of(train=path, columns=columns).train, DataError)
    if isinstance(split, DataError):
        return
    assert len(split) + split.report.dropped == len(rows)
    assert len(list(split)) == len(split)


def parquet_content(compression: str) -> bytes:
    import pyarrow
    import pyarrow.parquet

    columns = {side: [f"{side} {n} " * 9 for n in range(30)] for side in ("source", "target")}
    file = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table(columns), file, compression=compression, use_dictionary=False
    )
    return file.getvalue()


PARQUET = [parquet_content("snappy"), parquet_content("none")]


@given(content=st.sampled_from(PARQUET).flatmap(lambda whole: damaged(whole, 2)) | st.binary())
def test_damaged_parquet_is_read_or_refused(content, tmp_path_factory):
    path = write_corpus("parquet", content, tmp_path_factory.getbasetemp())
    split = result_or_error(lambda: corpus_of(train=path).train, DataError)
    if isinstance(split, DataError):
        assert "\n" not in str(split)
    else:
        assert len(split) + split.report.dropped == len(split.kept)


def numbered_line(name: str, number: int) -> bytes:
    """Return a valid line that contains its number on both sides."""
    source, target = f"s{number}", f"t{number}"
    return {
        "tsv": f"{source}\t{target}",
        "csv": f"{source},{target}",
        "jsonl": json.dumps({"target": target, "source": source}),
        "aligned": source,
    }[name].encode()


@pytest.mark.parametrize("name", ["tsv", "csv", "jsonl", "aligned"])
@given(data=st.data())
def test_garbage_lines_never_misalign_pairs(name, data, tmp_path_factory):
    garbage = st.none() | garbage_lines
    drawn = data.draw(st.lists(garbage, min_size=1, max_size=25))  # None: a valid line
    header = {"csv": b"source,target\n"}.get(name, b"")
    first = 1 + header.count(b"\n")
    lines = [
        numbered_line(name, number) if line is None else line
        for number, line in enumerate(drawn, start=first)
    ]
    folder = tmp_path_factory.getbasetemp()
    path = write_corpus(name, header + b"".join(line + b"\n" for line in lines), folder)
    if name == "aligned":
        others = [
            b"t%d" % number if line is None else data.draw(garbage_lines)
            for number, line in enumerate(drawn, start=first)
        ]
        (folder / "any.es").write_bytes(b"".join(line + b"\n" for line in others))
    good = {number for number, line in enumerate(drawn, start=first) if line is None}
    split = result_or_error(lambda: corpus_of(train=path).train, DataError)
    if isinstance(split, DataError):
        # The first line may look like a compressed file or name other columns.
        assert not good or drawn[0] is not None
        return
    kept = dict(split.numbered())
    for number, pair in kept.items():
        if match := re.fullmatch(r"s(\d+)", pair.source):
            assert pair.target == f"t{match[1]}"
            assert number == int(match[1])
        assert not re.fullmatch(r"t\d+", pair.target) or pair.source == f"s{pair.target[1:]}"
    if not (name == "csv" and any(b'"' in (line or b"") for line in drawn)):
        assert good <= kept.keys()


@settings(max_examples=settings().max_examples // 2)
@given(st.integers(0, 30), st.integers(0, 30))
def test_aligned_files_of_different_lengths_are_refused(tmp_path_factory, first, second):
    folder = tmp_path_factory.getbasetemp()
    (folder / "n.en").write_bytes(b"".join(b"s%d\n" % n for n in range(first)))
    (folder / "n.es").write_bytes(b"".join(b"t%d\n" % n for n in range(second)))
    path = str(folder / "n.en"), str(folder / "n.es")
    if first == second > 0:
        assert len(corpus_of(train=path).train) == first
        return
    with pytest.raises(DataError) as caught:
        corpus_of(train=path)
    if first != second:
        assert f"n.en has {first} lines" in str(caught.value)
        assert f"n.es has {second}" in str(caught.value)
