"""A corpus as ids in flat arrays, a few bytes a token; that of a large one is cached on disk."""

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
    check_splits,
    expand_path,
    find_sources,
    load_corpus,
)
from minitransformer.data.filters import DefectCount, FilterReport
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

ENCODING_CHUNK = 1000  # pairs
CACHE_FORMAT = 2  # to be raised when reading, filtering or encoding changes
MIN_CACHED_PAIRS = 50_000  # encoding fewer again is faster than it is worth a copy
CACHED_ARRAYS = ("kept", "source.ids", "source.ends", "target.ids", "target.ends")
SECONDS_PER_DAY = 86_400


class EncodedPair(NamedTuple):
    """Ids of both sides, the target's with its <EOS>."""

    source: list[int]
    target: list[int]


class Sentences(NamedTuple):
    """The ids of all sentences one after the other, and where each one ends."""

    ids: NDArray[Any]
    ends: NDArray[Any]

    def sentence(self, index: int) -> list[int]:
        begin = int(self.ends[index - 1]) if index else 0
        ids: list[int] = self.ids[begin : int(self.ends[index])].tolist()
        return ids

    def padded(self, indices: NDArray[numpy.int64], pad_id: int) -> NDArray[numpy.int64]:
        """Return these sentences as the rows of a matrix."""
        ends = self.ends[indices].astype(numpy.int64)
        begins = numpy.where(indices > 0, self.ends[indices - 1], 0).astype(numpy.int64)
        positions = begins[:, None] + numpy.arange((ends - begins).max())
        is_token = positions < ends[:, None]
        rows = numpy.full(positions.shape, pad_id)
        rows[is_token] = self.ids[positions[is_token]]
        return rows

    def lengths(self) -> NDArray[numpy.int32]:
        return numpy.diff(self.ends.astype(numpy.int64), prepend=0).astype(numpy.int32)


class SentencesBuilder:
    """Collect the arrays of `Sentences` sentence by sentence."""

    def __init__(self, vocab_size: int) -> None:
        self.ids = array("H" if vocab_size <= 2**16 else "i")
        self.ends = array("q")

    def add(self, ids: list[int]) -> None:
        self.ids.extend(ids)
        self.ends.append(len(self.ids))

    def build(self) -> Sentences:
        is_small = len(self.ids) < 2**32
        ends = numpy.array(self.ends, dtype=numpy.uint32 if is_small else numpy.int64)
        return Sentences(numpy.frombuffer(self.ids, dtype=self.ids.typecode), ends)


class EncodedSplit(Sequence[EncodedPair]):
    """The pairs of a split as ids; an index makes a pair's lists out of the arrays."""

    def __init__(self, sources: Sentences, targets: Sentences) -> None:
        self.sources = sources
        self.targets = targets

    def __len__(self) -> int:
        return len(self.sources.ends)

    @overload
    def __getitem__(self, index: int) -> EncodedPair: ...
    @overload
    def __getitem__(self, index: slice) -> list[EncodedPair]: ...
    def __getitem__(self, index: int | slice) -> EncodedPair | list[EncodedPair]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return EncodedPair(self.sources.sentence(index), self.targets.sentence(index))


@dataclass
class Dataset:
    """A corpus, its tokenizer, and the ids of each split; arrays of a large one stay on disk."""

    corpus: Corpus
    tokenizer: PairTokenizer
    encoded: dict[str, EncodedSplit]
    fingerprint: str  # of all training and validation pairs
    notes: list[str] = field(default_factory=list)


def prepare_dataset(config: Config, tokenizer: PairTokenizer | None = None) -> Dataset:
    """Read and encode what a config names, with a run's tokenizer or one trained for it."""
    sources = find_sources(config.data)
    cached_at = cache_path(config, sources) if config.data.cache else None
    if cached_at and (cached := load_cached(cached_at, config, sources, tokenizer)):
        return cached
    corpus = load_corpus(config, sources)
    trained = tokenizer or PairTokenizer.train(corpus.train, config)
    max_length = config.model.max_length
    digest = hashlib.sha256()
    encoded: dict[str, EncodedSplit] = {}
    for name in ("train", "valid"):
        if name in corpus.splits:
            encoded[name] = encode_split(corpus.splits[name], trained, max_length, digest)
        digest.update(b"\0")
    if "test" in corpus.splits:
        encoded["test"] = encode_split(corpus.splits["test"], trained, max_length)
    check_splits(list(corpus.splits.values()))
    dataset = Dataset(corpus, trained, encoded, digest.hexdigest())
    # The path is a hash of the data, and a given tokenizer may have been trained on other data.
    if cached_at and tokenizer is None and len(encoded["train"]) >= MIN_CACHED_PAIRS:
        try:
            write_cache(dataset, cached_at, config)
        except OSError as error:
            problem = error.strerror or error
            dataset.notes.append(f"the encoded corpus is not kept: {cached_at}: {problem}")
        else:
            dataset = load_cached(cached_at, config, sources, trained) or dataset
            dataset.notes = [f"the encoded corpus is kept for next time: {cached_at}"]
    return dataset


