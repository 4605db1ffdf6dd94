"""Text to ids and back: special tokens, words, BPE, and both languages of a run."""

import contextlib
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import accumulate, chain, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from minitransformer.errors import CheckpointError, ConfigError, DataError
from minitransformer.settings import Config, TokenizerConfig
from minitransformer.storage import MAX_TOKENIZER_BYTES, read_own_file

PAD, UNK, BOS, EOS = SPECIALS = ("<PAD>", "<UNK>", "<BOS>", "<EOS>")
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)


class Word(NamedTuple):
    """A word as people see it, and the indices of its tokens."""

    text: str
    indices: list[int]


class Encoded(NamedTuple):
    """A sentence as the model reads it: its tokens and the id of each."""

    text: str
    tokens: list[str]
    ids: list[int]

    @property
    def words(self) -> list[str]:
        """Return the tokens without an end marker."""
        return self.tokens[:-1] if self.ids[-1:] == [EOS_ID] else self.tokens

    @property
    def unknown(self) -> list[str]:
        """Return the tokens that the vocabulary does not have, each once."""
        pairs = zip(self.tokens, self.ids, strict=True)
        return list(dict.fromkeys(token for token, id in pairs if id == UNK_ID))


LONE_SURROGATE = re.compile("[\ud800-\udfff]")
APOSTROPHES = "'’"
NUMBER_SEPARATORS = ".,"
ZERO_WIDTH_JOINER = "\u200d"  # joins several emoji to one picture
# Punctuation that is written without a space before it, or after it; with Unicode's categories.
CLOSING, CLOSING_CATEGORIES = set(".,;:!?…%।॥؟،؛。、！？"), {"Pe", "Pf"}
OPENING, OPENING_CATEGORIES = set("¿¡"), {"Ps", "Pi"}


