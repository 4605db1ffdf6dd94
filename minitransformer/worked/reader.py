"""Sheets from YAML files: numbers stay the text that was printed, mistakes are named by place."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitransformer.config import MAX_FILE_BYTES, TextLoader, describe, read_yaml
from minitransformer.errors import SheetError, did_you_mean
from minitransformer.storage import read_regular_file
from minitransformer.worked.formulas import read_formula
from minitransformer.worked.sheet import (
    BLANK,
    RULES,
    Cell,
    Grid,
    Printed,
    Sheet,
    Slip,
    Step,
    decimals_of,
    read_number,
)


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
MODEL_KEYS: dict[str, type[Any]] = {"source": dict, "target": dict, "start": str, "weights": dict}
RUN_KEYS: dict[str, type[Any]] = {"config": str, "source": str, "target": str, "tensors": dict}


def load_shipped(name: str) -> Sheet:
    return load_sheet(SHEETS / f"{name}.yaml")


def load_sheet(path: Path) -> Sheet:
    """Read a sheet from a file."""
    return read_sheet(file_text(path), str(path), path.stem)


def file_text(path: Path) -> str:
    try:
        return read_regular_file(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SheetError(f"{path}: not readable as UTF-8 text") from None
    except OSError as error:
        raise SheetError(f"{path}: {error.strerror}") from None


def read_sheet(text: str, where: str, name: str) -> Sheet:
    """Read a sheet; every mistake is one line that names its place."""
    data = read_yaml(text, where, TextLoader)
    if not isinstance(data, dict):
        raise SheetError(f"{where}: a sheet has the sections given and steps; got {describe(data)}")
    data = inherited(section(data, SHEET_KEYS, where), where)
    rounding = word(data, "rounding", where) or "nearest"
    if rounding not in RULES:
        raise SheetError(f"{where}: rounding: choose {', '.join(RULES)}; got {describe(rounding)}")
    given_rows = section(data.get("given", {}), None, f"{where}: given")
    given = {key: numbers(value, f"{where}: given {key}") for key, value in given_rows.items()}
    listed = data.get("steps")
    if not isinstance(listed, list) or not listed:
        raise SheetError(f"{where}: steps: expected a list of steps, got {describe(listed)}")
    steps = tuple(read_step(each, f"{where}: step {n}") for n, each in enumerate(listed, start=1))
    names = [*given, *(step.name for step in steps)]
    if twice := [each for each in names if names.count(each) > 1]:
        raise SheetError(f"{where}: two things are called {twice[0]!r}")
    run = complete(data, "run", RUN_KEYS, where)
    if run and any(step.printed for step in steps):
        raise SheetError(f"{where}: run: what is shown on a run has nothing printed")
    slips = sections(data.get("slips", []), SLIP_KEYS, f"{where}: slips")
    return Sheet(
        name=name,
        where=where,
        title=word(data, "title", where) or name,
        source=word(data, "source", where),
        repeats=word(data, "repeats", where),
        rounding=rounding,
        conventions=text_section(data, "conventions", where),
        readings=text_section(data, "readings", where),
        given=given,
        given_text={key: as_rows(value) for key, value in given_rows.items()},
        hidden=read_hidden(data, given, where),
        hidden_note=word(data, "hidden_note", where),
        model=complete(data, "model", MODEL_KEYS, where),
        run=run,
        steps=steps,
        slips=tuple(
            read_slip(each, steps, f"{where}: slip {n}") for n, each in enumerate(slips, start=1)
        ),
    )


def inherited(data: dict[str, Any], where: str) -> dict[str, Any]:
    """A sheet that repeats a shipped one has everything of it but what it changes."""
    name = word(data, "repeats", where)
    if not name:
        return data
    if name not in SHIPPED:
        meant = did_you_mean(name, SHIPPED)
        raise SheetError(f"{where}: repeats: there is no sheet {name!r}{meant}")
    base = read_yaml(file_text(SHEETS / f"{name}.yaml"), name, TextLoader)
    changes = sections(data.get("steps", []), STEP_KEYS, f"{where}: steps")
    by_name = {word(each, "name", where): each for each in changes}
    steps = [{**each, **by_name.pop(each["name"], {})} for each in base["steps"]]
    if by_name:
        raise SheetError(f"{where}: steps: {name} has no step {next(iter(by_name))!r}")
    return {**merged(base, data), "steps": steps}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """One mapping over another, and so in the mappings inside."""
    both = {**base, **changes}
    for key in base.keys() & changes.keys():
        if isinstance(base[key], dict) and isinstance(changes[key], dict):
            both[key] = merged(base[key], changes[key])
    return both


def read_hidden(data: dict[str, Any], given: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Longer forms of given matrices."""
    hidden = {}
    for key, value in section(data.get("hidden", {}), None, f"{where}: hidden").items():
        hidden[key] = numbers(value, f"{where}: hidden {key}")
        if key not in given or given[key].shape != hidden[key].shape:
            raise SheetError(f"{where}: hidden {key!r}: no given matrix of this name and size")
    return hidden


