"""How a text turns into tokens: code points, what a reader sees as one character, tokens, ids."""

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

# In these scripts a virama joins two consonants to one sign: স + ্ + ক = স্ক.
JOINING_VIRAMAS = set("\u094d\u09cd\u0acd\u0b4d\u0c4d\u0d4d")


def graphemes(text: str) -> list[str]:
    """What a reader sees as single characters: Unicode's extended grapheme clusters."""
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
    """The lines of `translate.py --tokens`."""
    plain = normalize(text)
    clusters = graphemes(plain)
    yield visible(plain).replace("␣", " ")
    form = "" if plain == text else f", after NFC ({len(text)} before)"
    yield f"{counted(len(plain), 'code point')}{form}, {counted(len(clusters), 'grapheme')}"
    for cluster in clusters:
        for place, character in enumerate(cluster):
            sign = "" if place else visible(cluster)
            yield f"  {padded(sign, 6)}  {code_point(character)} {name_of(character)}"
    if tokenizer.is_joint:
        yield from side_lines("as source and target", plain, tokenizer.source, tokenizer)
    else:
        yield from side_lines("as source", plain, tokenizer.source, tokenizer)
        yield from side_lines("as target", plain, tokenizer.target, tokenizer)


def side_lines(title: str, text: str, side: Tokenizer, tokenizer: PairTokenizer) -> Iterator[str]:
    """The tokens that one side makes of a text, and where it cuts what should stay whole."""
    encoded = side.encode(text, end=side is tokenizer.target or tokenizer.source_eos)
    unknown = encoded.ids.count(UNK_ID)
    known = f"{len(side) - len(SPECIALS):,} {side.token_name}s known"
    yield f"\n{title} ({known}): {counted(len(encoded.ids), 'token')}, {unknown} unknown"
    for token, id in zip(encoded.tokens, encoded.ids, strict=True):
        yield f"  {id:6}  {visible(token)}{'   unknown' if id == UNK_ID else ''}"
    for cluster, after in cut_graphemes(text, encoded):
        yield (
            f"  warning: a token ends inside {visible(cluster)}, after {code_point(after)} "
            f"{name_of(after)}"
        )


def cut_graphemes(text: str, encoded: Encoded) -> Iterator[tuple[str, str]]:
    """Each grapheme that a token boundary falls into, and the character before the boundary."""
    clusters = graphemes(text)
    ends = list(accumulate(map(len, clusters)))
    starts = dict(zip([0, *ends], clusters, strict=False))
    place = 0
    for token, id in zip(encoded.words, encoded.ids, strict=False):
        surface = token.replace(SPACE, "")
        found = text.find(surface, place)
        if found < 0:
            continue  # torchtext's tokenizers may write a word differently
        place = found + len(surface)
        if id != UNK_ID and place not in starts and place not in ends:
            begin = max(start for start in starts if start < place)
            yield starts[begin], text[place - 1]


def counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"


def code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def name_of(character: str) -> str:
    return unicodedata.name(character, unicodedata.category(character))


def visible(text: str) -> str:
    """A text as it may go to a terminal: spaces and control characters visible."""
    if text in ("\u200c", "\u200d"):
        return code_point(text)
    return "".join(
        "␣" if each == " " else code_point(each) if unicodedata.category(each)[0] in "CZ"
        and each not in "\u200c\u200d" else each
        for each in text
    )  # fmt: skip


def padded(text: str, width: int) -> str:
    """Filled up to a width on a terminal, where marks take no place and some signs take two."""
    taken = sum(
        0 if unicodedata.category(each) in ("Mn", "Me", "Cf") else
        2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )  # fmt: skip
    return text + " " * max(0, width - taken)
