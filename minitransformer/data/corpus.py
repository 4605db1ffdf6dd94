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

from minitransformer.data.filters import FilterReport, find_defects
from minitransformer.data.readers import (
    Columns,
    Row,
    load_splits,
    read_aligned,
    read_csv,
    read_dataset,
    read_jsonl,
    read_parquet,
    read_tsv,
)
from minitransformer.data.tokenizer import normalize
from minitransformer.errors import DataError
from minitransformer.settings import Config, CorpusPath, DataConfig
from minitransformer.storage import file_checksum

SPLITS: tuple[str, ...] = ("train", "valid", "test")
SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
SHIPPED = Path(__file__).parent / "corpora"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
READERS = {
    ".tsv": read_tsv, ".txt": read_tsv, ".csv": read_csv, ".jsonl": read_jsonl,
    ".ndjson": read_jsonl, ".parquet": read_parquet,
}  # fmt: skip
OTHER_ENDINGS = (".json", ".gz", ".zip", ".xlsx")  # not read, but a file's and no hub name's
WHERE_FROM = "; the first lines of a shipped config say where its data come from"
CHARACTERS_PER_TOKEN = 100  # no token of ordinary text is as long
Mask = NDArray[numpy.bool_]
Hashes = NDArray[numpy.uint64]


class Pair(NamedTuple):
    source: str
    target: str


@dataclass(frozen=True)
class Source:
    """Rows that can be read again and again, so that no text needs to stay in memory."""

    name: str
    unit: str  # what a row's number counts: lines, or rows where a format has no lines
    rows: Callable[[], Iterator[Row]]
    digest: Callable[[], str]  # changes when the content does


@dataclass
class Split:
    """The rows of a source that are used; iterating reads their text again."""

    name: str
    source: Source
    kept: Mask  # over all rows
    report: FilterReport

    def __len__(self) -> int:
        return int(self.kept.sum())

    def __iter__(self) -> Iterator[Pair]:
        return (pair for _, pair in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Pair]]:
        """Yield each pair with the number of its row."""
        try:
            for row, is_kept in zip(self.source.rows(), self.kept.tolist(), strict=True):
                if is_kept:
                    yield row.number, Pair(row.source, row.target)
        except ValueError:
            raise DataError(f"{self.source.name} was changed while it was read") from None

    def first(self, count: int) -> list[Pair]:
        return list(islice(self, count))

    def drop(self, mask: Mask) -> None:
        """Drop those of the remaining pairs that the mask marks."""
        self.kept[numpy.flatnonzero(self.kept)[mask]] = False


@dataclass
class Corpus:
    config: DataConfig
    splits: dict[str, Split]  # train, and valid and test where there are any

    @property
    def name(self) -> str:
        train = self.config.train
        return train if isinstance(train, str) else " + ".join(train)

    @property
    def train(self) -> Split:
        return self.splits["train"]


def find_sources(config: DataConfig) -> dict[str, Source]:
    """Return a source for each split that a config names; `train` is always among them."""
    train, columns = config.train, config.columns
    if isinstance(train, tuple) or expand_path(train).is_file():
        sources = {"train": file_source(train, columns)}
    elif train in shipped_corpora():
        sources = shipped_sources(train, columns)
    else:
        from minitransformer.data.toy_tasks import TASKS  # only other names need it

        folder = expand_path(train)
        if train in TASKS:
            sources = {split: task_source(train, split) for split in TASKS[train].sizes}
        elif folder.is_dir() and "train" in (files := split_files(folder)):
            sources = {split: file_source(str(path), columns) for split, path in files.items()}
        elif folder.is_dir() or (
            HUB_NAME.fullmatch(train) and not train.endswith((*READERS, *OTHER_ENDINGS))
        ):
            return dataset_sources(train, config)
        else:
            raise DataError(
                f"data.train: '{train}' is neither a file nor a folder here, nor a corpus that "
                f"ships ({', '.join([*shipped_corpora(), *TASKS])}), nor a hub name such as "
                f"owner/name; for two aligned files, name both: [a.en, a.es]{WHERE_FROM}"
            )
    for name, held_out in (("valid", config.valid), ("test", config.test)):
        if held_out:
            sources[name] = file_source(held_out, columns, name)
    return sources


def expand_path(name: str) -> Path:
    return Path(os.path.expanduser(name))  # Path.expanduser raises without a home folder


