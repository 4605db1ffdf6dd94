"""Rows of text files by one strict reader: \\n alone ends a line, and no line vanishes."""

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from minitransformer.data.misalignment import first_mismatch
from minitransformer.errors import DataError

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
