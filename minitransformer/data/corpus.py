"""Sentence pairs in splits: where they come from, which rows are used, and why others are not."""

import dataclasses
import hashlib
import os
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from minitransformer.data.filters import Report, defects_of
from minitransformer.data.hub import dataset_rows, load_splits, parquet_rows
from minitransformer.data.readers import (
    Columns,
    Row,
    aligned,
    comma_separated,
    json_lines,
    tab_separated,
)
from minitransformer.data.tokenizer import normalize
from minitransformer.data.toy_tasks import TASKS, task_pairs
from minitransformer.errors import DataError
from minitransformer.settings import Config, DataConfig, Place
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
    place, columns = config.train, config.columns
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
            f"data.train: '{place}' is neither a file or folder here, nor a corpus that ships "
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


def file_source(place: Place, columns: Columns, key: str = "train") -> Source:
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


SPLITS: tuple[str, ...] = ("train", "valid", "test")
LONGEST_TOKEN = 100  # characters
Mask = NDArray[numpy.bool_]
Hashes = NDArray[numpy.uint64]


class Pair(NamedTuple):
    source: str
    target: str


@dataclass
class Split:
    """The rows of a source that are used; the text itself is read when it is asked for."""

    name: str
    source: Source
    kept: Mask  # of all rows
    report: Report

    def __len__(self) -> int:
        return int(self.kept.sum())

    def __iter__(self) -> Iterator[Pair]:
        return (pair for _, pair in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Pair]]:
        """Each pair with the number of its row."""
        try:
            for row, is_kept in zip(self.source.rows(), self.kept.tolist(), strict=True):
                if is_kept:
                    yield row.number, Pair(row.source, row.target)
        except ValueError:
            raise DataError(f"{self.source.name} was changed while it was read") from None

    def first(self, count: int) -> list[Pair]:
        return list(islice(self, count))

    def drop(self, places: Mask) -> None:
        """Leave out some of the pairs that were kept until now."""
        self.kept[numpy.flatnonzero(self.kept)[places]] = False


@dataclass
class Corpus:
    config: DataConfig
    splits: dict[str, Split]  # train, and valid and test where there are such

    @property
    def name(self) -> str:
        place = self.config.train
        return place if isinstance(place, str) else " + ".join(place)

    @property
    def train(self) -> Split:
        return self.splits["train"]


class Examined(NamedTuple):
    """A split after its first reading; the arrays have an entry for each pair that is kept."""

    split: Split
    numbers: NDArray[numpy.int64]
    sources: Hashes
    pairs: Hashes

    def drop(self, defect: str, places: Mask) -> "Examined":
        """Note a defect of some pairs; what must go is gone in what this returns."""
        if not places.any():
            return self
        first = int(self.numbers[places.argmax()])
        if not self.split.report.note(defect, first, count=int(places.sum())):
            return self
        self.split.drop(places)
        self.split.report.dropped += int(places.sum())
        return self.only(self.split, ~places)

    def only(self, split: Split, places: Mask) -> "Examined":
        return Examined(split, self.numbers[places], self.sources[places], self.pairs[places])


def load_corpus(config: Config, sources: dict[str, Source]) -> Corpus:
    """Read sources, judge every row, and split off what a config asks for."""
    asked = {"test": config.data.split_test, "valid": config.data.split_valid}
    for name in asked:
        if asked[name] and name in sources:
            raise DataError(f"data.split_{name}: {config.data.train} has such a split of its own")
    examined = {name: examine(name, source, config) for name, source in sources.items()}
    if any(asked.values()):
        refuse([examined["train"].split])
        examined |= split_off(examined["train"], asked)
        held_out_pairs = sum(len(examined[name].split) for name in asked if asked[name])
        examined["train"].split.report.elsewhere = f", {held_out_pairs:,} split off"
    held_out = numpy.array([], dtype=numpy.uint64)
    for name in reversed(SPLITS):  # what is held out first, so that training can leave it out
        if name in examined:
            is_known = numpy.isin(examined[name].sources, held_out)
            examined[name] = examined[name].drop("overlap", is_known)
            held_out = numpy.append(held_out, examined[name].sources)
    splits = {name: examined[name].split for name in SPLITS if name in examined}
    refuse(list(splits.values()))
    train, limit = splits["train"], config.data.limit
    if 0 < limit < len(train):
        train.report.elsewhere += f", {len(train) - limit:,} beyond data.limit"
        train.drop(numpy.arange(len(train)) >= limit)
    return Corpus(config.data, splits)


