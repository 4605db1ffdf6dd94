"""A corpus as ids in flat arrays, a few bytes a token; that of a large one is stored on disk."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy
from numpy.typing import NDArray

from minitransformer.data.corpus import (
    Corpus,
    Pair,
    Source,
    Split,
    load_corpus,
    path_of,
    refuse,
    sources_of,
)
from minitransformer.data.filters import Finding, Report
from minitransformer.data.tokenizer import EOS_ID, UNK_ID, PairTokenizer
from minitransformer.errors import CheckpointError
from minitransformer.settings import Config
from minitransformer.storage import (
    checksum,
    file_checksum,
    json_with_checksum,
    read_json_with_checksum,
    sync_folder,
    write_file,
)

PAIRS_AT_A_TIME = 1000


class EncodedPair(NamedTuple):
    """Ids of both sides, the target's with its <EOS>."""

    source: list[int]
    target: list[int]


class Sentences(NamedTuple):
    """The ids of all sentences one after the other, and where each one ends."""

    ids: NDArray[Any]
    ends: NDArray[Any]

    def sentence(self, place: int) -> list[int]:
        begin = int(self.ends[place - 1]) if place else 0
        ids: list[int] = self.ids[begin : int(self.ends[place])].tolist()
        return ids

    def padded(self, places: NDArray[numpy.int64], filling: int) -> NDArray[numpy.int64]:
        """The sentences at these places as the rows of a matrix."""
        ends = self.ends[places].astype(numpy.int64)
        begins = numpy.where(places > 0, self.ends[places - 1], 0).astype(numpy.int64)
        columns = numpy.arange((ends - begins).max())
        at = begins[:, None] + columns
        is_token = at < ends[:, None]
        rows = numpy.full(at.shape, filling)
        rows[is_token] = self.ids[at[is_token]]
        return rows

    def lengths(self) -> NDArray[numpy.int32]:
        return numpy.diff(self.ends.astype(numpy.int64), prepend=0).astype(numpy.int32)


class EncodedSplit(Sequence[EncodedPair]):
    """A split's pairs; a pair becomes lists of numbers only when it is asked for."""

    def __init__(self, sources: Sentences, targets: Sentences) -> None:
        self.sources = sources
        self.targets = targets

    def __len__(self) -> int:
        return len(self.sources.ends)

    @overload
    def __getitem__(self, place: int) -> EncodedPair: ...
    @overload
    def __getitem__(self, place: slice) -> list[EncodedPair]: ...
    def __getitem__(self, place: int | slice) -> EncodedPair | list[EncodedPair]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        return EncodedPair(self.sources.sentence(place), self.targets.sentence(place))


class Collector:
    """Grows one side's arrays sentence by sentence."""

    def __init__(self, vocabulary_size: int) -> None:
        self.ids = array("H" if vocabulary_size <= 2**16 else "i")
        self.ends = array("q")

    def add(self, ids: list[int]) -> None:
        self.ids.extend(ids)
        self.ends.append(len(self.ids))

    def sentences(self) -> Sentences:
        small = len(self.ids) < 2**32
        ends = numpy.array(self.ends, dtype=numpy.uint32 if small else numpy.int64)
        return Sentences(numpy.frombuffer(self.ids, dtype=self.ids.typecode), ends)


def encode_split(
    split: Split, tokenizer: PairTokenizer, max_length: int, digest: "hashlib._Hash | None" = None
) -> EncodedSplit:
    """Number a split's tokens; pairs without any or beyond `max_length` are noted and left out.

    `digest` is fed with the text that is kept, so that a resumed run can notice other data.
    """
    sources, targets = (Collector(len(side)) for side in (tokenizer.source, tokenizer.target))
    gone: list[bool] = []
    unknown, tokens = [0, 0], [0, 0]
    numbered = split.numbered()
    while chunk := list(islice(numbered, PAIRS_AT_A_TIME)):
        for (number, pair), source, target in encoded_chunk(chunk, tokenizer):
            must_go = False
            if not source or not target:
                must_go = split.report.note("one_sided", number, "no tokens")
            elif max(len(source), len(target)) > max_length:
                must_go = split.report.note(
                    "too_long", number, f"model.max_length is {max_length} tokens"
                )
            elif split.name != "train":
                for side, ids in enumerate((source, target)):
                    unknown[side] += ids.count(UNK_ID)
                    tokens[side] += len(ids) - (ids[-1] == EOS_ID)
                if UNK_ID in source or UNK_ID in target:
                    must_go = split.report.note("unknown", number)
            gone.append(must_go)
            if not must_go:
                sources.add(source)
                targets.add(target)
                if digest is not None:
                    digest.update("\t".join(pair).encode("utf-8", "surrogatepass") + b"\n")
    split.drop(numpy.array(gone, dtype=numpy.bool_))
    split.report.dropped += sum(gone)
    if any(unknown):
        rates = [count / max(total, 1) for count, total in zip(unknown, tokens, strict=True)]
        told = f"{rates[0]:.1%} of all source and {rates[1]:.1%} of all target tokens"
        split.report.findings["unknown"].detail = told
    return EncodedSplit(sources.sentences(), targets.sentences())


def encoded_chunk(
    chunk: list[tuple[int, Pair]], tokenizer: PairTokenizer
) -> Iterator[tuple[tuple[int, Pair], list[int], list[int]]]:
    """Each pair with its ids; a side without tokens has no ids, not even an end marker."""
    sides = [(tokenizer.source, tokenizer.source_eos), (tokenizer.target, True)]
    columns = []
    for place, (side, end) in enumerate(sides):
        rows = side.encode_batch((pair[place] for _, pair in chunk), end=end)
        columns.append([ids if len(ids) > end else [] for ids in rows])
    return zip(chunk, *columns, strict=True)


