"""A corpus made ready for training: read, judged, numbered; a large one only once."""

import json
import os
import shutil
import unicodedata
from dataclasses import asdict, dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path

import numpy

from minitransformer.data.corpus import Corpus, Split, load_corpus, refuse
from minitransformer.data.encoding import EncodedSplit, Sentences, encode_split
from minitransformer.data.hygiene import Finding, Report
from minitransformer.data.sources import Source, sources_of
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.errors import CheckpointError
from minitransformer.settings import Config
from minitransformer.storage import (
    checksum,
    json_with_checksum,
    read_json_with_checksum,
    sync_folder,
    write_file,
)

FORMAT = 1  # to be raised when reading, judging or numbering changes
LARGE = 50_000  # pairs; reading fewer again takes less time than it is worth
ARRAYS = ("kept", "source.ids", "source.ends", "target.ids", "target.ends")


@dataclass
class Prepared:
    """A corpus, its tokenizer, and the ids of each split; arrays of a large one stay on disk."""

    corpus: Corpus
    tokenizer: PairTokenizer
    encoded: dict[str, EncodedSplit]
    notes: list[str] = field(default_factory=list)

    @property
    def fingerprint(self) -> str:
        """A hash of all pairs that a run learns from or is judged by."""
        prints = (self.encoded[name].fingerprint for name in ("train", "valid")
                  if name in self.encoded)  # fmt: skip
        return sha256(" ".join(prints).encode()).hexdigest()


def prepare(config: Config, tokenizer: PairTokenizer | None = None) -> Prepared:
    """Read and number what a config names, with a run's tokenizer or one trained for it."""
    sources = sources_of(config.data)
    place = stored_place(config, sources) if config.data.cache else None
    if place and (stored := load_stored(place, config, sources, tokenizer)):
        return stored
    corpus = load_corpus(config, sources)
    tokenizer = tokenizer or PairTokenizer.train(corpus.train, config)
    encoded = {
        name: encode_split(split, tokenizer, config.model.max_length)
        for name, split in corpus.splits.items()
    }
    refuse(list(corpus.splits.values()))
    prepared = Prepared(corpus, tokenizer, encoded)
    if place and len(encoded["train"]) >= LARGE:
        try:
            store(prepared, place)
        except OSError as error:
            prepared.notes.append(f"the encoded corpus is not kept: {place}: {error.strerror}")
        else:
            prepared = load_stored(place, config, sources, tokenizer) or prepared
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
    return Path(config.data.cache).expanduser() / key[:32]


def store(prepared: Prepared, place: Path) -> None:
    """Write aside, then rename; where another process was faster, its copy is as good."""
    aside = place.with_name(f".{place.name}.{os.getpid()}.part")
    (aside / "tokenizer").mkdir(parents=True)
    try:
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
                files[path.name] = content_checksum(path)
        meta = {
            "files": files,
            "fingerprints": {name: each.fingerprint for name, each in prepared.encoded.items()},
            "reports": {name: asdict(split.report) for name, split in splits.items()},
        }
        write_file(aside / "meta.json", json_with_checksum(meta))
        sync_folder(aside)
        shutil.rmtree(place, ignore_errors=True)  # a damaged one
        aside.rename(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def load_stored(
    place: Path, config: Config, sources: dict[str, Source], tokenizer: PairTokenizer | None
) -> Prepared | None:
    """What is stored, unless it is absent, damaged, or made with another tokenizer."""
    if not place.is_dir():
        return None
    try:
        meta = read_json_with_checksum((place / "meta.json").read_bytes(), str(place))
        if any(content_checksum(place / name) != sum for name, sum in meta["files"].items()):
            return None
        stored = PairTokenizer.from_folder(place / "tokenizer", config)
    except (OSError, CheckpointError):
        return None  # it is only a copy, to be made again
    if tokenizer is not None and tokenizer.to_files() != stored.to_files():
        return None
    splits, encoded = {}, {}
    for name, fingerprint in meta["fingerprints"].items():
        kept, *arrays = (
            numpy.load(place / f"{name}.{kind}.npy", mmap_mode="r", allow_pickle=False)
            for kind in ARRAYS
        )
        data = meta["reports"][name]
        findings = {defect: Finding(**finding) for defect, finding in data["findings"].items()}
        report = Report(name, config.hygiene, data["unit"], data["dropped"], findings)
        splits[name] = Split(name, sources.get(name, sources["train"]), kept, report)
        encoded[name] = EncodedSplit(Sentences(*arrays[:2]), Sentences(*arrays[2:]), fingerprint)
    notes = [f"the encoded corpus is taken from {place}"]
    return Prepared(Corpus(config.data, splits), stored, encoded, notes)


def content_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
