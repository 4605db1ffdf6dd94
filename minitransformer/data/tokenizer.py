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


class WordTokenizer:
    """One language's words."""

    file_ending = "tsv"
    token_name, unknown_name = "word", "word"

    def __init__(
        self,
        split: Callable[[str], list[str]],
        counts: Counter[str],
        *,
        min_frequency: int = 1,
        max_size: int | None = None,
    ) -> None:
        from torchtext.vocab import Vocab  # only words need torchtext

        self.split = split
        self.vocabulary: Any = Vocab(
            counts, max_size=max_size, min_freq=min_frequency, specials=list(SPECIALS)
        )
        self.tokens: list[str] = self.vocabulary.itos
        # Text never turns into a special token, whatever it says.
        self.ids = {token: id for id, token in enumerate(self.tokens) if id >= len(SPECIALS)}

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> "WordTokenizer":
        """Collect the words of texts."""
        split = word_splitter(config)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(split(normalize(text)))
        return cls(
            split,
            counts,
            min_frequency=config.min_frequency,
            max_size=config.vocab_size or None,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, *, end: bool) -> Encoded:
        """Split and number a text; `end` puts <EOS> after it."""
        tokens = [self.known_spelling(token) for token in self.split(normalize(text))]
        ids = [self.ids.get(token, UNK_ID) for token in tokens]
        return Encoded(text, [*tokens, EOS], [*ids, EOS_ID]) if end else Encoded(text, tokens, ids)

    def encode_batch(self, texts: Iterable[str], *, end: bool) -> list[list[int]]:
        """The ids of many texts."""
        after = [EOS_ID] if end else []
        rows = []
        for text in texts:
            tokens = self.split(normalize(text))
            try:
                rows.append([self.ids[token] for token in tokens] + after)
            except KeyError:  # unknown, or known in another spelling
                rows.append(self.encode(text, end=end).ids)
        return rows

    def known_spelling(self, token: str) -> str:
        """Phones write ’ where corpora have ', and the other way round."""
        if token in self.ids:
            return token
        for other in (token.replace("’", "'"), token.replace("'", "’")):
            if other in self.ids:
                return other
        return token

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to <EOS>."""
        return join_words(self.tokens_of(ids))

    def tokens_of(self, ids: Iterable[int]) -> list[str]:
        """The tokens of ids, up to <EOS>."""
        return [self.tokens[id] for id in takewhile(lambda id: id != EOS_ID, ids)]

    def words_of(self, ids: list[int], tokens: list[str]) -> list[Word]:
        """Every token is a word."""
        return [Word(token, [place]) for place, token in enumerate(tokens)]

    def to_bytes(self) -> bytes:
        """A line per token, in the order of ids: the token, a tab, how often it was seen."""
        freqs = self.vocabulary.freqs
        return "".join(f"{token}\t{freqs[token]}\n" for token in self.tokens).encode("utf-8")

    @classmethod
    def from_bytes(cls, content: bytes, config: TokenizerConfig, where: str) -> "WordTokenizer":
        """Read back what to_bytes wrote; `where` names it in error messages."""
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
    """Our own Unicode words, or a tokenizer that torchtext knows by name."""
    if config.words == "unicode":
        return split_words
    from torchtext.data.utils import get_tokenizer

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # torchtext prints its own complaint
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
            vocab_size=config.vocab_size + len(SPECIALS),
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

    def encode_batch(self, texts: Iterable[str], *, end: bool) -> list[list[int]]:
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
        """Learn from the training pairs, which are read once or twice."""
        kind, settings = KINDS[config.tokenizer.kind], config.tokenizer
        if settings.joint:
            source = target = kind.train(chain.from_iterable(pairs), settings)
        else:
            source = kind.train((source for source, _ in pairs), settings)
            target = kind.train((target for _, target in pairs), settings)
        if not source.ids or not target.ids:
            name, least = source.token_name, settings.min_frequency
            raise DataError(f"no {name}s are left (tokenizer.min_frequency is {least})")
        return cls(source, target, config)

    @property
    def is_joint(self) -> bool:
        return self.source is self.target

    def encode_source(self, text: str) -> Encoded:
        return self.source.encode(text, end=self.source_eos)

    def encode_target(self, text: str) -> Encoded:
        return self.target.encode(text, end=True)

    def to_files(self) -> dict[str, bytes]:
        """The files of a run's tokenizer folder."""
        ending = self.source.file_ending
        return {
            f"source.{ending}": self.source.to_bytes(), f"target.{ending}": self.target.to_bytes(),
        }  # fmt: skip

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
        """What to say when a vocabulary of pieces did not come out as large as it was asked for."""
        asked = config.tokenizer.vocab_size
        if config.tokenizer.kind != "bpe" or not asked:
            return []
        sides = {"both languages": self.source} if self.is_joint else {
            "the source": self.source, "the target": self.target,
        }  # fmt: skip
        notes = []
        for name, side in sides.items():
            size = len(side) - len(SPECIALS)
            if size < asked:
                why = f"{name} has no more to merge"
            else:
                why = f"every character of {name} is in it"
            if size != asked:
                notes.append(f"tokenizer.vocab_size is {asked:,}, the vocabulary {size:,}: {why}")
        return notes