def refuse(splits: list[Split]) -> None:
    """Stop if there are defects that the config does not let pass, or no pairs."""
    if refusals := [line for split in splits for line in split.report.refusals()]:
        raise DataError("\n       ".join(refusals))
    for split in splits:
        if not len(split):
            reasons = "; ".join(split.report.lines()) or "there is nothing in it"
            raise DataError(f"{split.source.name}: no usable sentence pairs ({reasons})")


def examine(name: str, source: Source, config: Config) -> Examined:
    """Read a source once and judge each row by itself, then by the rows before it."""
    report = Report(name, config.filters, source.unit)
    seed = config.data.split_seed.to_bytes(8, "little")
    kept = array("b")
    numbers, sources, pairs = array("q"), array("Q"), array("Q")
    # No sentence of so many tokens is as long, and text without end would keep a tokenizer busy.
    most = config.model.max_length * LONGEST_TOKEN
    for row in source.rows():
        must_go = [
            report.note(defect, row.number, row.problem)
            for defect in defects_of(row, config.data.columns, most)
        ]
        kept.append(not any(must_go))
        if any(must_go):
            report.dropped += 1
        else:
            source_text = " ".join(normalize(row.source).split())
            target_text = " ".join(normalize(row.target).split())
            numbers.append(row.number)
            sources.append(stable_hash(source_text, seed))
            pairs.append(stable_hash(f"{source_text}\t{target_text}", seed))
    split = Split(name, source, numpy.array(kept, dtype=numpy.bool_), report)
    examined = Examined(split, numpy.array(numbers), numpy.array(sources), numpy.array(pairs))
    stood_before = first_places(examined.pairs) < numpy.arange(len(examined.pairs))
    examined = examined.drop("duplicate", stood_before)
    has_another = examined.pairs != examined.pairs[first_places(examined.sources)]
    return examined.drop("several_targets", has_another)


def stable_hash(text: str, seed: bytes) -> int:
    """64 bits of a text, the same on every machine; in their order, texts are shuffled."""
    content = text.encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=seed).digest(), "little")


def first_places(hashes: Hashes) -> NDArray[numpy.int64]:
    """For each value, the first place that has an equal one."""
    _, firsts, which = numpy.unique(hashes, return_index=True, return_inverse=True)
    places: NDArray[numpy.int64] = firsts[which]
    return places


def split_off(whole: Examined, asked: dict[str, int]) -> dict[str, Examined]:
    """Share one source out by seed; a sentence and all of its translations stay together."""
    distinct, which, counts = numpy.unique(whole.sources, return_inverse=True, return_counts=True)
    # Whole sentences in the order of their hashes, as many as fit.
    before = numpy.cumsum(counts)
    begin = 0
    parts, is_left = {}, numpy.ones(len(whole.sources), dtype=numpy.bool_)
    for name, count in asked.items():
        taken = before[begin - 1] if begin else 0
        end = int(numpy.searchsorted(before, taken + count, "right"))
        end = max(end, begin + 1) if count else begin  # at least one, however many translations
        is_part = (which >= begin) & (which < end)
        parts[name], begin = is_part, end
        is_left &= ~is_part
    if begin >= len(distinct):
        raise DataError(
            f"data.split_valid and data.split_test ask for {sum(asked.values()):,} pairs, and "
            f"{whole.split.source.name} has {len(whole.sources):,}: none are left to train on"
        )
    parts = {name: places for name, places in parts.items() if asked[name]} | {"train": is_left}
    return {name: part_of(whole, name, places) for name, places in parts.items()}


def part_of(whole: Examined, name: str, places: Mask) -> Examined:
    split = whole.split
    # The file is reported on once, where its pairs are trained on.
    report = split.report
    if name != "train":
        report = Report(name, report.policies, report.unit)
    part = Split(name, split.source, split.kept.copy(), report)
    part.drop(~places)
    return whole.only(part, places)
