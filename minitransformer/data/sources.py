"""Which reader serves which data.source, data.valid and data.test."""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitransformer.data.generated import TASKS, task_pairs
from minitransformer.data.text_files import (
    Columns,
    Row,
    aligned,
    comma_separated,
    json_lines,
    tab_separated,
)
from minitransformer.errors import DataError
from minitransformer.settings import DataConfig, Place

SHIPPED = Path(__file__).parent / "corpora"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_SPLITS = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
FILE_ENDINGS = {".tsv", ".txt", ".csv", ".jsonl", ".json", ".ndjson", ".parquet"}


@dataclass(frozen=True)
class Source:
    """Rows that can be read again and again, so that no text needs to stay in memory."""

    name: str
    unit: str  # what a row's number counts: lines, or rows where a format has no lines
    rows: Callable[[], Iterator[Row]]
    digest: Callable[[], str]  # changes when the content does


def sources_of(config: DataConfig) -> dict[str, Source]:
    """A source for each split that a config names; `train` is always there."""
    place, columns = config.source, config.columns
    if isinstance(place, tuple) or Path(place).is_file():
        found = {"train": file_source(place, columns)}
    elif place in shipped_corpora():
        found = {
            split: shipped_source(place, split)
            for split in ("train", "valid", "test")
            if (SHIPPED / f"{place}.{split}.tsv").exists()
        }
    elif place in TASKS:
        found = {split: task_source(place, split) for split in TASKS[place].sizes}
    elif Path(place).is_dir() or (
        HUB_NAME.fullmatch(place) and Path(place).suffix not in FILE_ENDINGS
    ):
        return table_sources(place, config)
    else:
        raise DataError(
            f"data.source: '{place}' is neither a file or folder here, nor a corpus that ships "
            f"({', '.join([*shipped_corpora(), *TASKS])}), nor a hub name such as owner/name"
        )
    for name, held_out in (("valid", config.valid), ("test", config.test)):
        if held_out:
            found[name] = file_source(held_out, columns)
    return found


def shipped_corpora() -> list[str]:
    return sorted(path.name.removesuffix(".train.tsv") for path in SHIPPED.glob("*.train.tsv"))


def shipped_source(corpus: str, split: str) -> Source:
    source = file_source(str(SHIPPED / f"{corpus}.{split}.tsv"), ("source", "target"))
    return dataclasses.replace(source, name=f"{corpus} ({split})")


def file_source(place: Place, columns: Columns) -> Source:
    """Two aligned files, or one file read by its ending."""
    if isinstance(place, tuple):
        first, second = map(Path, place)
        return Source(
            f"{first} + {second}", "line", lambda: aligned(first, second),
            lambda: content_digest(first) + content_digest(second),
        )  # fmt: skip
    path = Path(place)
    ending = path.suffix.lower()
    if ending == ".parquet" and path.is_file():
        from minitransformer.data.tables import load_parquet

        return table_source(load_parquet(path), columns, place)
    read = {".csv": comma_separated, ".jsonl": json_lines, ".ndjson": json_lines}.get(
        ending, tab_separated
    )
    if ending == ".json":
        raise DataError(f"{path}: write one JSON object a line, and name the file .jsonl")
    return Source(place, "line", lambda: read(path, columns), lambda: content_digest(path))


def content_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def task_source(task: str, split: str) -> Source:
    def rows() -> Iterator[Row]:
        for number, pair in enumerate(task_pairs(task, split), start=1):
            yield Row(number, *pair)

    return Source(f"{task} ({split})", "row", rows, lambda: f"{task} {split} 1")


def table_sources(name: str, config: DataConfig) -> dict[str, Source]:
    """The splits of a folder or a hub data set; data.valid and data.test may name others."""
    from minitransformer.data.tables import load_splits

    splits = load_splits(name, config.subset)
    found: dict[str, Source] = {}
    for ours, asked in (("train", ""), ("valid", config.valid), ("test", config.test)):
        if isinstance(asked, tuple) or Path(asked).is_file():
            found[ours] = file_source(asked, config.columns)
            continue
        names = (asked,) if asked else HUB_SPLITS[ours]
        theirs = next((each for each in names if each in splits), None)
        if theirs is not None:
            found[ours] = table_source(splits[theirs], config.columns, f"{name} ({theirs})")
        elif asked or ours == "train":
            raise DataError(f"{name}: no split '{names[0]}' (there: {', '.join(splits)})")
    return found


def table_source(dataset: Any, columns: Columns, name: str) -> Source:
    from minitransformer.data.tables import table_rows

    return Source(
        name, "row", lambda: table_rows(dataset, columns, name), lambda: str(dataset._fingerprint)
    )