def encode_split(
    split: Split, tokenizer: PairTokenizer, max_length: int, digest: "hashlib._Hash | None" = None
) -> EncodedSplit:
    """Encode a split's pairs; count and drop those without tokens or longer than `max_length`.

    `digest` is fed with the text that is kept, so that a resumed run can notice other data.
    """
    sources = SentencesBuilder(len(tokenizer.source))
    targets = SentencesBuilder(len(tokenizer.target))
    dropped: list[bool] = []
    unknown, tokens = [0, 0], [0, 0]  # of sources and of targets
    numbered = split.numbered()
    while chunk := list(islice(numbered, ENCODING_CHUNK)):
        for (number, pair), source, target in encode_chunk(chunk, tokenizer):
            is_dropped = False
            if not source or not target:
                is_dropped = split.report.add("one_sided", number, "no tokens")
            elif max(len(source), len(target)) > max_length:
                detail = f"model.max_length is {max_length} tokens"
                is_dropped = split.report.add("too_long", number, detail)
            elif split.name != "train":
                for side, ids in enumerate((source, target)):
                    unknown[side] += ids.count(UNK_ID)
                    tokens[side] += len(ids) - (ids[-1] == EOS_ID)
                if UNK_ID in source or UNK_ID in target:
                    is_dropped = split.report.add("unknown", number)
            dropped.append(is_dropped)
            if not is_dropped:
                sources.add(source)
                targets.add(target)
                if digest is not None:
                    digest.update("\t".join(pair).encode("utf-8", "surrogatepass") + b"\n")
    split.drop(numpy.array(dropped, dtype=numpy.bool_))
    split.report.dropped += sum(dropped)
    if any(unknown):
        rates = [count / max(total, 1) for count, total in zip(unknown, tokens, strict=True)]
        entry = split.report.defects["unknown"]
        entry.detail = f"{rates[0]:.1%} of all source and {rates[1]:.1%} of all target tokens"
    return EncodedSplit(sources.build(), targets.build())


def encode_chunk(
    chunk: list[tuple[int, Pair]], tokenizer: PairTokenizer
) -> Iterator[tuple[tuple[int, Pair], list[int], list[int]]]:
    """Yield each pair with its ids; a side without tokens has no ids, not even an end marker."""
    sides = [(tokenizer.source, tokenizer.source_eos), (tokenizer.target, True)]
    columns = []
    for index, (side, end) in enumerate(sides):
        rows = side.encode_batch((pair[index] for _, pair in chunk), end=end)
        columns.append([ids if len(ids) > end else [] for ids in rows])
    return zip(chunk, *columns, strict=True)


def cache_path(config: Config, sources: dict[str, Source]) -> Path:
    """Return the folder of an encoded corpus, named by a hash of everything it depends on."""
    made_from = {
        "format": CACHE_FORMAT,
        "unicode": unicodedata.unidata_version,
        "data": asdict(config.data) | {"cache": ""},
        "filters": asdict(config.filters),
        "tokenizer": asdict(config.tokenizer),
        "max_length": config.model.max_length,
        "source_eos": config.model.source_eos,
        "content": {name: source.digest() for name, source in sources.items()},
    }
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    return expand_path(config.data.cache) / key[:32]


def write_cache(dataset: Dataset, path: Path, config: Config) -> None:
    """Write a dataset's folder aside, then rename it; a copy that is already there is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(".*.part"):  # of processes that were killed
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > SECONDS_PER_DAY:
                shutil.rmtree(leftover)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        (aside / "tokenizer").mkdir()
        checksums = {}
        for name, content in dataset.tokenizer.to_files().items():
            write_file(aside / "tokenizer" / name, content)
            checksums[f"tokenizer/{name}"] = checksum(content)
        splits = dataset.corpus.splits
        for name, encoded in dataset.encoded.items():
            arrays = (splits[name].kept, *encoded.sources, *encoded.targets)
            for kind, values in zip(CACHED_ARRAYS, arrays, strict=True):
                array_path = aside / f"{name}.{kind}.npy"
                with array_path.open("wb") as file:
                    numpy.save(file, values)
                    file.flush()
                    os.fsync(file.fileno())
                checksums[array_path.name] = file_checksum(array_path)
        meta = {
            "files": checksums,
            "fingerprint": dataset.fingerprint,
            "reports": {name: asdict(split.report) for name, split in splits.items()},
        }
        write_file(aside / "meta.json", json_with_checksum(meta))
        sync_folder(aside)
        sources = {name: split.source for name, split in splits.items()}
        if load_cached(path, config, sources, None) is None:
            shutil.rmtree(path, ignore_errors=True)  # a damaged one
        try:
            aside.rename(path)
        except OSError:
            if not path.exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def load_cached(
    path: Path, config: Config, sources: dict[str, Source], tokenizer: PairTokenizer | None
) -> Dataset | None:
    """Return the cached dataset, or None if absent, damaged, or made with another tokenizer."""
    try:
        meta = read_json_with_checksum((path / "meta.json").read_bytes(), str(path))
        if any(file_checksum(path / name) != sum for name, sum in meta["files"].items()):
            return None
        cached = PairTokenizer.from_folder(path / "tokenizer", config)
        if tokenizer is not None and tokenizer.to_files() != cached.to_files():
            return None
        splits, encoded = {}, {}
        for name, data in meta["reports"].items():
            kept, *arrays = (
                numpy.load(path / f"{name}.{kind}.npy", mmap_mode="r", allow_pickle=False)
                for kind in CACHED_ARRAYS
            )
            defects = {defect: DefectCount(**entry) for defect, entry in data["defects"].items()}
            report = FilterReport(
                name, config.filters, data["unit"], data["dropped"], data["set_aside"], defects
            )
            splits[name] = Split(name, sources.get(name, sources["train"]), kept, report)
            encoded[name] = EncodedSplit(Sentences(*arrays[:2]), Sentences(*arrays[2:]))
    except (OSError, ValueError, CheckpointError):
        return None  # it will be written again
    notes = [f"the encoded corpus is taken from {path}"]
    return Dataset(Corpus(config.data, splits), cached, encoded, meta["fingerprint"], notes)
