"""Words to ids and back; the vocabulary is torchtext's, and is saved as plain text."""

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from minitransformer.config import Config, TokenizerConfig
from minitransformer.data.words import join_words, normalize, split_words
from minitransformer.errors import CheckpointError, ConfigError

PAD, UNK, BOS, EOS = SPECIALS = ("<PAD>", "<UNK>", "<BOS>", "<EOS>")
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)


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


class WordTokenizer:
    """One language's words."""

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

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, *, end: bool) -> Encoded:
        """Split and number a text; `end` puts <EOS> after it."""
        tokens = [self.known_spelling(token) for token in self.split(normalize(text))]
        ids = [self.ids.get(token, UNK_ID) for token in tokens]
        return Encoded(text, [*tokens, EOS], [*ids, EOS_ID]) if end else Encoded(text, tokens, ids)

    def known_spelling(self, token: str) -> str:
        """Phones write ’ where corpora have ', and the other way round."""
        for other in (token.replace("’", "'"), token.replace("'", "’")):
            if token not in self.ids and other in self.ids:
                return other
        return token

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to <EOS>."""
        return join_words(self.tokens_of(ids))

    def tokens_of(self, ids: Iterable[int]) -> list[str]:
        """The tokens of ids, up to <EOS>."""
        tokens = []
        for id in ids:
            if id == EOS_ID:
                break
            tokens.append(self.tokens[id])
        return tokens

    def to_bytes(self) -> bytes:
        """A line per token, in the order of ids: the token, a tab, how often it was seen."""
        freqs = self.vocabulary.freqs
        return "".join(f"{token}\t{freqs[token]}\n" for token in self.tokens).encode("utf-8")

    @classmethod
    def from_bytes(
        cls, content: bytes, split: Callable[[str], list[str]], where: str
    ) -> "WordTokenizer":
        """Read back what to_bytes wrote; `where` names it in error messages."""
        try:
            lines = content.decode("utf-8").removesuffix("\n").split("\n")
            rows = [line.split("\t") for line in lines]
            counts = Counter({token: int(count) for token, count in rows})
        except ValueError:
            raise CheckpointError(f"{where}: not a vocabulary (token, tab, count)") from None
        tokenizer = cls(split, counts)
        if tokenizer.tokens != [token for token, _ in rows]:
            raise CheckpointError(f"{where}: the tokens are not in the order of their ids")
        return tokenizer


class PairTokenizer:
    """Both languages, and the markers that the model's settings ask for."""

    def __init__(self, source: WordTokenizer, target: WordTokenizer, config: Config) -> None:
        self.source = source
        self.target = target
        self.source_end = config.model.source_end
        self.start_id = {"eos": EOS_ID, "bos": BOS_ID}[config.model.start_token]

    @classmethod
    def train(cls, pairs: Iterable[tuple[str, str]], config: Config) -> "PairTokenizer":
        """Collect the words of the training pairs."""
        split = word_splitter(config.tokenizer)
        sources: Counter[str] = Counter()
        targets: Counter[str] = sources if config.tokenizer.joint else Counter()
        for source, target in pairs:
            sources.update(split(normalize(source)))
            targets.update(split(normalize(target)))

        def number(counts: Counter[str]) -> WordTokenizer:
            return WordTokenizer(
                split,
                counts,
                min_frequency=config.tokenizer.min_frequency,
                max_size=config.tokenizer.max_size or None,
            )

        return cls(number(sources), number(targets), config)

    def encode_source(self, text: str) -> Encoded:
        return self.source.encode(text, end=self.source_end)

    def encode_target(self, text: str) -> Encoded:
        return self.target.encode(text, end=True)

    def to_files(self) -> dict[str, bytes]:
        """The files of a run's tokenizer folder."""
        return {"source.tsv": self.source.to_bytes(), "target.tsv": self.target.to_bytes()}

    @classmethod
    def from_folder(cls, folder: Path, config: Config) -> "PairTokenizer":
        split = word_splitter(config.tokenizer)

        def read(name: str) -> WordTokenizer:
            try:
                content = (folder / name).read_bytes()
            except OSError as error:
                raise CheckpointError(f"{folder / name}: {error.strerror}") from None
            return WordTokenizer.from_bytes(content, split, str(folder / name))

        return cls(read("source.tsv"), read("target.tsv"), config)


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
