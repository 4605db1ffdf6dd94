"""Both languages of a run: text to ids and back, with the markers that the model asks for."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from minitransformer.data.bpe_tokenizer import BpeTokenizer
from minitransformer.data.tokens import BOS_ID, EOS_ID, SPECIALS, Encoded
from minitransformer.data.word_tokenizer import WordTokenizer
from minitransformer.errors import DataError
from minitransformer.settings import Config
from minitransformer.storage import MOST_TOKENIZER, read_own_file

Tokenizer = WordTokenizer | BpeTokenizer
KINDS: dict[str, type[WordTokenizer] | type[BpeTokenizer]] = {
    "words": WordTokenizer, "bpe": BpeTokenizer,
}  # fmt: skip


class PairTokenizer:
    """Both languages, and the markers that the model's settings ask for."""

    def __init__(self, source: Tokenizer, target: Tokenizer, config: Config) -> None:
        self.source = source
        self.target = target
        self.source_end = config.model.source_end
        self.start_id = {"eos": EOS_ID, "bos": BOS_ID}[config.model.start_token]

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
        return self.source.encode(text, end=self.source_end)

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
            content = read_own_file(path, MOST_TOKENIZER)
            return kind.from_bytes(content, config.tokenizer, str(path))

        source = read("source")
        return cls(source, source if config.tokenizer.joint else read("target"), config)

    def size_notes(self, config: Config) -> list[str]:
        """What to say when a vocabulary of pieces did not come out as large as it was asked for."""
        asked = config.tokenizer.max_size
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
                notes.append(f"tokenizer.max_size is {asked:,}, the vocabulary {size:,}: {why}")
        return notes
