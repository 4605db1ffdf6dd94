"""A split's sentences as ids in flat arrays: a few bytes a token, whatever the corpus's size."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, overload

import numpy
from numpy.typing import NDArray

from minitransformer.data.corpus import Pair, Split
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.data.tokens import EOS_ID, UNK_ID

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
    sides = [(tokenizer.source, tokenizer.source_end), (tokenizer.target, True)]
    columns = []
    for place, (side, end) in enumerate(sides):
        rows = side.number_all((pair[place] for _, pair in chunk), end=end)
        columns.append([ids if len(ids) > end else [] for ids in rows])
    return zip(chunk, *columns, strict=True)