def read_step(data: Any, where: str) -> Step:
    data = section(data, STEP_KEYS, where)
    name = word(data, "name", where)
    where = f"{where} {name!r}" if name else where
    if name and not name.isidentifier():
        raise SheetError(f"{where}: a name is letters, digits and _, such as Q or scores_2")
    if not {"compute", "text", "uncheckable"} & data.keys():
        raise SheetError(f"{where}: has neither compute nor text")
    if not name:
        raise SheetError(f"{where}: has no name")
    if "check" in data and "text" not in data:
        raise SheetError(f"{where}: check goes with a statement, that is, with text")
    compute, check = (
        read_formula(word(data, key, where), f"{where}: {key}") if key in data else None
        for key in ("compute", "check")
    )
    decimals = word(data, "decimals", where)
    if decimals and not (decimals.isascii() and decimals.isdigit() and int(decimals) <= 30):
        raise SheetError(f"{where}: decimals: expected 0 to 30, got {describe(decimals)}")
    printed = None
    if "printed" in data:
        digits = int(decimals) if decimals else None
        printed = read_grid(data["printed"], digits, f"{where}: printed", may_be_blank=True)
    cells = [(r, c) for r, row in enumerate(printed or (), 1) for c, _ in enumerate(row, 1)]
    unclear = section(data.get("uncheckable", {}), {"cells", "needs"}, f"{where}: uncheckable")
    unclear_cells = [list(cell) for cell in cells] if unclear else []
    unclear_cells = unclear.get("cells", unclear_cells)
    scans = {}
    for each in sections(data.get("scan", []), {"cell", "shows", "why"}, f"{where}: scan"):
        told = [word(each, key, f"{where}: scan") for key in ("shows", "why")]
        cell = read_cell(each.get("cell"), cells, f"{where}: scan")
        scans[cell] = "; ".join(text for text in told if text)
    step = Step(
        name=name,
        says=word(data, "says", where),
        compute=compute,
        also=tuple(
            read_formula(each, f"{where}: also")
            for each in texts(data.get("also", []), f"{where}: also")
        ),
        traced=word(data, "traced", where),
        printed=printed,
        reprint=yes(data, "reprint", where),
        scans=scans,
        uncheckable=dict.fromkeys(
            read_cells(unclear_cells, cells, f"{where}: uncheckable"),
            word(unclear, "needs", f"{where}: uncheckable"),
        ),
        verdict=read_verdict(data.get("verdict"), cells, f"{where}: verdict"),
        text=word(data, "text", where),
        check=check,
        note=word(data, "note", where),
    )
    sizes = [len(row) for row in printed] if printed else [1]
    if step.verdict and [len(row) for row in step.verdict] != sizes:
        raise SheetError(f"{where}: verdict: has other rows or columns than printed")
    return step


def read_verdict(data: Any, cells: list[Cell], where: str) -> tuple[tuple[str, ...], ...]:
    """One verdict per cell; a single word stands for all of them."""
    if data is None:
        return ()
    if isinstance(data, str):
        width = max((column for _, column in cells), default=1)
        return tuple((data,) * width for _ in range(max((row for row, _ in cells), default=1)))
    return tuple(tuple(texts(row, where)) for row in as_rows(data))


def read_slip(data: dict[str, Any], steps: tuple[Step, ...], where: str) -> Slip:
    name, number = word(data, "step", where), word(data, "number", where)
    step = next((step for step in steps if step.name == name), None)
    if step is None:
        meant = did_you_mean(name, [step.name for step in steps])
        raise SheetError(f"{where}: there is no step {name!r}{meant}")
    if not number.isdecimal():
        raise SheetError(f"{where}: number: expected a number from 1, got {describe(number)}")
    cells = [(r, c) for r, row in enumerate(step.printed or (), 1) for c, _ in enumerate(row, 1)]
    found = read_cells(data.get("cells", []), cells, where)
    wrote, right = (texts(data.get(key, []), f"{where}: {key}") for key in ("wrote", "right"))
    if found and not len(found) == len(wrote) == len(right):
        raise SheetError(f"{where}: cells, wrote and right must be lists of the same length")
    return Slip(
        number=number,
        step=name,
        cells=tuple(found),
        wrote=tuple(wrote),
        right=tuple(right),
        why=word(data, "why", where),
        reproduced=read_formula(word(data, "as", where), f"{where}: as") if "as" in data else None,
    )