FORMAT = 1  # to be raised when reading, judging or numbering changes
LARGE = 50_000  # pairs; reading fewer again takes less time than it is worth
SECONDS_OF_A_DAY = 86_400
ARRAYS = ("kept", "source.ids", "source.ends", "target.ids", "target.ends")


@dataclass
class Dataset:
    """A corpus, its tokenizer, and the ids of each split; arrays of a large one stay on disk."""

    corpus: Corpus
    tokenizer: PairTokenizer
    encoded: dict[str, EncodedSplit]
    fingerprint: str  # of all pairs that a run learns from or is judged by
    notes: list[str] = field(default_factory=list)


def prepare_dataset(config: Config, tokenizer: PairTokenizer | None = None) -> Dataset:
    """Read and number what a config names, with a run's tokenizer or one trained for it."""
    sources = sources_of(config.data)
    place = stored_place(config, sources) if config.data.cache else None
    if place and (stored := load_stored(place, config, sources, tokenizer)):
        return stored
    corpus = load_corpus(config, sources)
    trained = tokenizer or PairTokenizer.train(corpus.train, config)
    longest = config.model.max_length
    digest = sha256()
    encoded: dict[str, EncodedSplit] = {}
    for name in ("train", "valid"):
        if name in corpus.splits:
            encoded[name] = encode_split(corpus.splits[name], trained, longest, digest)
        digest.update(b"\0")
    if "test" in corpus.splits:
        encoded["test"] = encode_split(corpus.splits["test"], trained, longest)
    refuse(list(corpus.splits.values()))
    dataset = Dataset(corpus, trained, encoded, digest.hexdigest())
    # A tokenizer that was given may have been trained on other data than the place is named by.
    if place and tokenizer is None and len(encoded["train"]) >= LARGE:
        try:
            store(dataset, place, config)
        except OSError as error:
            problem = error.strerror or error
            dataset.notes.append(f"the encoded corpus is not kept: {place}: {problem}")
        else:
            dataset = load_stored(place, config, sources, trained) or dataset
            dataset.notes = [f"the encoded corpus is kept for next time: {place}"]
    return dataset


def stored_place(config: Config, sources: dict[str, Source]) -> Path:
    """The folder of a corpus, named by everything that its numbers depend on."""
    made_from = {
        "format": FORMAT,
        "unicode": unicodedata.unidata_version,
        "data": asdict(config.data) | {"cache": ""},
        "filters": asdict(config.filters),
        "tokenizer": asdict(config.tokenizer),
        "max_length": config.model.max_length,
        "source_eos": config.model.source_eos,
        "content": {name: source.digest() for name, source in sources.items()},
    }
    key = sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    return path_of(config.data.cache) / key[:32]


def store(dataset: Dataset, place: Path, config: Config) -> None:
    """Write aside, then rename; where another process was faster, its copy is as good."""
    place.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(place.parent)
    aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent))
    try:
        (aside / "tokenizer").mkdir()
        files = {}
        for name, content in dataset.tokenizer.to_files().items():
            write_file(aside / "tokenizer" / name, content)
            files[f"tokenizer/{name}"] = checksum(content)
        splits = dataset.corpus.splits
        for name, encoded in dataset.encoded.items():
            arrays = (splits[name].kept, *encoded.sources, *encoded.targets)
            for kind, values in zip(ARRAYS, arrays, strict=True):
                path = aside / f"{name}.{kind}.npy"
                with path.open("wb") as file:
                    numpy.save(file, values)
                    file.flush()
                    os.fsync(file.fileno())
                files[path.name] = file_checksum(path)
        meta = {
            "files": files,
            "fingerprint": dataset.fingerprint,
            "reports": {name: asdict(split.report) for name, split in splits.items()},
        }
        write_file(aside / "meta.json", json_with_checksum(meta))
        sync_folder(aside)
        sources = {name: split.source for name, split in splits.items()}
        if load_stored(place, config, sources, None) is None:
            shutil.rmtree(place, ignore_errors=True)  # a damaged one
        try:
            aside.rename(place)
        except OSError:
            if not place.exists():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Remove what processes that were killed left behind."""
    for path in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > SECONDS_OF_A_DAY:
                shutil.rmtree(path)


def load_stored(
    place: Path, config: Config, sources: dict[str, Source], tokenizer: PairTokenizer | None
) -> Dataset | None:
    """What is stored, unless it is absent, damaged, or made with another tokenizer."""
    try:
        meta = read_json_with_checksum((place / "meta.json").read_bytes(), str(place))
        if any(file_checksum(place / name) != sum for name, sum in meta["files"].items()):
            return None
        stored = PairTokenizer.from_folder(place / "tokenizer", config)
        if tokenizer is not None and tokenizer.to_files() != stored.to_files():
            return None
        splits, encoded = {}, {}
        for name, data in meta["reports"].items():
            kept, *arrays = (
                numpy.load(place / f"{name}.{kind}.npy", mmap_mode="r", allow_pickle=False)
                for kind in ARRAYS
            )
            findings = {defect: Finding(**finding) for defect, finding in data["findings"].items()}
            report = Report(
                name, config.filters, data["unit"], data["dropped"], data["elsewhere"], findings
            )
            splits[name] = Split(name, sources.get(name, sources["train"]), kept, report)
            encoded[name] = EncodedSplit(Sentences(*arrays[:2]), Sentences(*arrays[2:]))
    except (OSError, ValueError, CheckpointError):
        return None  # it is only a copy, to be made again
    notes = [f"the encoded corpus is taken from {place}"]
    return Dataset(Corpus(config.data, splits), stored, encoded, meta["fingerprint"], notes)
