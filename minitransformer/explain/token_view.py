"""How a text becomes tokens: code points, grapheme clusters, tokens, ids."""

import unicodedata
from collections.abc import Iterator
from itertools import accumulate

import regex

from minitransformer.data.tokenizer import (
    SPACE,
    SPECIALS,
    UNK_ID,
    ZERO_WIDTH_JOINER,
    Encoded,
    PairTokenizer,
    Tokenizer,
    normalize,
)

# In these scripts a virama joins two consonants into a conjunct: স + ্ + ক = স্ক.
JOINING_VIRAMAS = set("\u094d\u09cd\u0acd\u0b4d\u0c4d\u0d4d")


def graphemes(text: str) -> list[str]:
    """Split a text into Unicode's extended grapheme clusters: what a reader sees as characters."""
    clusters: list[str] = []
    for cluster in regex.findall(r"\X", text):
        # The rule for conjuncts (GB9c of Unicode 15.1) is not in \X yet.
        before = clusters[-1].rstrip(ZERO_WIDTH_JOINER)[-1:] if clusters else ""
        if before in JOINING_VIRAMAS and unicodedata.category(cluster[0]) == "Lo":
            clusters[-1] += cluster
        else:
            clusters.append(cluster)
    return clusters


def token_lines(text: str, tokenizer: PairTokenizer) -> Iterator[str]:
    """Yield the lines of `minitransformer translate --tokens`."""
    plain = normalize(text)
    clusters = graphemes(plain)
    yield visible(plain).replace("␣", " ")
    form = "" if plain == text else f", after NFC ({len(text)} before)"
    yield f"{counted(len(plain), 'code point')}{form}, {counted(len(clusters), 'grapheme')}"
    for cluster in clusters:
        for index, character in enumerate(cluster):
            label = "" if index else visible(cluster)
            yield f"  {padded(label, 6)}  {describe(character)}"
    if tokenizer.is_joint:
        yield from side_lines("as source and target", plain, tokenizer.source, tokenizer)
    else:
        yield from side_lines("as source", plain, tokenizer.source, tokenizer)
        yield from side_lines("as target", plain, tokenizer.target, tokenizer)


def side_lines(title: str, text: str, side: Tokenizer, tokenizer: PairTokenizer) -> Iterator[str]:
    """Yield the tokens of a text on one side, and a warning for each grapheme they split."""
    encoded = side.encode(text, end=side is tokenizer.target or tokenizer.source_eos)
    unknown = encoded.ids.count(UNK_ID)
    known = f"{len(side) - len(SPECIALS):,} {side.token_name}s known"
    yield f"\n{title} ({known}): {counted(len(encoded.ids), 'token')}, {unknown} unknown"
    for token, id in zip(encoded.tokens, encoded.ids, strict=True):
        yield f"  {id:6}  {visible(token)}{'   unknown' if id == UNK_ID else ''}"
    for cluster, after in split_graphemes(text, encoded):
        yield f"  warning: a token ends inside {visible(cluster)}, after {describe(after)}"


def split_graphemes(text: str, encoded: Encoded) -> Iterator[tuple[str, str]]:
    """Yield each grapheme with a token boundary inside, and the character before the boundary."""
    clusters = graphemes(text)
    ends = list(accumulate(map(len, clusters)))
    starts = dict(zip([0, *ends], clusters, strict=False))
    position = 0
    for token, id in zip(encoded.words, encoded.ids, strict=False):
        surface = token.replace(SPACE, "")
        found = text.find(surface, position)
        if found < 0:
            continue  # torchtext's tokenizers may change the spelling of a word
        position = found + len(surface)
        if id != UNK_ID and position not in starts and position not in ends:
            begin = max(start for start in starts if start < position)
            yield starts[begin], text[position - 1]


def counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"


def code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def describe(character: str) -> str:
    """Return code point and name, such as U+09CD BENGALI SIGN VIRAMA."""
    name = unicodedata.name(character, unicodedata.category(character))
    return f"{code_point(character)} {name}"


def visible(text: str) -> str:
    """Replace spaces and control characters by visible ones."""
    if text in ("\u200c", "\u200d"):
        return code_point(text)
    return "".join(
        "␣" if each == " " else code_point(each) if unicodedata.category(each)[0] in "CZ"
        and each not in "\u200c\u200d" else each
        for each in text
    )  # fmt: skip


def padded(text: str, width: int) -> str:
    """Pad a text to a width on a terminal, where marks take no column and some characters two."""
    taken = sum(
        0 if unicodedata.category(each) in ("Mn", "Me", "Cf") else
        2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )  # fmt: skip
    return text + " " * max(0, width - taken)
