"""Sheets from YAML files: numbers stay the text that was printed, mistakes are named by place."""

from pathlib import Path
from typing import Any

from minitransformer.errors import DataError, did_you_mean
from minitransformer.explain.worked.fields import (
    as_rows,
    complete,
    numbers,
    read_cell,
    read_grid,
    section,
    sections,
    texts,
    word,
)
from minitransformer.explain.worked.formulas import SheetError, read_formula
from minitransformer.explain.worked.numbers import RULES
from minitransformer.explain.worked.sheet import Cell, Sheet, Slip, Step
from minitransformer.schema import describe
from minitransformer.strict_yaml import TextLoader, read_yaml

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
MODEL_KEYS: dict[str, type[Any]] = {"source": dict, "target": dict, "start": str, "weights": dict}
RUN_KEYS: dict[str, type[Any]] = {"config": str, "source": str, "target": str, "tensors": dict}
SLIP_KEYS = {"number", "step", "cells", "wrote", "right", "why", "as"}


def load_shipped(name: str) -> Sheet:
    return load_sheet(SHEETS / f"{name}.yaml")


def load_sheet(path: Path) -> Sheet:
    """Read a sheet from a file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not readable as UTF-8") from None
    return read_sheet(text, str(path), path.stem)


def read_sheet(text: str, where: str, name: str) -> Sheet:
    """Read a sheet; every mistake is one line that names its place."""
    data = section(read_yaml(text, where, TextLoader), SHEET_KEYS, where)
    rounding = data.get("rounding", "nearest")
    if rounding not in RULES:
        raise SheetError(f"{where}: rounding: choose {', '.join(RULES)}; got {describe(rounding)}")
    given = section(data.get("given", {}), None, f"{where}: given")
    hidden = section(data.get("hidden", {}), None, f"{where}: hidden")
    listed = data.get("steps")
    if not isinstance(listed, list) or not listed:
        raise SheetError(f"{where}: steps: expected a list of steps, got {describe(listed)}")
    steps = tuple(read_step(each, f"{where}: step {n}") for n, each in enumerate(listed, start=1))
    names = [*given, *(step.name for step in steps if step.name)]
    if twice := [each for each in names if names.count(each) > 1]:
        raise SheetError(f"{where}: two things are called '{twice[0]}'")
    slips = sections(data.get("slips", []), SLIP_KEYS, f"{where}: slips")
    return Sheet(
        name=name,
        where=where,
        title=word(data, "title", where) or name,
        source=word(data, "source", where),
        repeats=word(data, "repeats", where),
        rounding=rounding,
        conventions=section(data.get("conventions", {}), None, f"{where}: conventions"),
        readings=section(data.get("readings", {}), None, f"{where}: readings"),
        given={key: numbers(value, f"{where}: given {key}") for key, value in given.items()},
        given_text={key: as_rows(value) for key, value in given.items()},
        hidden={key: numbers(value, f"{where}: hidden {key}") for key, value in hidden.items()},
        hidden_note=word(data, "hidden_note", where),
        model=complete(data, "model", MODEL_KEYS, where),
        run=complete(data, "run", RUN_KEYS, where),
        steps=steps,
        slips=tuple(
            read_slip(each, steps, f"{where}: slip {n}") for n, each in enumerate(slips, start=1)
        ),
    )


def read_step(data: Any, where: str) -> Step:
    data = section(data, STEP_KEYS, where)
    name = word(data, "name", where)
    where = f"{where} '{name}'" if name else where
    if name and not name.isidentifier():
        raise SheetError(f"{where}: a name is letters, digits and _, such as Q or scores_2")
    formulas = {
        key: read_formula(word(data, key, where), f"{where}: {key}")
        for key in ("compute", "check")
        if key in data
    }
    if not {"compute", "text", "uncheckable"} & data.keys():
        raise SheetError(f"{where}: has neither compute nor text")
    if "compute" in data and not name:
        raise SheetError(f"{where}: has no name")
    decimals = word(data, "decimals", where) or "0"
    if not (decimals.isascii() and decimals.isdigit() and int(decimals) <= 30):
        raise SheetError(f"{where}: decimals: expected 0 to 30, got {describe(decimals)}")
    printed = None
    if "printed" in data:
        printed = read_grid(data["printed"], int(decimals), f"{where}: printed")
    unclear = section(data.get("uncheckable", {}), {"cells", "needs"}, f"{where}: uncheckable")
    cells = [(r, c) for r, row in enumerate(printed or (), 1) for c, _ in enumerate(row, 1)]
    damaged = sections(data.get("scan", []), {"cell", "shows", "why"}, f"{where}: scan")
    step = Step(
        name=name,
        says=word(data, "says", where),
        compute=formulas.get("compute"),
        also=tuple(
            read_formula(each, f"{where}: also")
            for each in texts(data.get("also", []), f"{where}: also")
        ),
        traced=word(data, "traced", where),
        printed=printed,
        reprint=word(data, "reprint", where) == "true",
        scans={
            read_cell(each.get("cell"), cells, f"{where}: scan"): "; ".join(
                each[key] for key in ("shows", "why") if key in each
            )
            for each in damaged
        },
        uncheckable={
            read_cell(cell, cells, f"{where}: uncheckable"): unclear.get("needs", "")
            for cell in (unclear.get("cells", [list(cell) for cell in cells]) if unclear else [])
        },
        verdict=read_verdict(data.get("verdict"), cells, f"{where}: verdict"),
        text=word(data, "text", where),
        check=formulas.get("check"),
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
    name = word(data, "step", where)
    step = next((step for step in steps if step.name == name), None)
    if step is None:
        meant = did_you_mean(name, [step.name for step in steps])
        raise SheetError(f"{where}: there is no step '{name}'{meant}")
    grid = step.printed or ()
    cells = [(r, c) for r, row in enumerate(grid, 1) for c, _ in enumerate(row, 1)]
    listed = data.get("cells", [])
    listed = listed if isinstance(listed, list) else [listed]
    wrote, right = (texts(data.get(key, []), f"{where}: {key}") for key in ("wrote", "right"))
    if listed and not len(listed) == len(wrote) == len(right):
        raise SheetError(f"{where}: cells, wrote and right must be lists of the same length")
    cause = read_formula(word(data, "as", where), f"{where}: as") if "as" in data else None
    return Slip(
        number=word(data, "number", where),
        step=name,
        cells=tuple(read_cell(cell, cells, where) for cell in listed),
        wrote=tuple(wrote),
        right=tuple(right),
        why=word(data, "why", where),
        reproduced=cause,
    )
