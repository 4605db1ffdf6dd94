"""A corpus made ready for training: read, judged, numbered; a large one only once."""

import contextlib
import json
import os
import shutil
import tempfile
import time
import unicodedata
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy

from minitransformer.data.corpus import Corpus, Split, load_corpus, refuse
from minitransformer.data.encoding import EncodedSplit, Sentences, encode_split
from minitransformer.data.hygiene import Finding, Report
from minitransformer.data.sources import Source, path_of, sources_of
from minitransformer.data.tokenizer import PairTokenizer
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

FORMAT = 1  # to be raised when reading, judging or numbering changes
LARGE = 50_000  # pairs; reading fewer again takes less time than it is worth
SECONDS_OF_A_DAY = 86_400
ARRAYS = ("kept", "source.ids", "source.ends", "target.ids", "target.ends")


@dataclass
class Prepared:
    """A corpus, its tokenizer, and the ids of each split; arrays of a large one stay on disk."""

    corpus: Corpus
    tokenizer: PairTokenizer
    encoded: dict[str, EncodedSplit]
    fingerprint: str  # of all pairs that a run learns from or is judged by
    notes: list[str] = field(default_factory=list)


def prepare(config: Config, tokenizer: PairTokenizer | None = None) -> Prepared:
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
    prepared = Prepared(corpus, trained, encoded, digest.hexdigest())
    # A tokenizer that was given may have been trained on other data than the place is named by.
    if place and tokenizer is None and len(encoded["train"]) >= LARGE:
        try:
            store(prepared, place, config)
        except OSError as error:
            problem = error.strerror or error
            prepared.notes.append(f"the encoded corpus is not kept: {place}: {problem}")
        else:
            prepared = load_stored(place, config, sources, trained) or prepared
            prepared.notes = [f"the encoded corpus is kept for next time: {place}"]
    return prepared


def stored_place(config: Config, sources: dict[str, Source]) -> Path:
    """The folder of a corpus, named by everything that its numbers depend on."""
    made_from = {
        "format": FORMAT,
        "unicode": unicodedata.unidata_version,
        "data": asdict(config.data) | {"cache": ""},
        "hygiene": asdict(config.hygiene),
        "tokenizer": asdict(config.tokenizer),
        "max_length": config.model.max_length,
        "source_end": config.model.source_end,
        "content": {name: source.digest() for name, source in sources.items()},
    }
    key = sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    return path_of(config.data.cache) / key[:32]


def store(prepared: Prepared, place: Path, config: Config) -> None:
    """Write aside, then rename; where another process was faster, its copy is as good."""
    place.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(place.parent)
    aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent))
    try:
        (aside / "tokenizer").mkdir()
        files = {}
        for name, content in prepared.tokenizer.to_files().items():
            write_file(aside / "tokenizer" / name, content)
            files[f"tokenizer/{name}"] = checksum(content)
        splits = prepared.corpus.splits
        for name, encoded in prepared.encoded.items():
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
            "fingerprint": prepared.fingerprint,
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
) -> Prepared | None:
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
                name, config.hygiene, data["unit"], data["dropped"], data["elsewhere"], findings
            )
            splits[name] = Split(name, sources.get(name, sources["train"]), kept, report)
            encoded[name] = EncodedSplit(Sentences(*arrays[:2]), Sentences(*arrays[2:]))
    except (OSError, ValueError, CheckpointError):
        return None  # it is only a copy, to be made again
    notes = [f"the encoded corpus is taken from {place}"]
    return Prepared(Corpus(config.data, splits), stored, encoded, meta["fingerprint"], notes)
