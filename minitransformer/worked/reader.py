"""Sheets from YAML files: numbers stay the text that was printed, errors name their position."""

import re
from collections.abc import Iterable
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from minitransformer.config import MAX_FILE_BYTES, StrictLoader, describe, read_yaml
from minitransformer.errors import SheetError, did_you_mean
from minitransformer.storage import read_regular_file
from minitransformer.worked.formulas import Formula, read_formula
from minitransformer.worked.sheet import (
    BLANK,
    RULES,
    Cell,
    Printed,
    Sheet,
    SheetModel,
    SheetRun,
    Slip,
    Step,
    by_cell,
    read_number,
)

SHEETS = Path(__file__).parent / "sheets"
SHIPPED = (  # in the order of their sources
    "self-attention-3x4", "masked-4x3", "cross-2x4", "positional-4d", "lets-go", "softmax-11.7",
    "school", "i-love-ai", "dot-attention", "multiplicative-attention", "exam-q1", "mha-1",
    "mha-2", "mha-masked", "mha-cross", "mha-torch-call", "contextualized-formula", "classifiers",
    "lets-go-as-printed",
)  # fmt: skip
SHEET_KEYS = {"title", "source", "repeats", "rounding", "conventions", "readings", "given",
              "hidden", "hidden_note", "model", "run", "steps", "slips"}  # fmt: skip
STEP_KEYS = {"name", "says", "compute", "also", "traced", "printed", "decimals", "reprint", "scan",
             "uncheckable", "verdict", "text", "check", "note"}  # fmt: skip
SLIP_KEYS = {"number", "step", "cells", "wrote", "right", "why", "as"}


class TextLoader(StrictLoader):
    """Load every scalar as the text that was written: 0.50 stays 0.50."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


Complete = TypeVar("Complete", SheetModel, SheetRun)


def load_shipped(name: str) -> Sheet:
    return load_sheet(SHEETS / f"{name}.yaml")


def load_sheet(path: Path) -> Sheet:
    """Read a sheet from a file."""
    return read_sheet(read_text(path), str(path), path.stem)


def read_text(path: Path) -> str:
    try:
        return read_regular_file(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SheetError(f"{path}: not readable as UTF-8 text") from None
    except OSError as error:
        raise SheetError(f"{path}: {error.strerror}") from None


def read_sheet(text: str, where: str, name: str) -> Sheet:
    """Read a sheet; every mistake is one line that begins with its position."""
    data = read_yaml(text, where, TextLoader)
    if not isinstance(data, dict):
        raise SheetError(
            f"{where}: a sheet has the sections 'given' and 'steps'; got {describe(data)}"
        )
    sheet = merge_repeated(Section(data, SHEET_KEYS, where))
    rounding = sheet.text("rounding") or "nearest"
    if rounding not in RULES:
        raise SheetError(f"{where}: rounding: choose {', '.join(RULES)}; got {describe(rounding)}")
    given_rows = sheet.section("given").data
    given = {key: read_matrix(value, f"{where}: given {key}") for key, value in given_rows.items()}
    steps = tuple(read_step(each) for each in sheet.sections("steps", STEP_KEYS, "step"))
    if not steps:
        raise SheetError(f"{where}: steps: expected a list of steps, got nothing")
    names = [*given, *(step.name for step in steps)]
    if duplicates := [each for each in names if names.count(each) > 1]:
        raise SheetError(f"{where}: duplicate name {duplicates[0]!r}")
    run = sheet.complete("run", SheetRun)
    if run and any(step.printed for step in steps):
        raise SheetError(f"{where}: run: a sheet that takes its numbers from a run prints none")
    return Sheet(
        name=name,
        where=where,
        title=sheet.text("title") or name,
        source=sheet.text("source"),
        repeats=sheet.text("repeats"),
        rounding=rounding,
        conventions=sheet.section("conventions").all_texts(),
        readings=sheet.section("readings").all_texts(),
        given=given,
        given_text={key: as_rows(value) for key, value in given_rows.items()},
        hidden=read_hidden(sheet, given),
        hidden_note=sheet.text("hidden_note"),
        model=sheet.complete("model", SheetModel),
        run=run,
        steps=steps,
        slips=tuple(read_slip(each, steps) for each in sheet.sections("slips", SLIP_KEYS, "slip")),
    )


class Section:
    """A mapping of a sheet with known keys, and its position for error messages."""

    def __init__(self, data: Any, keys: Iterable[str] | None, where: str) -> None:
        if not isinstance(data, dict):
            raise SheetError(
                f"{where}: expected a section such as name: value, got {describe(data)}"
            )
        for key in data:
            if keys is not None and key not in keys:
                hint = did_you_mean(key, keys) or f" (there are: {', '.join(sorted(keys))})"
                raise SheetError(f"{where}: unknown key {key!r}{hint}")
        self.data: dict[str, Any] = data
        self.where = where

    def section(self, key: str, keys: Iterable[str] | None = None) -> "Section":
        """Return an inner section, empty if the key is absent."""
        return Section(self.data.get(key, {}), keys, f"{self.where}: {key}")

    def sections(self, key: str, keys: set[str], singular: str) -> list["Section"]:
        """Return a list of inner sections."""
        listed = self.data.get(key, [])
        if not isinstance(listed, list):
            raise SheetError(f"{self.where}: {key}: expected a list, got {describe(listed)}")
        return [
            Section(each, keys, f"{self.where}: {singular} {n}")
            for n, each in enumerate(listed, start=1)
        ]

    def complete(self, key: str, kind: type[Complete]) -> Complete | None:
        """Return a section with all fields of a dataclass, texts and mappings of texts, or None."""
        if key not in self.data:
            return None
        inner = self.section(key, [each.name for each in fields(kind)])
        values: dict[str, Any] = {}
        for each in fields(kind):
            is_text = each.type is str
            values[each.name] = (
                inner.text(each.name) if is_text else inner.section(each.name).all_texts()
            )
            if not values[each.name]:
                raise SheetError(f"{inner.where}: lacks '{each.name}'")
        return kind(**values)

    def text(self, key: str) -> str:
        value = self.data.get(key, "")
        if not isinstance(value, str):
            raise SheetError(f"{self.where}: {key}: expected a text, got {describe(value)}")
        return " ".join(value.split())

    def texts(self, key: str) -> list[str]:
        return text_list(self.data.get(key, []), f"{self.where}: {key}")

    def all_texts(self) -> dict[str, str]:
        return {key: self.text(key) for key in self.data}

    def flag(self, key: str) -> bool:
        value = self.data.get(key, "false")
        if value not in ("true", "false"):
            raise SheetError(f"{self.where}: {key}: expected true or false, got {describe(value)}")
        return bool(value == "true")

    def formula(self, key: str) -> Formula | None:
        if key not in self.data:
            return None
        return read_formula(self.text(key), f"{self.where}: {key}")


def merge_repeated(sheet: Section) -> Section:
    """Merge a sheet into the shipped sheet that it repeats, if any."""
    name, where = sheet.text("repeats"), sheet.where
    if not name:
        return sheet
    if name not in SHIPPED:
        hint = did_you_mean(name, SHIPPED)
        raise SheetError(f"{where}: repeats: there is no sheet {name!r}{hint}")
    base = read_yaml(read_text(SHEETS / f"{name}.yaml"), name, TextLoader)
    changes = {each.text("name"): each.data for each in sheet.sections("steps", STEP_KEYS, "step")}
    steps = [{**each, **changes.pop(each["name"], {})} for each in base["steps"]]
    if changes:
        raise SheetError(f"{where}: steps: {name} has no step {next(iter(changes))!r}")
    return Section({**merge(base, sheet.data), "steps": steps}, SHEET_KEYS, where)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge two mappings and the mappings inside them."""
    both = {**base, **changes}
    for key in base.keys() & changes.keys():
        if isinstance(base[key], dict) and isinstance(changes[key], dict):
            both[key] = merge(base[key], changes[key])
    return both


