"""Rows of tsv, aligned text, csv and jsonl files by strict readers: no line vanishes."""

import csv
import json
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from minitransformer.errors import DataError

Floats = NDArray[numpy.float64]
MOST_GAPS = 50  # more missing lines than this are looked for as one gap
CLEAR_GAIN = 3.0  # a path that fits no better than any other says nothing


def first_mismatch(sources: list[str], targets: list[str]) -> int | None:
    """The place, from 0, after which lines fit better when the longer file skips some.

    With k lines too many, the best path through both files has k skips; the first of them is where
    to look. best[place] is the least cost of matching the first `place` lines of the shorter file
    with j lines skipped so far. None when the lines are too much alike to tell.
    """
    short, long = sorted((sources, targets), key=len)
    missing = len(long) - len(short)
    if not short:
        return 0
    features = features_of(short, long), features_of(long, short)
    skips = range(1, missing + 1) if missing <= MOST_GAPS else (missing,)
    best = numpy.append(0.0, cost(*features, 0).cumsum())
    unskipped = float(best[-1])
    first = numpy.arange(len(best))  # where the best path made its first skip
    for skip in skips:
        total = numpy.append(0.0, cost(*features, skip).cumsum())
        gain = best - total
        lowest = numpy.minimum.accumulate(gain)
        is_new = numpy.append(True, gain[1:] < lowest[:-1])
        came_from = numpy.maximum.accumulate(numpy.where(is_new, numpy.arange(len(gain)), 0))
        best, first = total + lowest, first[came_from] if skip != skips[0] else came_from
    worst = max(unskipped, float(total[-1]))  # all skips at the end, or all at the beginning
    return int(first[-1]) if worst - float(best[-1]) > CLEAR_GAIN else None


def features_of(lines: list[str], others: list[str]) -> list[Floats]:
    """For each line its length against the usual one, its last sign, and a word of both files."""
    lengths = numpy.log1p(numpy.array([len(line) for line in lines], dtype=float))
    shared = {word for line in others for word in line.split()}
    common = [min((w for w in line.split() if w in shared), default="", key=code) for line in lines]
    ends = [line[-1:] if line[-1:] in "?!" else "" for line in lines]
    return [
        lengths - numpy.median(lengths),
        numpy.array([code(end) for end in ends], dtype=float),
        numpy.array([code(word) for word in common], dtype=float),
    ]


def code(text: str) -> int:
    """A number that stands for a text, the same on every machine; 0 for none."""
    return zlib.crc32(text.encode("utf-8", errors="surrogatepass"))


def cost(short: list[Floats], long: list[Floats], skip: int) -> Floats:
    """How badly each line of the shorter file fits the one `skip` lines further down."""
    beside = [feature[skip : skip + len(short[0])] for feature in long]
    costs: Floats = numpy.abs(beside[0] - short[0])
    for ours, theirs in zip(short[1:], beside[1:], strict=True):
        costs = costs + (ours != theirs)
    return costs


Columns = tuple[str | int, ...]
DEFAULT_COLUMNS = ("source", "target")  # for which a tab-separated file needs no header


class Row(NamedTuple):
    """What stands at one place of a file; `problem` says why it is no pair."""

    number: int  # its line, or its row where a format has no lines; from 1
    source: str
    target: str
    problem: str = ""


def text_lines(path: Path) -> Generator[str, None, None]:
    """Lines as `wc -l` counts them; bytes that are not UTF-8 become lone surrogates."""
    try:
        with path.open("rb") as file:
            for place, line in enumerate(file):
                if place == 0:
                    line = checked_start(line, path)
                yield line.removesuffix(b"\n").decode("utf-8", errors="surrogateescape")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def checked_start(line: bytes, path: Path) -> bytes:
    """A file's first line without its byte-order mark; refuses what is no UTF-8 text at all."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or line.count(0) > len(line) // 4:
        raise DataError(f"{path}: looks like UTF-16; save it as UTF-8")
    if line.startswith((b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ")):
        raise DataError(f"{path}: looks packed or like a spreadsheet; unpack it or save it as csv")
    return line.removeprefix(b"\xef\xbb\xbf")


def tab_separated(path: Path, columns: Columns) -> Iterator[Row]:
    """Two columns with a tab between, or two of several by number or by a header's names."""
    places: list[int] = [0, 1]
    width: int | None = 2
    for number, line in enumerate(text_lines(path), start=1):
        fields = [field.strip() for field in line.split("\t")]
        if number == 1:
            if isinstance(columns[0], int):
                places, width = [int(column) - 1 for column in columns], None
            elif set(columns) <= set(fields) or columns != DEFAULT_COLUMNS:
                places, width = [place_of(name, fields, path) for name in columns], len(fields)
        if not any(fields):
            yield Row(number, "", "")
        elif len(fields) != (width or len(fields)) or max(places) >= len(fields):
            yield Row(number, "", "", column_problem(number, len(fields), width or max(places) + 1))
        else:
            yield Row(number, *(fields[place] for place in places))


def column_problem(number: int, count: int, width: int) -> str:
    columns = f"{count} column{'s' * (count != 1)} instead of {width}"
    if count > width == 2:
        return f"{columns}; choose two of them with data.columns, such as [1, 2]"
    if number == count == 1:
        return f"{columns}; of two aligned files, name both: [a.en, a.es]"
    return columns


