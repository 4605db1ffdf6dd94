"""The special tokens, and a sentence as the model reads it."""

from typing import NamedTuple

PAD, UNK, BOS, EOS = SPECIALS = ("<PAD>", "<UNK>", "<BOS>", "<EOS>")
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)


class Word(NamedTuple):
    """A word as people see it, and the places of the tokens that it is made of."""

    text: str
    places: list[int]


class Encoded(NamedTuple):
    """A sentence as the model reads it; tokens and ids stand side by side."""

    text: str
    tokens: list[str]
    ids: list[int]

    @property
    def words(self) -> list[str]:
        """The tokens without an end marker."""
        return self.tokens[:-1] if self.ids[-1:] == [EOS_ID] else self.tokens

    @property
    def unknown(self) -> list[str]:
        """The words that the vocabulary does not have, each once."""
        pairs = zip(self.tokens, self.ids, strict=True)
        return list(dict.fromkeys(token for token, id in pairs if id == UNK_ID))
