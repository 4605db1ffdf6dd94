"""The fields of a sheet's YAML: sections, texts, numbers in rows, cells; each checked."""

from typing import Any

import torch
from torch import Tensor

from minitransformer.errors import did_you_mean
from minitransformer.explain.worked.formulas import SheetError
from minitransformer.explain.worked.numbers import read_number
from minitransformer.explain.worked.sheet import Cell, Grid
from minitransformer.schema import describe


def section(data: Any, keys: set[str] | None, where: str) -> dict[str, Any]:
    """A mapping whose keys are all known."""
    if not isinstance(data, dict):
        raise SheetError(f"{where}: expected a section such as name: value, got {describe(data)}")
    for key in data:
        if keys is not None and key not in keys:
            raise SheetError(f"{where}: unknown key '{key}'{did_you_mean(key, keys)}")
    return data


def complete(
    data: dict[str, Any], name: str, keys: dict[str, type[Any]], where: str
) -> dict[str, Any]:
    """A section with all of its keys, or nothing where there is none."""
    if name not in data:
        return {}
    found = section(data[name], set(keys), f"{where}: {name}")
    for key, kind in keys.items():
        value = found.get(key)
        if not isinstance(value, kind) or not value:
            wanted = "a section" if kind is dict else "a text"
            raise SheetError(f"{where}: {name}: {key}: expected {wanted}, got {describe(value)}")
    return found


def word(data: dict[str, Any], key: str, where: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise SheetError(f"{where}: {key}: expected a text, got {describe(value)}")
    return value.strip()


def texts(value: Any, where: str) -> list[str]:
    """A list of texts; a single text is a list of one."""
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in listed):
        raise SheetError(f"{where}: expected texts such as [a, b], got {describe(value)}")
    return listed


def sections(value: Any, keys: set[str], where: str) -> list[dict[str, Any]]:
    """A list of sections."""
    if not isinstance(value, list):
        raise SheetError(f"{where}: expected a list, got {describe(value)}")
    return [section(each, keys, where) for each in value]


def as_rows(data: Any) -> list[list[Any]]:
    """A matrix, a row or a single number, as rows."""
    if not isinstance(data, list):
        return [[data]]
    if not any(isinstance(each, list) for each in data):
        return [data]
    return [each if isinstance(each, list) else [each] for each in data]


def read_grid(data: Any, decimals: int, where: str) -> Grid:
    """Numbers in rows of equal length."""
    rows = as_rows(data)
    if not rows[0] or len({len(row) for row in rows}) > 1:
        lengths = ", ".join(str(len(row)) for row in rows)
        raise SheetError(f"{where}: the rows must be of equal length; they have {lengths} numbers")
    grid = []
    for at_row, row in enumerate(rows, 1):
        for at_column, text in enumerate(row, 1):
            if not isinstance(text, str) or read_number(text) is None:
                raise SheetError(
                    f"{where} [{at_row},{at_column}]: expected a number, got {describe(text)}"
                )
        grid.append(tuple(each for text in row if (each := read_number(text, decimals))))
    return tuple(grid)


def numbers(data: Any, where: str) -> Tensor:
    grid = read_grid(data, 0, where)
    return torch.tensor([[float(each.value) for each in row] for row in grid], dtype=torch.float64)


def read_cell(data: Any, cells: list[Cell], where: str) -> Cell:
    """A cell as [row, column], or a single number in a single row; counted from 1."""
    parts = [str(part) for part in (data if isinstance(data, list) else [data])]
    parts = ["1", *parts] if len(parts) == 1 else parts
    for cell in cells:
        if parts == [str(cell[0]), str(cell[1])]:
            return cell
    raise SheetError(f"{where}: there is no cell {describe(data)}; write [row, column], from 1")