def normalize(text: str) -> str:
    """Return a text in NFC, with U+FFFD for each half of a surrogate pair."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", LONE_SURROGATE.sub("\ufffd", text))


def split_words(text: str) -> list[str]:
    """Split words and punctuation: "আমি যাই।" -> ["আমি", "যাই", "।"]; "Let's go" keeps "Let's"."""
    return [word for chunk in text.split() for word in split_chunk(chunk)]


@lru_cache(maxsize=2**16)  # most of a corpus is a few thousand chunks again and again
def split_chunk(text: str) -> tuple[str, ...]:
    """Split words and punctuation of a text without spaces."""
    words: list[str] = []
    kind = ""  # of the word that the next character may join: "letters", "symbol" or none
    for index, character in enumerate(text):
        category = unicodedata.category(character)
        if category[0] in "LMNC" or category == "Pc":
            joins = kind == "letters" or (kind == "symbol" and category[0] in "MC")
            kind = kind if joins else "letters"
        elif kind == "letters" and is_inside_word(text, index):
            joins = True
        elif category[0] == "S":
            joins = kind == "symbol" and (text[index - 1] == ZERO_WIDTH_JOINER or category == "Sk")
            kind = "symbol"
        else:
            joins, kind = False, ""
        if joins:
            words[-1] += character
        else:
            words.append(character)
    return tuple(words)


def is_inside_word(text: str, index: int) -> bool:
    """Return whether this is like the apostrophe of "Let's" or the dot of "3.14"."""
    before, after = text[index - 1], text[index + 1 : index + 2]
    if text[index] in APOSTROPHES:
        return all(side and unicodedata.category(side)[0] in "LM" for side in (before, after))
    return text[index] in NUMBER_SEPARATORS and before.isdigit() and after.isdigit()


def join_words(words: list[str]) -> str:
    """Join words so that split_words returns the same words again."""
    text = ""
    needs_space = False
    for word in words:
        category = unicodedata.category(word) if len(word) == 1 else ""
        is_closing = word in CLOSING or (category in CLOSING_CATEGORIES and word not in APOSTROPHES)
        text += f" {word}" if needs_space and not is_closing else word
        needs_space = not (word in OPENING or category in OPENING_CATEGORIES)
    return text


class BaseTokenizer:
    """A vocabulary of words or pieces: tokens by id and ids by token."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        # Text never becomes a special token, whatever it contains.
        self.ids = {token: id for id, token in enumerate(tokens) if id >= len(SPECIALS)}

    def __len__(self) -> int:
        return len(self.tokens)

    def tokens_of(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens of ids, up to <EOS>."""
        return [self.tokens[id] for id in takewhile(lambda id: id != EOS_ID, ids)]


class WordTokenizer(BaseTokenizer):
    """One language's words."""

    file_ending = "tsv"
    token_name, unknown_name = "word", "word"

    def __init__(
        self,
        split: Callable[[str], list[str]],
        counts: Counter[str],
        min_frequency: int = 1,
        max_size: int | None = None,
    ) -> None:
        from torchtext.vocab import Vocab  # only words need torchtext

        self.split = split
        self.vocabulary: Any = Vocab(counts, max_size, min_frequency, specials=list(SPECIALS))
        super().__init__(self.vocabulary.itos)

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> "WordTokenizer":
        """Count the words of texts."""
        split = word_splitter(config)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(split(normalize(text)))
        return cls(split, counts, config.min_frequency, config.vocab_size or None)

    def encode(self, text: str, *, end: bool) -> Encoded:
        """Return a text's tokens and ids; `end` appends <EOS>."""
        tokens = [self.known_spelling(token) for token in self.split(normalize(text))]
        ids = [self.ids.get(token, UNK_ID) for token in tokens]
        return Encoded(text, [*tokens, EOS], [*ids, EOS_ID]) if end else Encoded(text, tokens, ids)

    def encode_batch(self, texts: Iterable[str], *, end: bool) -> list[list[int]]:
        """Return the ids of many texts."""
        suffix = [EOS_ID] if end else []
        rows = []
        for text in texts:
            tokens = self.split(normalize(text))
            try:
                rows.append([self.ids[token] for token in tokens] + suffix)
            except KeyError:  # unknown, or known in another spelling
                rows.append(self.encode(text, end=end).ids)
        return rows

    def known_spelling(self, token: str) -> str:
        """Swap ’ and ' where only the other one is known: phones write ’, many corpora '."""
        for spelling in (token, token.replace("’", "'"), token.replace("'", "’")):
            if spelling in self.ids:
                return spelling
        return token

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, up to <EOS>."""
        return join_words(self.tokens_of(ids))

    def words_of(self, ids: list[int], tokens: list[str]) -> list[Word]:
        """Return every token as a word."""
        return [Word(token, [index]) for index, token in enumerate(tokens)]

    def to_bytes(self) -> bytes:
        """Return a line per token, in the order of ids: the token, a tab, its frequency."""
        freqs = self.vocabulary.freqs
        return "".join(f"{token}\t{freqs[token]}\n" for token in self.tokens).encode("utf-8")

    @classmethod
    def from_bytes(cls, content: bytes, config: TokenizerConfig, where: str) -> "WordTokenizer":
        """Load what to_bytes returned; `where` names it in error messages."""
        try:
            lines = content.decode("utf-8").removesuffix("\n").split("\n")
            rows = [line.split("\t") for line in lines]
            counts = Counter({token: int(count) for token, count in rows})
        except ValueError:
            raise CheckpointError(f"{where}: not a vocabulary (token, tab, count)") from None
        tokenizer = cls(word_splitter(config), counts)
        if tokenizer.tokens != [token for token, _ in rows]:
            raise CheckpointError(f"{where}: the tokens are not in the order of their ids")
        return tokenizer


def word_splitter(config: TokenizerConfig) -> Callable[[str], list[str]]:
    """Return our own Unicode words, or a tokenizer that torchtext has by this name."""
    if config.words == "unicode":
        return split_words
    from torchtext.data.utils import get_tokenizer

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # torchtext prints an error of its own
            splitter: Callable[[str], list[str]] = get_tokenizer(config.words)
    except (ImportError, AttributeError, OSError, LookupError):
        raise ConfigError(
            f"tokenizer.words: torchtext's '{config.words}' needs a package that is not installed; "
            "use unicode or basic_english, or install it"
        ) from None
    except ValueError:
        raise ConfigError(
            f"tokenizer.words: '{config.words}' is neither unicode nor a tokenizer "
            "that torchtext knows, such as basic_english"
        ) from None
    return splitter


SPACE = "▁"  # marks where a word begins


class BpeTokenizer(BaseTokenizer):
    """One language's subword pieces, or both languages' together."""

    file_ending = "json"
    token_name, unknown_name = "piece", "character"

    def __init__(self, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers  # only subwords need tokenizers

        super().__init__(sorted(vocabulary, key=lambda token: vocabulary[token]))
        # The engine does not learn of special tokens, so text never becomes one.
        self.engine = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=UNK))
        spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
        punctuation = pre_tokenizers.Punctuation("isolated")
        self.engine.pre_tokenizer = pre_tokenizers.Sequence([spaces, punctuation])

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> "BpeTokenizer":
        """Merge the most frequent neighbours until the vocabulary is full or nothing is left."""
        from tokenizers import trainers

        tokenizer = cls({}, [])
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab_size + len(SPECIALS),
            min_frequency=config.min_frequency,
            special_tokens=list(SPECIALS),
            show_progress=False,
        )
        tokenizer.engine.train_from_iterator(map(plain_spaces, texts), trainer)
        return cls(*vocabulary_and_merges(tokenizer.engine.to_str()))

    def encode(self, text: str, *, end: bool) -> Encoded:
        """Return a text's tokens and ids; `end` appends <EOS>."""
        plain = self.known_spelling(plain_spaces(text))
        pieces = self.engine.encode(plain)
        ids = pieces.ids
        tokens = [
            plain[slice(*span)] if id == UNK_ID else token
            for token, id, span in zip(pieces.tokens, ids, pieces.offsets, strict=True)
        ]
        return Encoded(text, [*tokens, EOS], [*ids, EOS_ID]) if end else Encoded(text, tokens, ids)

    def encode_batch(self, texts: Iterable[str], *, end: bool) -> list[list[int]]:
        """Return the ids of many texts."""
        plain = [self.known_spelling(plain_spaces(text)) for text in texts]
        suffix = [EOS_ID] if end else []
        return [pieces.ids + suffix for pieces in self.engine.encode_batch_fast(plain)]

    def known_spelling(self, text: str) -> str:
        """Swap ’ and ' where only the other one is known: phones write ’, many corpora '."""
        for mark, other in ("’'", "'’"):
            if mark in text and mark not in self.ids and other in self.ids:
                return text.replace(mark, other)
        return text

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, up to <EOS>."""
        return join_pieces(self.tokens_of(ids))

    def words_of(self, ids: list[int], tokens: list[str]) -> list[Word]:
        """Return the words that pieces make up, split as a tokenizer of words splits them.

        A marker such as <EOS> is a word of its own; `tokens` are the pieces as they are shown.
        """
        words: list[Word] = []
        chunk: list[int] = []  # indices of pieces without a space between them
        for index, id in enumerate(ids):
            is_marker = id < len(SPECIALS) and id != UNK_ID
            if is_marker or tokens[index].startswith(SPACE):
                words += words_of_chunk(chunk, tokens)
                chunk = []
            if is_marker:
                words.append(Word(tokens[index], [index]))
            else:
                chunk.append(index)
        return [*words, *words_of_chunk(chunk, tokens)]

    def to_bytes(self) -> bytes:
        """Return the JSON that `tokenizers` and other tools read."""
        return (self.engine.to_str(pretty=True) + "\n").encode("utf-8")

    @classmethod
    def from_bytes(cls, content: bytes, config: TokenizerConfig, where: str) -> "BpeTokenizer":
        """Load what to_bytes returned; `where` names it in error messages."""
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
    """Return a text in NFC, with a single space wherever it has whitespace."""
    return " ".join(normalize(text).split())


def words_of_chunk(indices: list[int], tokens: list[str]) -> list[Word]:
    """["▁Let", "'", "s", "."] -> Let's and the full stop; a piece is never split."""
    pieces = [join_pieces([tokens[index]]) for index in indices]
    # An unknown piece counts as a letter of its word, not as punctuation between words.
    pieces = ["x" if piece == UNK else piece for piece in pieces]
    starts = {0, *accumulate(map(len, split_words("".join(pieces))))}  # of words, in characters
    groups: list[list[int]] = []
    position, last_start = 0, -1  # a lone ▁ has no characters, and goes to the word after it
    for index, piece in zip(indices, pieces, strict=True):
        if position in starts and position > last_start:
            groups.append([])
            last_start = position
        groups[-1].append(index)
        position += len(piece)
    return [Word(join_pieces(tokens[n] for n in group) or SPACE, group) for group in groups]


def join_pieces(pieces: Iterable[str]) -> str:
    """["▁sch", "ool", "."] -> "school." """
    return "".join(pieces).replace(SPACE, " ").removeprefix(" ")


Tokenizer = WordTokenizer | BpeTokenizer
KINDS: dict[str, type[WordTokenizer] | type[BpeTokenizer]] = {
    "words": WordTokenizer, "bpe": BpeTokenizer,
}  # fmt: skip


class PairTokenizer:
    """Both languages, and the markers that the model's settings ask for."""

    def __init__(self, source: Tokenizer, target: Tokenizer, config: Config) -> None:
        self.source = source
        self.target = target
        self.source_eos = config.model.source_eos
        self.start_id = {"eos": EOS_ID, "bos": BOS_ID}[config.model.decoder_start_token]

    @classmethod
    def train(cls, pairs: Iterable[tuple[str, str]], config: Config) -> "PairTokenizer":
        """Train on the training pairs, which are read once or twice."""
        kind, settings = KINDS[config.tokenizer.kind], config.tokenizer
        if settings.joint:
            source = target = kind.train(chain.from_iterable(pairs), settings)
        else:
            source = kind.train((source for source, _ in pairs), settings)
            target = kind.train((target for _, target in pairs), settings)
        if not source.ids or not target.ids:
            name, minimum = source.token_name, settings.min_frequency
            raise DataError(f"no {name}s are left (tokenizer.min_frequency is {minimum})")
        return cls(source, target, config)

    @property
    def is_joint(self) -> bool:
        return self.source is self.target

    def encode_source(self, text: str) -> Encoded:
        return self.source.encode(text, end=self.source_eos)

    def encode_target(self, text: str) -> Encoded:
        return self.target.encode(text, end=True)

    def to_files(self) -> dict[str, bytes]:
        """Return the files of a run's tokenizer folder."""
        sides = {"source": self.source, "target": self.target}
        return {f"{name}.{side.file_ending}": side.to_bytes() for name, side in sides.items()}

    @classmethod
    def from_folder(cls, folder: Path, config: Config) -> "PairTokenizer":
        kind = KINDS[config.tokenizer.kind]

        def read(name: str) -> Tokenizer:
            path = folder / f"{name}.{kind.file_ending}"
            content = read_own_file(path, MAX_TOKENIZER_BYTES)
            return kind.from_bytes(content, config.tokenizer, str(path))

        source = read("source")
        return cls(source, source if config.tokenizer.joint else read("target"), config)

    def size_notes(self, config: Config) -> list[str]:
        """Explain each BPE vocabulary whose size is not tokenizer.vocab_size."""
        vocab_size = config.tokenizer.vocab_size
        if config.tokenizer.kind != "bpe" or not vocab_size:
            return []
        sides = {"the source": self.source, "the target": self.target}
        if self.is_joint:
            sides = {"both languages": self.source}
        notes = []
        for name, side in sides.items():
            size = len(side) - len(SPECIALS)
            numbers = f"tokenizer.vocab_size is {vocab_size:,}, the vocabulary {size:,}"
            if size < vocab_size:
                notes.append(f"{numbers}: nothing is left to merge in {name}")
            elif size > vocab_size:
                notes.append(f"{numbers}: it has every character of {name}")
        return notes
