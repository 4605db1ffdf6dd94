"""Sentence pairs from a shipped corpus or a tab-separated file, with every line accounted for."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from minitransformer.config import DataConfig
from minitransformer.errors import DataError

SHIPPED = Path(__file__).parent / "corpora"


class Pair(NamedTuple):
    source: str
    target: str


@dataclass
class Split:
    """The pairs of one split, and the line numbers of those that were left out, by reason."""

    name: str
    pairs: list[Pair] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # where each pair stands in its file
    dropped: dict[str, list[int]] = field(default_factory=dict)

    def drop(self, reason: str, line: int) -> None:
        self.dropped.setdefault(reason, []).append(line)

    def drop_where(self, verdicts: list[str]) -> None:
        """Drop each pair that was given a reason to be dropped."""
        judged = list(zip(self.pairs, self.lines, verdicts, strict=True))
        for _, line, reason in judged:
            if reason:
                self.drop(reason, line)
        self.pairs = [pair for pair, _, reason in judged if not reason]
        self.lines = [line for _, line, reason in judged if not reason]


@dataclass
class Corpus:
    name: str
    train: Split
    valid: Split

    def fingerprint(self) -> str:
        """A hash of all pairs, so that a resumed run can tell that its data changed."""
        digest = hashlib.sha256()
        for split in (self.train, self.valid):
            for pair in split.pairs:
                digest.update("\t".join(pair).encode("utf-8") + b"\n")
            digest.update(b"\x00")
        return digest.hexdigest()


def load_corpus(config: DataConfig) -> Corpus:
    """Read the pairs that a config asks for."""
    shipped = shipped_corpora()
    if config.source in shipped:
        train = read_tab_separated(SHIPPED / f"{config.source}.train.tsv", "train")
        valid = read_tab_separated(SHIPPED / f"{config.source}.valid.tsv", "valid")
    elif Path(config.source).is_file():
        train, valid = read_tab_separated(Path(config.source), "train"), Split("valid")
    else:
        raise DataError(
            f"data.source: '{config.source}' is neither a file nor a shipped corpus "
            f"({', '.join(shipped)})"
        )
    if config.valid:
        valid = read_tab_separated(Path(config.valid), "valid")
    if config.limit:
        train.pairs, train.lines = train.pairs[: config.limit], train.lines[: config.limit]
    return Corpus(config.source, train, valid)


def shipped_corpora() -> list[str]:
    return sorted(path.name.removesuffix(".train.tsv") for path in SHIPPED.glob("*.train.tsv"))


def read_tab_separated(path: Path, name: str) -> Split:
    """Read `source<TAB>target` lines: UTF-8, ended by \\n alone, nothing quoted."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: looks like UTF-16; save it as UTF-8")
    split = Split(name)
    for number, raw in enumerate(lines_of(content), start=1):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            split.drop("not UTF-8", number)
            continue
        columns = [column.strip() for column in text.split("\t")]
        if not any(columns):
            split.drop("empty", number)
        elif len(columns) != 2:
            split.drop("not two columns with one tab between", number)
        elif not all(columns):
            split.drop("one side empty", number)
        else:
            split.pairs.append(Pair(*columns))
            split.lines.append(number)
    if not split.pairs:
        reasons = "; ".join(f"{len(lines)} {reason}" for reason, lines in split.dropped.items())
        raise DataError(f"{path}: no usable sentence pairs ({reasons or 'the file is empty'})")
    return split


def lines_of(content: bytes) -> list[bytes]:
    """Lines as `wc -l` and other tools count them: U+2028, U+0085 and a lone CR end none."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    lines = content.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines
