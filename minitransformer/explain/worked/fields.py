"""The fields of a sheet's YAML: sections, texts, numbers in rows, cells; each checked."""

from decimal import Decimal
from typing import Any

import torch
from torch import Tensor

from minitransformer.errors import SheetError, did_you_mean
from minitransformer.explain.worked.numbers import BLANK, Printed, decimals_of, read_number
from minitransformer.explain.worked.sheet import Cell, Grid
from minitransformer.schema import describe


def section(data: Any, keys: set[str] | None, where: str) -> dict[str, Any]:
    """A mapping whose keys are all known."""
    if not isinstance(data, dict):
        raise SheetError(f"{where}: expected a section such as name: value, got {describe(data)}")
    for key in data:
        if keys is not None and key not in keys:
            raise SheetError(f"{where}: unknown key {key!r}{did_you_mean(key, keys)}")
    return data


def sections(value: Any, keys: set[str], where: str) -> list[dict[str, Any]]:
    """A list of sections."""
    if not isinstance(value, list):
        raise SheetError(f"{where}: expected a list, got {describe(value)}")
    return [section(each, keys, where) for each in value]


def text_section(data: dict[str, Any], name: str, where: str) -> dict[str, str]:
    """A mapping of texts, empty where there is none."""
    found = section(data.get(name, {}), None, f"{where}: {name}")
    return {key: word(found, key, f"{where}: {name}") for key in found}


def complete(
    data: dict[str, Any], name: str, keys: dict[str, type[Any]], where: str
) -> dict[str, Any]:
    """A section with all of its keys, texts or mappings of texts; empty where there is none."""
    if name not in data:
        return {}
    place = f"{where}: {name}"
    given = section(data[name], set(keys), place)
    found: dict[str, Any] = {}
    for key, kind in keys.items():
        found[key] = text_section(given, key, place) if kind is dict else word(given, key, place)
        if not found[key]:
            raise SheetError(f"{place}: lacks '{key}'")
    return found


def word(data: dict[str, Any], key: str, where: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise SheetError(f"{where}: {key}: expected a text, got {describe(value)}")
    return " ".join(value.split())


def yes(data: dict[str, Any], key: str, where: str) -> bool:
    value = data.get(key, "false")
    if value not in ("true", "false"):
        raise SheetError(f"{where}: {key}: expected true or false, got {describe(value)}")
    return bool(value == "true")


def texts(value: Any, where: str) -> list[str]:
    """A list of texts; a single text is a list of one."""
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in listed):
        raise SheetError(f"{where}: expected texts such as [a, b], got {describe(value)}")
    return listed


def as_rows(data: Any) -> list[list[Any]]:
    """A matrix, a row or a single number, as rows."""
    if not isinstance(data, list):
        return [[data]]
    if not any(isinstance(each, list) for each in data):
        return [data]
    return [each if isinstance(each, list) else [each] for each in data]


def read_grid(data: Any, decimals: int | None, where: str, *, may_be_blank: bool = False) -> Grid:
    """Numbers in rows of equal length; without `decimals`, 0 beside 0.25 stands for 0.00."""
    rows = as_rows(data)
    if not rows or not rows[0]:
        raise SheetError(f"{where}: expected numbers, got an empty list")
    if len({len(row) for row in rows}) > 1:
        lengths = ", ".join(str(len(row)) for row in rows)
        raise SheetError(f"{where}: the rows must be of equal length; they have {lengths} numbers")
    if decimals is None:
        decimals = decimals_of([text for row in rows for text in row if isinstance(text, str)])
    return tuple(
        tuple(
            read_entry(text, decimals, f"{where} [{r},{c}]", may_be_blank=may_be_blank)
            for c, text in enumerate(row, start=1)
        )
        for r, row in enumerate(rows, start=1)
    )


def read_entry(text: Any, decimals: int, where: str, *, may_be_blank: bool) -> Printed:
    if may_be_blank and text == BLANK:
        return Printed(BLANK, Decimal("NaN"), Decimal(1))
    number = read_number(text, decimals) if isinstance(text, str) else None
    if number is None:
        hint = f"; {BLANK} is a cell that was left empty" if may_be_blank else ""
        raise SheetError(f"{where}: expected a number such as 0.25, got {describe(text)}{hint}")
    return number


def numbers(data: Any, where: str) -> Tensor:
    grid = read_grid(data, 0, where)
    return torch.tensor([[float(each.value) for each in row] for row in grid], dtype=torch.float64)


def read_cells(data: Any, cells: list[Cell], where: str) -> list[Cell]:
    """A list of cells; in a single row, a number alone is one."""
    listed = data if isinstance(data, list) else [data]
    return [read_cell(each, cells, where) for each in listed]


def read_cell(data: Any, cells: list[Cell], where: str) -> Cell:
    """A cell as [row, column], or a single number in a single row; counted from 1."""
    parts = [str(part) for part in (data if isinstance(data, list) else [data])]
    parts = ["1", *parts] if len(parts) == 1 else parts
    for cell in cells:
        if parts == [str(cell[0]), str(cell[1])]:
            return cell
    raise SheetError(f"{where}: there is no cell {describe(data)}; write [row, column], from 1")
