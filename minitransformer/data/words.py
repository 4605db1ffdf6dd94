"""Text to words and back, by Unicode category, for any script."""

import re
import unicodedata
from functools import lru_cache

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
APOSTROPHES = "'’"
NUMBER_SEPARATORS = ".,"
ZERO_WIDTH_JOINER = "\u200d"  # glues emoji to one picture
# Punctuation of these categories is written against the word before it or after it.
CLOSING_CATEGORIES = {"Pe", "Pf"}
OPENING_CATEGORIES = {"Ps", "Pi"}
CLOSING = set(".,;:!?…%।॥؟،؛。、！？")
OPENING = set("¿¡")


def normalize(text: str) -> str:
    """One spelling per text: NFC; half a surrogate pair, which is no character, is U+FFFD."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", LONE_SURROGATE.sub("\ufffd", text))


def split_words(text: str) -> list[str]:
    """Words and punctuation marks: "আমি যাই।" -> ["আমি", "যাই", "।"]; "Let's go" keeps "Let's"."""
    return [word for chunk in text.split() for word in split_chunk(chunk)]


@lru_cache(maxsize=2**16)  # most of a corpus is a few thousand chunks again and again
def split_chunk(text: str) -> tuple[str, ...]:
    """Words and punctuation marks of a text without spaces."""
    words: list[str] = []
    kind = ""  # of the word that the next character may join: "letters", "symbol" or none
    for place, character in enumerate(text):
        category = unicodedata.category(character)
        if category[0] in "LMNC" or category == "Pc":
            joins = kind == "letters" or (kind == "symbol" and category[0] in "MC")
            kind = kind if joins else "letters"
        elif kind == "letters" and connects(text, place):
            joins = True
        elif category[0] == "S":
            joins = kind == "symbol" and (text[place - 1] == ZERO_WIDTH_JOINER or category == "Sk")
            kind = "symbol"
        else:
            joins, kind = False, ""
        if joins:
            words[-1] += character
        else:
            words.append(character)
    return tuple(words)


def connects(text: str, place: int) -> bool:
    """Is this the apostrophe of "Let's" or the dot of "3.14"?"""
    before, after = text[place - 1], text[place + 1 : place + 2]
    if text[place] in APOSTROPHES:
        return is_letter(before) and is_letter(after)
    return text[place] in NUMBER_SEPARATORS and before.isdigit() and after.isdigit()


def is_letter(character: str) -> bool:
    return character != "" and unicodedata.category(character)[0] in "LM"


def join_words(words: list[str]) -> str:
    """Put words back together so that split_words gives the same words again."""
    text = ""
    glue = True  # does the next word follow without a space?
    for word in words:
        if not (glue or closes(word)):
            text += " "
        text += word
        glue = opens(word)
    return text


def closes(word: str) -> bool:
    return word in CLOSING or (
        len(word) == 1 and word not in APOSTROPHES and category_in(word, CLOSING_CATEGORIES)
    )


def opens(word: str) -> bool:
    return word in OPENING or (len(word) == 1 and category_in(word, OPENING_CATEGORIES))


def category_in(word: str, categories: set[str]) -> bool:
    return unicodedata.category(word) in categories
