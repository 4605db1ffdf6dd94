"""Rows of text files, parquet files and data sets on the Hugging Face hub: no row vanishes."""

import csv
import json
import logging
import os
import socket
import sys
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy
from numpy.typing import NDArray

from minitransformer.errors import DataError, escape_controls

Columns = tuple[str | int, ...]
DEFAULT_COLUMNS = ("source", "target")  # for which a tab-separated file needs no header
ARROW_BATCH_ROWS = 1000
MAX_GAPS = 50  # more missing lines than this are searched for as one gap
MIN_GAIN = 3.0  # a best path that is hardly better than the worst one is no evidence
Floats = NDArray[numpy.float64]


class Row(NamedTuple):
    """One row of a file; `problem` says why it is not a pair."""

    number: int  # its line, or its row where a format has no lines; from 1
    source: str
    target: str
    problem: str = ""


def text_lines(path: Path) -> Generator[str, None, None]:
    """Yield lines as `wc -l` counts them; bytes that are not UTF-8 become lone surrogates."""
    try:
        with path.open("rb") as file:
            for index, line in enumerate(file):
                if index == 0:
                    line = check_first_line(line, path)
                yield line.removesuffix(b"\n").decode("utf-8", errors="surrogateescape")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def check_first_line(line: bytes, path: Path) -> bytes:
    """Return a file's first line without its byte-order mark; refuse what is not UTF-8 text."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or line.count(0) > len(line) // 4:
        raise DataError(f"{path}: looks like UTF-16; save it as UTF-8")
    if line.startswith((b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ")):
        raise DataError(
            f"{path}: looks like a compressed file or a spreadsheet; unpack it or save it as csv"
        )
    return line.removeprefix(b"\xef\xbb\xbf")


def read_tsv(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield rows of two tab-separated columns, or of two among several, by number or header."""
    indices: list[int] = [0, 1]
    width: int | None = 2
    for number, line in enumerate(text_lines(path), start=1):
        fields = [field.strip() for field in line.split("\t")]
        if number == 1:
            if isinstance(columns[0], int):
                indices, width = [int(column) - 1 for column in columns], None
            elif set(columns) <= set(fields) or columns != DEFAULT_COLUMNS:
                indices = [column_index(name, fields, path) for name in columns]
                width = len(fields)
        yield select_columns(number, fields, indices, width)


def column_index(column: object, names: list[str], where: object) -> int:
    """Return the index of a column in a header that has it exactly once."""
    if isinstance(column, str) and names.count(column) == 1:
        return names.index(column)
    problem = f"duplicate column '{column}'" if column in names else f"no column '{column}'"
    raise DataError(
        f"{where}: {problem} (there: {escape_controls(', '.join(names)[:200])}); "
        "name two of them as data.columns, such as [en, es], or without a header [1, 2]"
    )


def select_columns(number: int, fields: list[str], indices: list[int], width: int | None) -> Row:
    """Return two fields of a row; `width` None allows more columns than those."""
    count, least = len(fields), max(indices) + 1
    if not any(fields):
        return Row(number, "", "")
    if count >= least and count == (width or count):
        return Row(number, *(fields[index] for index in indices))
    problem = f"{count} column{'s' * (count != 1)} instead of {width or least}"
    if count > (width or least) == 2:
        problem += "; choose two of them with data.columns, such as [1, 2]"
    elif number == count == 1:
        problem += "; for two aligned files, name both: [a.en, a.es]"
    return Row(number, "", "", problem)


