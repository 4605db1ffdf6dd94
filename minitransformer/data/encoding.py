"""A split's sentences as ids, those that the model cannot take dropped and counted."""

from typing import NamedTuple

from minitransformer.data.corpus import Split
from minitransformer.data.tokenizer import PairTokenizer


class EncodedPair(NamedTuple):
    """Ids of both sides, the target's with its <EOS>."""

    source: list[int]
    target: list[int]


def encode_split(split: Split, tokenizer: PairTokenizer, max_length: int) -> list[EncodedPair]:
    """Number a split's words; pairs without words or beyond `max_length` leave the split."""
    sources = [tokenizer.encode_source(pair.source) for pair in split.pairs]
    targets = [tokenizer.encode_target(pair.target) for pair in split.pairs]
    verdicts = []
    for source, target in zip(sources, targets, strict=True):
        if not (source.words and target.words):
            verdicts.append("no words on one side")
        elif max(len(source.ids), len(target.ids)) > max_length:
            verdicts.append(f"longer than model.max_length ({max_length} tokens)")
        else:
            verdicts.append("")
    split.drop_where(verdicts)
    return [
        EncodedPair(source.ids, target.ids)
        for source, target, verdict in zip(sources, targets, verdicts, strict=True)
        if not verdict
    ]