def place_of(column: object, names: list[str], where: object) -> int:
    """Where a column stands in a header that has it once."""
    if isinstance(column, str) and names.count(column) == 1:
        return names.index(column)
    problem = f"column '{column}' stands twice" if column in names else f"no column '{column}'"
    raise DataError(
        f"{where}: {problem} (there: {', '.join(names)[:200]}); "
        "name two of them as data.columns, such as [en, es], or without a header [1, 2]"
    )


def aligned(source_path: Path, target_path: Path) -> Iterator[Row]:
    """Line n of one file is the translation of line n of the other."""
    with closing(text_lines(source_path)) as sources, closing(text_lines(target_path)) as targets:
        for number, (source, target) in enumerate(zip_longest(sources, targets), start=1):
            if source is None or target is None:
                raise DataError(misalignment(source_path, target_path))
            yield Row(number, source.strip(), target.strip())


def misalignment(source_path: Path, target_path: Path) -> str:
    """Both line counts, and where a line seems to be missing."""
    sources, targets = list(text_lines(source_path)), list(text_lines(target_path))
    counts = f"{source_path} has {len(sources):,} lines, {target_path} has {len(targets):,}"
    if min(len(sources), len(targets)) < 5:  # too few to tell by their lengths
        return counts
    line = first_mismatch(sources, targets)
    if line is None:
        return f"{counts}; the lines are too much alike to tell where they stop matching"
    pair = " | ".join(lines[line][:40] if line < len(lines) else "(no line)"
                      for lines in (sources, targets))  # fmt: skip
    return f"{counts}; they stop matching at about line {line + 1:,}: {pair}"


class Lines:
    """A file's lines one by one, some of which can be given back to be read again."""

    def __init__(self, path: Path) -> None:
        self.rest = text_lines(path)
        self.given_back: deque[str] = deque()
        self.taken: list[str] = []  # since the last row began
        self.number = 0  # of the line that was taken last

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> str:
        line = self.given_back.popleft() if self.given_back else f"{next(self.rest)}\n"
        self.taken.append(line)
        self.number += 1
        return line

    def give_back_all_but_the_first(self) -> None:
        self.given_back.extendleft(reversed(self.taken[1:]))
        self.number -= len(self.taken) - 1


def comma_separated(path: Path, columns: Columns) -> Iterator[Row]:
    """csv with a header, or without one when columns are numbers; " may enclose a field."""
    lines = Lines(path)
    reader = csv.reader(lines, delimiter=delimiter_of(path), strict=True)
    places: list[int] | None = None
    width = 0  # not known before the first row
    if isinstance(columns[0], int):
        places = [int(column) - 1 for column in columns]
    while True:
        lines.taken.clear()
        number = lines.number + 1
        try:
            fields = [field.strip() for field in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            # A quote that is never closed would swallow the rows after it.
            lines.give_back_all_but_the_first()
            if places is None:
                raise DataError(f"{path}: line {number}, the header: {error}") from None
            yield Row(number, "", "", str(error))
            continue
        if not any(fields):
            yield Row(number, "", "")
            continue
        if places is None:
            places, width = [place_of(column, fields, path) for column in columns], len(fields)
            continue
        width = width or max(len(fields), max(places) + 1)
        if len(fields) != width:
            yield Row(number, "", "", column_problem(number, len(fields), width))
        else:
            yield Row(number, *(fields[place] for place in places))


def delimiter_of(path: Path) -> str:
    """A comma, or what spreadsheets write where the comma is in numbers."""
    first = next(text_lines(path), "")
    return ";" if ";" in first and "," not in first else ","


def json_lines(path: Path, columns: Columns) -> Iterator[Row]:
    """One JSON object a line; a dotted column such as translation.en looks inside an object."""
    pick = picker(columns, path)
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            yield Row(number, "", "")
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            yield Row(number, "", "", "not a JSON object")
            continue
        yield pick(number, data)


def picker(columns: Columns, where: object) -> Callable[[int, object], Row]:
    """A function that takes two columns out of an object."""
    if isinstance(columns[0], int):
        raise DataError(f"{where}: its columns have names; set data.columns, such as [en, es]")
    paths = [(str(column), str(column).split(".")) for column in columns]

    def pick(number: int, data: object) -> Row:
        texts = []
        for name, path in paths:
            value = data
            if isinstance(data, dict) and name in data:
                value = data[name]
            else:
                for key in path:
                    if not (isinstance(value, dict) and key in value):
                        return Row(number, "", "", f"no column '{name}' ({columns_of(data)})")
                    value = value[key]
            if not isinstance(value, str | None):
                return Row(number, "", "", f"column '{name}' holds no text")
            texts.append((value or "").strip())
        return Row(number, *texts)

    return pick


def columns_of(data: object) -> str:
    """What there is to choose from, one level deep."""
    if not isinstance(data, dict):
        return "there is no object"
    names = [
        f"{key}.{inner}" if inner else str(key)
        for key, value in data.items()
        for inner in (value if isinstance(value, dict) else ("",))
    ]
    return f"there: {', '.join(names)[:100]}"