def read_csv(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield rows of a csv file, without a header if columns are numbers; " may quote a field."""
    first_line = next(text_lines(path), "")
    # Spreadsheets write semicolons where numbers have decimal commas.
    delimiter = ";" if ";" in first_line and "," not in first_line else ","
    lines = RereadableLines(path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    indices: list[int] | None = None
    if isinstance(columns[0], int):
        indices = [int(column) - 1 for column in columns]
    width = 0  # unknown before the first row
    while True:
        lines.of_row.clear()
        number = lines.number + 1
        try:
            fields = [field.strip() for field in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            lines.push_back_all_but_first()  # a quote that is never closed has swallowed them
            if indices is None:
                raise DataError(f"{path}: line {number}, the header: {error}") from None
            yield Row(number, "", "", str(error))
            continue
        if not any(fields):
            yield Row(number, "", "")
        elif indices is None:
            indices, width = [column_index(name, fields, path) for name in columns], len(fields)
        else:
            width = width or max(len(fields), max(indices) + 1)
            yield select_columns(number, fields, indices, width)


class RereadableLines:
    """A file's lines one by one; those of the current row can be pushed back and read again."""

    def __init__(self, path: Path) -> None:
        self.rest = text_lines(path)
        self.pushed_back: deque[str] = deque()
        self.of_row: list[str] = []  # read since the current row began
        self.number = 0  # of the last line read

    def __iter__(self) -> "RereadableLines":
        return self

    def __next__(self) -> str:
        line = self.pushed_back.popleft() if self.pushed_back else f"{next(self.rest)}\n"
        self.of_row.append(line)
        self.number += 1
        return line

    def push_back_all_but_first(self) -> None:
        self.pushed_back.extendleft(reversed(self.of_row[1:]))
        self.number -= len(self.of_row) - 1


def read_jsonl(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield rows of one JSON object a line; the column translation.en is inside another one."""
    to_row = object_reader(columns, path)
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            yield Row(number, "", "")
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            yield Row(number, "", "", "not a JSON object")
        else:
            yield to_row(number, data)


def object_reader(columns: Columns, where: object) -> Callable[[int, object], Row]:
    """Return a function that makes a row of two values of a dict."""
    if isinstance(columns[0], int):
        raise DataError(f"{where}: its columns have names; set data.columns, such as [en, es]")
    paths = [(str(column), str(column).split(".")) for column in columns]

    def to_row(number: int, data: object) -> Row:
        texts = []
        for name, path in paths:
            value = data
            for key in [name] if isinstance(data, dict) and name in data else path:
                if not (isinstance(value, dict) and key in value):
                    problem = f"no column '{name}' ({describe_columns(data)})"
                    return Row(number, "", "", problem)
                value = value[key]
            if not isinstance(value, str | None):
                return Row(number, "", "", f"column '{name}' holds no text")
            texts.append((value or "").strip())
        return Row(number, *texts)

    return to_row


def describe_columns(data: object) -> str:
    """List the columns that a row has, one level deep."""
    if not isinstance(data, dict):
        return "there is no object"
    names = [
        f"{key}.{inner}" if inner else str(key)
        for key, value in data.items()
        for inner in (value if isinstance(value, dict) else ("",))
    ]
    return f"there: {escape_controls(', '.join(names)[:100])}"


def read_aligned(source_path: Path, target_path: Path) -> Iterator[Row]:
    """Yield rows of two files; line n of one is the translation of line n of the other."""
    with closing(text_lines(source_path)) as sources, closing(text_lines(target_path)) as targets:
        for number, (source, target) in enumerate(zip_longest(sources, targets), start=1):
            if source is None or target is None:
                raise DataError(describe_misalignment(source_path, target_path))
            yield Row(number, source.strip(), target.strip())


def describe_misalignment(source_path: Path, target_path: Path) -> str:
    """Return both line counts, and where a line seems to be missing."""
    sources, targets = list(text_lines(source_path)), list(text_lines(target_path))
    counts = f"{source_path} has {len(sources):,} lines, {target_path} has {len(targets):,}"
    if min(len(sources), len(targets)) < 5:  # too few to compare their lengths
        return counts
    line = first_mismatch(sources, targets)
    if line is None:
        return f"{counts}; the lines are too much alike to tell where they stop matching"
    pair = " | ".join(lines[line][:40] if line < len(lines) else "(no line)"
                      for lines in (sources, targets))  # fmt: skip
    return f"{counts}; they stop matching at about line {line + 1:,}: {escape_controls(pair)}"


def first_mismatch(sources: list[str], targets: list[str]) -> int | None:
    """Return the index of the first line that the longer file must skip for the lines to fit.

    Dynamic programming over the skips: best[n] is the least cost of matching the first n lines of
    the shorter file with the skips so far, first[n] is where the first of these was made. Return
    None when the lines are too much alike.
    """
    short, long = sorted((sources, targets), key=len)
    missing = len(long) - len(short)
    features = line_features(short, long), line_features(long, short)
    skips = range(1, missing + 1) if missing <= MAX_GAPS else (missing,)
    best = numpy.append(0.0, match_cost(*features, 0).cumsum())
    unskipped = float(best[-1])
    first = numpy.arange(len(best))
    for skip in skips:
        total = numpy.append(0.0, match_cost(*features, skip).cumsum())
        gain = best - total
        lowest = numpy.minimum.accumulate(gain)
        is_new = numpy.append(True, gain[1:] < lowest[:-1])
        came_from = numpy.maximum.accumulate(numpy.where(is_new, numpy.arange(len(gain)), 0))
        best, first = total + lowest, first[came_from]
    worst = max(unskipped, float(total[-1]))  # all skips at the end, or all at the beginning
    return int(first[-1]) if worst - float(best[-1]) > MIN_GAIN else None


def line_features(lines: list[str], others: list[str]) -> Floats:
    """Return three rows: each line's length less the median, its ? or !, a word of both files."""

    def code(text: str) -> int:  # the same on every machine; 0 for no text
        return zlib.crc32(text.encode("utf-8", errors="surrogatepass"))

    lengths = numpy.log1p(numpy.array([len(line) for line in lines], dtype=float))
    shared = {word for line in others for word in line.split()}
    common = [min((w for w in line.split() if w in shared), default="", key=code) for line in lines]
    ends = [line[-1:] if line[-1:] in "?!" else "" for line in lines]
    return numpy.stack(
        (lengths - numpy.median(lengths), [code(end) for end in ends], [code(w) for w in common])
    )


def match_cost(short: Floats, long: Floats, skip: int) -> Floats:
    """Return how badly each line of the shorter file fits the one `skip` lines further down."""
    candidates = long[:, skip : skip + short.shape[1]]
    _, other_end, other_word = short != candidates
    costs: Floats = numpy.abs(candidates[0] - short[0]) + other_end + other_word
    return costs


def read_parquet(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield rows of a parquet file, with a part of it in memory at a time."""
    import pyarrow  # here, as `datasets` below: other formats do not need it
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = top_columns(columns, file.schema_arrow.names, str(path))
            # parquet takes a dot in a name for a path; then all columns are read.
            chosen = None if any("." in name for name in names) else names
            batches = file.iter_batches(ARROW_BATCH_ROWS, columns=chosen)
            yield from arrow_rows(batches, names, columns, path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or root_cause(error)}") from None
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not readable as parquet ({root_cause(error)})") from None


def read_dataset(dataset: Any, columns: Columns, where: str) -> Iterator[Row]:
    """Yield rows of a data set's two columns; its other columns stay on disk."""
    names = top_columns(columns, dataset.column_names, where)
    if not len(dataset):
        return iter(())  # its own iterator fails on an empty data set
    batches = dataset.select_columns(names).with_format("arrow").iter(ARROW_BATCH_ROWS)
    return arrow_rows(batches, names, columns, where)


def top_columns(columns: Columns, names: list[str], where: str) -> list[str]:
    """Return the columns to read: translation for translation.en, unless that is a name."""
    tops = [str(column) if column in names else str(column).split(".")[0] for column in columns]
    if not isinstance(columns[0], int) and not set(tops) & set(names) and "translation" in names:
        raise DataError(f"{where}: name its columns as data.columns=[translation.en, …]")
    for top in tops:
        column_index(top, names, where)
    return list(dict.fromkeys(tops))


def arrow_rows(
    batches: Iterable[Any], names: list[str], columns: Columns, where: object
) -> Iterator[Row]:
    """Yield rows of Arrow tables, numbered from 1."""
    to_row = object_reader(columns, where)
    number = 0
    for batch in batches:
        for values in zip(*(to_python(batch.column(name)) for name in names), strict=True):
            number += 1
            yield to_row(number, dict(zip(names, values, strict=True)))


def to_python(column: Any) -> list[Any]:
    """Return an Arrow column as Python values; an unreadable value spoils only its own row."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [value_to_python(value) for value in column]
    return values


def value_to_python(value: Any) -> Any:
    """Return one Arrow value as a Python value, with U+FFFD in place of damaged text."""
    try:
        return value.as_py()
    except UnicodeDecodeError:
        if hasattr(value, "items"):  # an object, whose other fields may be valid
            return {key: value_to_python(each) for key, each in value.items()}
        return "\ufffd"
    except (ValueError, OverflowError):  # such as a date beyond the years of Python
        return value


def load_splits(name: str, subset: str) -> dict[str, Any]:
    """Load all splits of a local folder or of a data set on the hub, offline from its cache."""
    import datasets

    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    if Path(name).is_dir():
        check_single_format(Path(name))
    elif not hub_is_reachable():
        # It would retry for half a minute; offline, it looks into its cache at once.
        import huggingface_hub

        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
    try:
        builder = datasets.load_dataset_builder(name, subset or None)
        # Its csv reader would turn "NA" into a missing value.
        options = {"keep_default_na": False} if builder.name == "csv" else {}
        return dict(datasets.load_dataset(name, subset or None, **options))
    except ConnectionError:
        raise DataError(
            f"data.train: there is no file or folder '{name}'; as a name on the Hugging Face hub "
            "it is not in the cache, and the hub cannot be reached: download it where there is a "
            "network, and name its files or their folder"
        ) from None
    except Exception as error:  # what it raises depends on which library below it failed
        raise DataError(f"data.train: {name}: {root_cause(error)}") from None


def check_single_format(folder: Path) -> None:
    """Refuse a folder with files of several formats, of which only one would be read."""
    endings = {path.suffix for path in folder.iterdir()} & {".csv", ".tsv", ".jsonl", ".parquet"}
    if len(endings) != 1:
        there = "no" if not endings else "several kinds of"
        raise DataError(
            f"data.train: {folder} has {there} csv, tsv, jsonl or parquet files; name one, or "
            "call them train.…, valid.… and test.…; for two aligned files, name both: [a.en, a.es]"
        )


def hub_is_reachable() -> bool:
    """Return whether a connection to the hub, or to its proxy, opens within five seconds."""
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    proxies = (os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"))
    address = urlsplit(next(filter(None, proxies), huggingface_hub.constants.ENDPOINT))
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True


def root_cause(error: BaseException) -> str:
    """Return the first line of the innermost error's message."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
