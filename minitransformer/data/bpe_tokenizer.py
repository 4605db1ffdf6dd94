"""Subwords: byte-pair encoding by `tokenizers`, on characters, so that every piece is readable."""

import json
from collections.abc import Iterable
from itertools import accumulate, takewhile

from minitransformer.data.tokens import EOS, EOS_ID, SPECIALS, UNK, UNK_ID, Encoded, Word
from minitransformer.data.words import normalize, split_words
from minitransformer.errors import CheckpointError
from minitransformer.settings import TokenizerConfig

SPACE = "▁"  # stands where a word begins


class BpeTokenizer:
    """One language's pieces, or both languages' together."""

    file_ending = "json"
    token_name, unknown_name = "piece", "character"

    def __init__(self, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers  # only subwords need tokenizers

        # No special token is made known to it, so text never turns into one.
        self.engine = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=UNK))
        self.engine.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
                pre_tokenizers.Punctuation("isolated"),
            ]
        )
        self.tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
        self.ids = {token: id for token, id in vocabulary.items() if id >= len(SPECIALS)}

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> "BpeTokenizer":
        """Merge the most frequent neighbours until the vocabulary is full or nothing is left."""
        from tokenizers import trainers

        tokenizer = cls({}, [])
        trainer = trainers.BpeTrainer(
            vocab_size=config.max_size + len(SPECIALS),
            min_frequency=config.min_frequency,
            special_tokens=list(SPECIALS),
            show_progress=False,
        )
        tokenizer.engine.train_from_iterator(map(plain_spaces, texts), trainer)
        return cls(*vocabulary_and_merges(tokenizer.engine.to_str()))

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, *, end: bool) -> Encoded:
        """Split and number a text; `end` puts <EOS> after it."""
        plain = self.known_spelling(plain_spaces(text))
        pieces = self.engine.encode(plain)
        tokens = [
            plain[slice(*span)] if id == UNK_ID else token
            for token, id, span in zip(pieces.tokens, pieces.ids, pieces.offsets, strict=True)
        ]
        return (
            Encoded(text, [*tokens, EOS], [*pieces.ids, EOS_ID])
            if end
            else Encoded(text, tokens, pieces.ids)
        )

    def number_all(self, texts: Iterable[str], *, end: bool) -> list[list[int]]:
        """The ids of many texts."""
        plain = [self.known_spelling(plain_spaces(text)) for text in texts]
        after = [EOS_ID] if end else []
        return [pieces.ids + after for pieces in self.engine.encode_batch_fast(plain)]

    def known_spelling(self, text: str) -> str:
        """Phones write ’ where corpora have ', and the other way round."""
        for mark, other in ("’'", "'’"):
            if mark in text and mark not in self.ids and other in self.ids:
                return text.replace(mark, other)
        return text

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to <EOS>."""
        return join_pieces(self.tokens_of(ids))

    def tokens_of(self, ids: Iterable[int]) -> list[str]:
        """The tokens of ids, up to <EOS>."""
        return [self.tokens[id] for id in takewhile(lambda id: id != EOS_ID, ids)]

    def words_of(self, ids: list[int], tokens: list[str]) -> list[Word]:
        """The words that pieces make up, cut as a tokenizer of words cuts them.

        A marker such as <EOS> is a word of its own; `tokens` are the pieces as they are shown.
        """
        words: list[Word] = []
        chunk: list[int] = []  # places of pieces without a space between them
        for place, id in enumerate(ids):
            is_marker = id < len(SPECIALS) and id != UNK_ID
            if is_marker or tokens[place].startswith(SPACE):
                words += words_of_chunk(chunk, tokens)
                chunk = []
            if is_marker:
                words.append(Word(tokens[place], [place]))
            else:
                chunk.append(place)
        return [*words, *words_of_chunk(chunk, tokens)]

    def to_bytes(self) -> bytes:
        """The JSON that `tokenizers` and other tools read."""
        return (self.engine.to_str(pretty=True) + "\n").encode("utf-8")

    @classmethod
    def from_bytes(cls, content: bytes, config: TokenizerConfig, where: str) -> "BpeTokenizer":
        """Read back what to_bytes wrote; `where` names it in error messages."""
        try:
            vocabulary, merges = vocabulary_and_merges(content.decode("utf-8"))
            # On a merge that makes no token, the engine may panic, which `except` does not catch.
            pieces = {piece for a, b in merges for piece in (a, b, a + b)}
            ids = sorted(vocabulary.values())
            if ids != list(range(len(ids))) or not pieces <= vocabulary.keys():
                raise ValueError("ids with gaps, or merges of unknown pieces")
            if any(piece.split() != [piece] for piece in vocabulary):  # one could end a line
                raise ValueError("pieces with spaces or line breaks in them")
            tokenizer = cls(vocabulary, merges)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{where}: not a BPE tokenizer") from None
        if tuple(tokenizer.tokens[: len(SPECIALS)]) != SPECIALS:
            raise CheckpointError(f"{where}: the special tokens are not the first ones")
        return tokenizer


def vocabulary_and_merges(text: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(text)["model"]
    return model["vocab"], [(first, second) for first, second in model["merges"]]


def plain_spaces(text: str) -> str:
    """NFC, and one space wherever there is space."""
    return " ".join(normalize(text).split())


def words_of_chunk(places: list[int], tokens: list[str]) -> list[Word]:
    """["▁Let", "'", "s", "."] -> Let's and the full stop; a piece is never cut."""
    pieces = [join_pieces([tokens[place]]) for place in places]
    # What is unknown is a letter of its word, and not a sign between words.
    pieces = ["x" if piece == UNK else piece for piece in pieces]
    begins = {0, *accumulate(map(len, split_words("".join(pieces))))}  # of words, in letters
    groups: list[list[int]] = []
    before, begun = 0, -1  # letters; a lone ▁ has none, and is of the word behind it
    for place, piece in zip(places, pieces, strict=True):
        if before in begins and before > begun:
            groups.append([])
            begun = before
        groups[-1].append(place)
        before += len(piece)
    return [Word(join_pieces(tokens[n] for n in each) or SPACE, each) for each in groups]


def join_pieces(pieces: Iterable[str]) -> str:
    """["▁sch", "ool", "."] -> "school." """
    return "".join(pieces).replace(SPACE, " ").removeprefix(" ")
