"""Which reader serves which data.source, data.valid and data.test."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitransformer.data.generated import TASKS, task_pairs
from minitransformer.data.record_files import comma_separated, json_lines
from minitransformer.data.tables import dataset_rows, load_splits, parquet_rows
from minitransformer.data.text_files import Columns, Row, aligned, tab_separated
from minitransformer.errors import DataError
from minitransformer.settings import DataConfig, Place
from minitransformer.storage import file_checksum

SHIPPED = Path(__file__).parent / "corpora"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
READERS = {
    ".tsv": tab_separated, ".txt": tab_separated, ".csv": comma_separated, ".jsonl": json_lines,
    ".ndjson": json_lines, ".parquet": parquet_rows,
}  # fmt: skip
WHERE_FROM = "; where a shipped config's data come from, its first lines say"
OTHER_ENDINGS = (".json", ".gz", ".zip", ".xlsx")  # of files all the same, and not of hub names


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
    if isinstance(place, tuple) or path_of(place).is_file():
        found = {"train": file_source(place, columns)}
    elif place in shipped_corpora():
        found = {
            split: shipped_source(place, split, columns)
            for split in SPLIT_NAMES
            if (SHIPPED / f"{place}.{split}.tsv").exists()
        }
    elif place in TASKS:
        found = {split: task_source(place, split) for split in TASKS[place].sizes}
    elif path_of(place).is_dir() and "train" in (files := split_files(path_of(place))):
        found = {split: file_source(str(path), columns) for split, path in files.items()}
    elif path_of(place).is_dir() or (
        HUB_NAME.fullmatch(place) and not place.endswith((*READERS, *OTHER_ENDINGS))
    ):
        return dataset_sources(place, config)
    else:
        raise DataError(
            f"data.source: '{place}' is neither a file or folder here, nor a corpus that ships "
            f"({', '.join([*shipped_corpora(), *TASKS])}), nor a hub name such as owner/name; "
            f"of two aligned files, name both: [a.en, a.es]{WHERE_FROM}"
        )
    for name, held_out in (("valid", config.valid), ("test", config.test)):
        if held_out:
            found[name] = file_source(held_out, columns, name)
    return found


def path_of(place: str) -> Path:
    return Path(os.path.expanduser(place))  # Path's own way fails where nobody is at home


def split_files(folder: Path) -> dict[str, Path]:
    """The files train.csv, valid.csv and so on of a folder, by split."""
    found = {}
    for split, names in SPLIT_NAMES.items():
        candidates = [folder / f"{name}{ending}" for name in names for ending in READERS]
        paths = [path for path in candidates if path.is_file()]
        if len(paths) > 1:
            raise DataError(f"{folder} has both {paths[0].name} and {paths[1].name}; name one")
        if paths:
            found[split] = paths[0]
    return found


def shipped_corpora() -> list[str]:
    return sorted(path.name.removesuffix(".train.tsv") for path in SHIPPED.glob("*.train.tsv"))


def shipped_source(corpus: str, split: str, columns: Columns) -> Source:
    numbers = columns if isinstance(columns[0], int) else (1, 2)  # [2, 1] turns it round
    source = file_source(str(SHIPPED / f"{corpus}.{split}.tsv"), numbers)
    return dataclasses.replace(source, name=f"{corpus} ({split})")


def file_source(place: Place, columns: Columns, key: str = "source") -> Source:
    """Two aligned files, or one file read by its ending; `key` is the setting that names them."""
    paths = [path_of(each) for each in (place if isinstance(place, tuple) else (place,))]
    for path in paths:
        if not path.is_file():
            raise DataError(f"data.{key}: there is no file {path}{WHERE_FROM}")
    if isinstance(place, tuple):
        first, second = paths
        return Source(
            f"{first} + {second}", "line", lambda: aligned(first, second),
            lambda: file_checksum(first) + file_checksum(second),
        )  # fmt: skip
    path = paths[0]
    ending = path.suffix.lower()
    if ending == ".json":
        raise DataError(f"{path}: write one JSON object a line, and name the file .jsonl")
    read = READERS.get(ending, tab_separated)
    unit = "row" if ending == ".parquet" else "line"
    return Source(place, unit, lambda: read(path, columns), lambda: file_checksum(path))


def task_source(task: str, split: str) -> Source:
    def rows() -> Iterator[Row]:
        for number, pair in enumerate(task_pairs(task, split), start=1):
            yield Row(number, *pair)

    return Source(f"{task} ({split})", "row", rows, lambda: f"{task} {split} 1")


def dataset_sources(name: str, config: DataConfig) -> dict[str, Source]:
    """The splits of a folder or a hub data set; data.valid and data.test may name others."""
    folder = path_of(name)
    splits = load_splits(str(folder) if folder.is_dir() else name, config.subset)
    found: dict[str, Source] = {}
    for ours, asked in (("train", ""), ("valid", config.valid), ("test", config.test)):
        if isinstance(asked, tuple) or path_of(asked).is_file():
            found[ours] = file_source(asked, config.columns)
            continue
        names = (asked,) if asked else SPLIT_NAMES[ours]
        theirs = next((each for each in names if each in splits), None)
        if theirs is not None:
            found[ours] = dataset_source(splits[theirs], config.columns, f"{name} ({theirs})")
        elif asked or ours == "train":
            raise DataError(f"{name}: no split '{names[0]}' (there: {', '.join(splits)})")
    return found


def dataset_source(dataset: Any, columns: Columns, name: str) -> Source:
    return Source(
        name, "row", lambda: dataset_rows(dataset, columns, name), lambda: str(dataset._fingerprint)
    )
