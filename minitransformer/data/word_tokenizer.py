"""One language's words, numbered by torchtext's vocabulary and saved as plain text."""

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

from minitransformer.data.tokens import EOS, EOS_ID, SPECIALS, UNK_ID, Encoded, Word
from minitransformer.data.words import join_words, normalize, split_words
from minitransformer.errors import CheckpointError, ConfigError
from minitransformer.settings import TokenizerConfig


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
            max_size=config.max_size or None,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, *, end: bool) -> Encoded:
        """Split and number a text; `end` puts <EOS> after it."""
        tokens = [self.known_spelling(token) for token in self.split(normalize(text))]
        ids = [self.ids.get(token, UNK_ID) for token in tokens]
        return Encoded(text, [*tokens, EOS], [*ids, EOS_ID]) if end else Encoded(text, tokens, ids)

    def number_all(self, texts: Iterable[str], *, end: bool) -> list[list[int]]:
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
