"""Rows of csv and jsonl files; a row that cannot be read costs no other row."""

import csv
import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from minitransformer.data.text_files import Columns, Row, column_problem, place_of, text_lines
from minitransformer.errors import DataError


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