def read_hidden(sheet: Section, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Read given matrices with more digits than were printed."""
    hidden = {}
    for key, value in sheet.section("hidden").data.items():
        hidden[key] = read_matrix(value, f"{sheet.where}: hidden {key}")
        if key not in given or given[key].shape != hidden[key].shape:
            raise SheetError(
                f"{sheet.where}: hidden {key!r}: no given matrix has this name and size"
            )
    return hidden


def read_step(section: Section) -> Step:
    name = section.text("name")
    if name:
        section.where += f" {name!r}"
    where = section.where
    if name and not name.isidentifier():
        raise SheetError(f"{where}: a name is letters, digits and _, such as Q or scores_2")
    if not {"compute", "text", "uncheckable"} & section.data.keys():
        raise SheetError(f"{where}: has neither compute nor text")
    if not name:
        raise SheetError(f"{where}: has no name")
    if "check" in section.data and "text" not in section.data:
        raise SheetError(f"{where}: check goes with a statement, that is, with text")
    decimals = section.text("decimals")
    if decimals and not (decimals.isascii() and decimals.isdigit() and int(decimals) <= 30):
        raise SheetError(f"{where}: decimals: expected 0 to 30, got {describe(decimals)}")
    printed: tuple[tuple[Printed, ...], ...] = ()
    if "printed" in section.data:
        digits = int(decimals) if decimals else None
        printed = read_grid(section.data["printed"], digits, f"{where}: printed", may_be_blank=True)
    cells = list(by_cell(printed))
    scans = {}
    for scan in section.sections("scan", {"cell", "shows", "why"}, "scan"):
        cell = read_cell(scan.data.get("cell"), cells, scan.where)
        scans[cell] = "; ".join(filter(None, (scan.text("shows"), scan.text("why"))))
    unclear = section.section("uncheckable", {"cells", "needs"})
    unclear_cells = cells if unclear.data else []
    if "cells" in unclear.data:
        unclear_cells = read_cells(unclear.data["cells"], cells, unclear.where)
    claimed = {}
    if "verdict" in section.data:
        claimed = read_verdicts(section.data["verdict"], cells or [(0, 0)], f"{where}: verdict")
    return Step(
        name=name,
        title=section.text("says"),
        compute=section.formula("compute"),
        also=tuple(read_formula(each, f"{where}: also") for each in section.texts("also")),
        traced=section.text("traced"),
        printed=printed,
        is_reprint=section.flag("reprint"),
        scans=scans,
        uncheckable=dict.fromkeys(unclear_cells, unclear.text("needs")),
        claimed=claimed,
        text=section.text("text"),
        check=section.formula("check"),
        note=section.text("note"),
    )


def read_verdicts(data: Any, cells: list[Cell], where: str) -> dict[Cell, str]:
    """Read one verdict per cell; a single text is the verdict on all of them."""
    if isinstance(data, str):
        return dict.fromkeys(cells, data)
    found = by_cell(text_list(row, where) for row in as_rows(data))
    if list(found) != cells:
        raise SheetError(f"{where}: has other rows or columns than printed")
    return found


def read_slip(section: Section, steps: tuple[Step, ...]) -> Slip:
    name, number, where = section.text("step"), section.text("number"), section.where
    by_name = {step.name: step for step in steps}
    if name not in by_name:
        raise SheetError(f"{where}: there is no step {name!r}{did_you_mean(name, by_name)}")
    if not number.isdecimal():
        raise SheetError(f"{where}: number: expected a number from 1, got {describe(number)}")
    cells = read_cells(section.data.get("cells", []), list(by_name[name].cells), where)
    wrote, right = section.texts("wrote"), section.texts("right")
    if cells and not len(cells) == len(wrote) == len(right):
        raise SheetError(f"{where}: cells, wrote and right must be lists of the same length")
    return Slip(
        number=number,
        step=name,
        cells=tuple(cells),
        wrote=tuple(wrote),
        right=tuple(right),
        why=section.text("why"),
        reproduced=section.formula("as"),
    )


def text_list(value: Any, where: str) -> list[str]:
    """Return a list of texts; a single text is a list of one."""
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in listed):
        raise SheetError(f"{where}: expected texts such as [a, b], got {describe(value)}")
    return listed


def as_rows(data: Any) -> list[list[Any]]:
    """Return a matrix, a row or a single number as rows."""
    if not isinstance(data, list):
        return [[data]]
    if not any(isinstance(each, list) for each in data):
        return [data]
    return [each if isinstance(each, list) else [each] for each in data]


def read_matrix(data: Any, where: str) -> Tensor:
    rows = read_grid(data, 0, where)
    return torch.tensor([[float(each.value) for each in row] for row in rows], dtype=torch.float64)


def read_grid(
    data: Any, decimals: int | None, where: str, *, may_be_blank: bool = False
) -> tuple[tuple[Printed, ...], ...]:
    """Read numbers in rows of equal length; without `decimals`, 0 beside 0.25 means 0.00."""
    rows = as_rows(data)
    if not rows or not rows[0]:
        raise SheetError(f"{where}: expected numbers, got an empty list")
    if len({len(row) for row in rows}) > 1:
        lengths = ", ".join(str(len(row)) for row in rows)
        raise SheetError(f"{where}: the rows must be of equal length; they have {lengths} numbers")
    if decimals is None:
        decimals = fewest_decimals([text for row in rows for text in row if isinstance(text, str)])
    return tuple(
        tuple(
            read_entry(text, decimals, f"{where} [{r},{c}]", may_be_blank=may_be_blank)
            for c, text in enumerate(row, start=1)
        )
        for r, row in enumerate(rows, start=1)
    )


def fewest_decimals(texts: list[str]) -> int:
    """Return the fewest decimals of the numbers that have a point."""
    points = [text.partition(".")[2] for text in texts if "." in text and "e" not in text.lower()]
    return min((len(digits) for digits in points if digits), default=0)


def read_entry(text: Any, decimals: int, where: str, *, may_be_blank: bool) -> Printed:
    if may_be_blank and text == BLANK:
        return Printed(BLANK, Decimal("NaN"), Decimal(1))
    number = read_number(text, decimals) if isinstance(text, str) else None
    if number is None:
        hint = f"; {BLANK} is a cell that was left empty" if may_be_blank else ""
        raise SheetError(f"{where}: expected a number such as 0.25, got {describe(text)}{hint}")
    return number


def read_cells(data: Any, cells: list[Cell], where: str) -> list[Cell]:
    """Read a list of cells; in a single row, a number alone is one."""
    listed = data if isinstance(data, list) else [data]
    return [read_cell(each, cells, where) for each in listed]


def read_cell(data: Any, cells: list[Cell], where: str) -> Cell:
    """Read [row, column], or a single number in a single row; counted from 1."""
    parts = [str(part) for part in (data if isinstance(data, list) else [data])]
    parts = ["1", *parts] if len(parts) == 1 else parts
    for row, column in cells:
        if parts == [str(row + 1), str(column + 1)]:
            return row, column
    raise SheetError(f"{where}: there is no cell {describe(data)}; write [row, column], from 1")