def file_source(files: CorpusPath, columns: Columns, key: str = "train") -> Source:
    """Return two aligned files, or one read by its ending; `key` is the setting that names them."""
    paths = [expand_path(name) for name in (files if isinstance(files, tuple) else (files,))]
    for path in paths:
        if not path.is_file():
            raise DataError(f"data.{key}: there is no file {path}{WHERE_FROM}")
    if isinstance(files, tuple):
        first, second = paths
        return Source(
            f"{first} + {second}", "line", lambda: read_aligned(first, second),
            lambda: file_checksum(first) + file_checksum(second),
        )  # fmt: skip
    path = paths[0]
    ending = path.suffix.lower()
    if ending == ".json":
        raise DataError(f"{path}: write one JSON object a line, and name the file .jsonl")
    read, unit = READERS.get(ending, read_tsv), "row" if ending == ".parquet" else "line"
    return Source(files, unit, lambda: read(path, columns), lambda: file_checksum(path))


def shipped_corpora() -> list[str]:
    return sorted(path.name.removesuffix(".train.tsv") for path in SHIPPED.glob("*.train.tsv"))


def shipped_sources(corpus: str, columns: Columns) -> dict[str, Source]:
    numbers = columns if isinstance(columns[0], int) else (1, 2)  # [2, 1] swaps the languages
    paths = {split: SHIPPED / f"{corpus}.{split}.tsv" for split in SPLITS}
    return {
        split: dataclasses.replace(file_source(str(path), numbers), name=f"{corpus} ({split})")
        for split, path in paths.items()
        if path.exists()
    }


def task_source(task: str, split: str) -> Source:
    from minitransformer.data.toy_tasks import task_pairs  # files do not need it

    def rows() -> Iterator[Row]:
        for number, pair in enumerate(task_pairs(task, split), start=1):
            yield Row(number, *pair)

    return Source(f"{task} ({split})", "row", rows, lambda: f"{task} {split} 1")


def split_files(folder: Path) -> dict[str, Path]:
    """Return the files train.csv, valid.csv and so on of a folder, by split."""
    files = {}
    for split, names in SPLIT_NAMES.items():
        candidates = [folder / f"{name}{ending}" for name in names for ending in READERS]
        paths = [path for path in candidates if path.is_file()]
        if len(paths) > 1:
            raise DataError(f"{folder} has both {paths[0].name} and {paths[1].name}; name one")
        if paths:
            files[split] = paths[0]
    return files


def dataset_sources(name: str, config: DataConfig) -> dict[str, Source]:
    """Return the splits of a folder or a hub data set; data.valid and data.test may name others."""

    def source_of(dataset: Any, title: str) -> Source:
        return Source(
            title, "row", lambda: read_dataset(dataset, config.columns, title),
            lambda: str(dataset._fingerprint),
        )  # fmt: skip

    folder = expand_path(name)
    datasets = load_splits(str(folder) if folder.is_dir() else name, config.subset)
    sources: dict[str, Source] = {}
    for split, chosen in (("train", ""), ("valid", config.valid), ("test", config.test)):
        if isinstance(chosen, tuple) or expand_path(chosen).is_file():
            sources[split] = file_source(chosen, config.columns, split)
            continue
        names = (chosen,) if chosen else SPLIT_NAMES[split]
        found = next((each for each in names if each in datasets), None)
        if found is not None:
            sources[split] = source_of(datasets[found], f"{name} ({found})")
        elif chosen or split == "train":
            raise DataError(f"{name}: no split '{names[0]}' (there: {', '.join(datasets)})")
    return sources


class HashedSplit(NamedTuple):
    """A split after its first reading; the arrays have an entry for each pair that it keeps."""

    split: Split
    numbers: NDArray[numpy.int64]  # of rows
    sources: Hashes
    pairs: Hashes

    def filter(self, defect: str, mask: Mask) -> "HashedSplit":
        """Count a defect of the masked pairs; return the split without those that are dropped."""
        if not mask.any():
            return self
        first, count = int(self.numbers[mask.argmax()]), int(mask.sum())
        if not self.split.report.add(defect, first, count=count):
            return self
        self.split.drop(mask)
        self.split.report.dropped += count
        return self.select(self.split, ~mask)

    def select(self, split: Split, mask: Mask) -> "HashedSplit":
        return HashedSplit(split, self.numbers[mask], self.sources[mask], self.pairs[mask])


def load_corpus(config: Config, sources: dict[str, Source]) -> Corpus:
    """Read sources, filter their rows, and split off what a config asks for."""
    sizes = {"test": config.data.split_test, "valid": config.data.split_valid}
    sizes = {name: size for name, size in sizes.items() if size}
    for name in sizes:
        if name in sources:
            raise DataError(
                f"data.split_{name}: {config.data.train} already has a {name} split of its own"
            )
    hashed = {name: scan_source(name, source, config) for name, source in sources.items()}
    if sizes:
        check_splits([hashed["train"].split])
        hashed |= split_off(hashed["train"], sizes)
        num_held_out = sum(len(hashed[name].split) for name in sizes)
        hashed["train"].split.report.set_aside = f", {num_held_out:,} split off"
    held_out = numpy.array([], dtype=numpy.uint64)
    for name in reversed(SPLITS):  # test first, so that the training split can leave out its pairs
        if name in hashed:
            is_held_out = numpy.isin(hashed[name].sources, held_out)
            hashed[name] = hashed[name].filter("overlap", is_held_out)
            held_out = numpy.append(held_out, hashed[name].sources)
    splits = {name: hashed[name].split for name in SPLITS if name in hashed}
    check_splits(list(splits.values()))
    train, limit = splits["train"], config.data.limit
    if 0 < limit < len(train):
        train.report.set_aside += f", {len(train) - limit:,} beyond data.limit"
        train.drop(numpy.arange(len(train)) >= limit)
    return Corpus(config.data, splits)


def check_splits(splits: list[Split]) -> None:
    """Raise DataError for defects whose policy is error, or for a split without pairs."""
    if errors := [line for split in splits for line in split.report.errors()]:
        raise DataError("\n       ".join(errors))
    for split in splits:
        if not len(split):
            reasons = "; ".join(split.report.lines()) or "there is nothing in it"
            raise DataError(f"{split.source.name}: no usable sentence pairs ({reasons})")


def scan_source(name: str, source: Source, config: Config) -> HashedSplit:
    """Read a source once and filter each row by itself, then by the rows before it."""
    report = FilterReport(name, config.filters, source.unit)
    seed = config.data.split_seed.to_bytes(8, "little")
    kept = array("b")
    numbers, sources, pairs = array("q"), array("Q"), array("Q")
    # Longer sentences have too many tokens anyway; tokenizing one of megabytes would take long.
    max_characters = config.model.max_length * CHARACTERS_PER_TOKEN
    for row in source.rows():
        is_dropped = [
            report.add(defect, row.number, row.problem)
            for defect in find_defects(row, config.data.columns, max_characters)
        ]
        kept.append(not any(is_dropped))
        if any(is_dropped):
            report.dropped += 1
        else:
            source_text = " ".join(normalize(row.source).split())
            target_text = " ".join(normalize(row.target).split())
            numbers.append(row.number)
            sources.append(stable_hash(source_text, seed))
            pairs.append(stable_hash(f"{source_text}\t{target_text}", seed))
    split = Split(name, source, numpy.array(kept, dtype=numpy.bool_), report)
    hashed = HashedSplit(split, numpy.array(numbers), numpy.array(sources), numpy.array(pairs))
    is_duplicate = first_indices(hashed.pairs) < numpy.arange(len(hashed.pairs))
    hashed = hashed.filter("duplicate", is_duplicate)
    has_other_target = hashed.pairs != hashed.pairs[first_indices(hashed.sources)]
    return hashed.filter("several_targets", has_other_target)


def stable_hash(text: str, seed: bytes) -> int:
    """Return 64 bits of a text, the same on every machine; sorting by them shuffles texts."""
    content = text.encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=seed).digest(), "little")


def first_indices(hashes: Hashes) -> NDArray[numpy.int64]:
    """Return for each value the first index that has an equal one."""
    _, firsts, inverse = numpy.unique(hashes, return_index=True, return_inverse=True)
    indices: NDArray[numpy.int64] = firsts[inverse]
    return indices


def split_off(whole: HashedSplit, sizes: dict[str, int]) -> dict[str, HashedSplit]:
    """Split one source by seed; a sentence and all of its translations stay together."""
    # Whole sentences in the order of their hashes, as many as fit.
    distinct, inverse, counts = numpy.unique(whole.sources, return_inverse=True, return_counts=True)
    cumulative = numpy.cumsum(counts)
    begin = 0
    masks = {}
    for name, size in sizes.items():
        taken = cumulative[begin - 1] if begin else 0
        end = int(numpy.searchsorted(cumulative, taken + size, "right"))
        end = max(end, begin + 1)  # at least one sentence, however many translations it has
        masks[name], begin = (inverse >= begin) & (inverse < end), end
    if begin >= len(distinct):
        raise DataError(
            f"data.split_valid and data.split_test ask for {sum(sizes.values()):,} pairs, and "
            f"{whole.split.source.name} has {len(whole.sources):,}: none are left to train on"
        )
    masks["train"] = inverse >= begin
    parts = {}
    for name, mask in masks.items():
        report = whole.split.report  # covers the whole file, and stays with the training split
        if name != "train":
            report = FilterReport(name, report.policies, report.unit)
        part = Split(name, whole.split.source, whole.split.kept.copy(), report)
        part.drop(~mask)
        parts[name] = whole.select(part, mask)
    return parts
