"""Translation with a trained run: text in, text out."""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from minitransformer.beam import beam_search
from minitransformer.checkpoint import RunFolder
from minitransformer.data.batching import pad
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.data.tokens import EOS_ID, Encoded
from minitransformer.device import choose_device
from minitransformer.errors import UsageError
from minitransformer.kept_steps import planned
from minitransformer.model.base import EncoderDecoder
from minitransformer.saved_step import refuse_other_settings
from minitransformer.search import GREEDY, Choice, greedy
from minitransformer.settings import Config
from minitransformer.weights import trained_model


@dataclass(frozen=True)
class Translation:
    """A translated sentence, with what was read and each choice that was made."""

    source: Encoded
    text: str
    tokens: list[str]
    choices: list[Choice]
    left_out: int = 0  # source tokens beyond the model's longest sentence
    score: float = 0.0  # log probability / length ** length penalty
    others: list["Translation"] = field(default_factory=list)  # of the beam, best first

    @property
    def is_finished(self) -> bool:
        """Did it come to its own end, and not to the longest that a translation may be?"""
        return not self.choices or self.choices[-1].id == EOS_ID


class Translator:
    """Translates text with a trained run."""

    def __init__(self, model: EncoderDecoder, tokenizer: PairTokenizer, config: Config) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = config.model.max_length
        self.search = GREEDY
        self.checkpoint = ""  # what it was loaded from: a step's name, or those of several
        self.data_fingerprint = ""  # of the pairs that it was trained with

    @classmethod
    def load(
        cls,
        run: str | Path,
        *,
        device: str = "cpu",
        checkpoint: str | int | None = None,
        average: int | None = None,
    ) -> "Translator":
        """Load a run's weights: those that its config says are the ones to translate with.

        These are the mean of the last `evaluation.average` checkpoints where that is more than one,
        else "best" where `evaluation.best_metric` selects it, else the last one. `checkpoint` asks
        for "last", "best" or a step by its number, `average` for the mean of so many.
        """
        folder = RunFolder(Path(run))
        config = folder.load_config()
        tokenizer = folder.load_tokenizer(config)
        if not isinstance(checkpoint, int) and checkpoint not in (None, "last", "best"):
            raise UsageError(f"checkpoint {checkpoint!r}: choose last, best or a step's number")
        if average is not None and (average < 1 or checkpoint is not None):
            raise UsageError(f"average {average}: at least 1, and not together with a checkpoint")
        count = average or (config.evaluation.average if checkpoint is None else 1)
        selects = config.evaluation.best_metric != "none"
        takes_best = selects and (checkpoint, average, count) == (None, None, 1)
        complaints: list[str] = []
        if isinstance(checkpoint, int):
            saved = [folder.load(checkpoint, for_training=False)]
        elif checkpoint == "best" or (takes_best and folder.best_step is not None):
            saved = [folder.load_best()]
        else:
            among = folder.steps()
            if count > 1:  # those that a signal left in between would make another mean
                # Behind those that are kept for being the last, an old best one may stand.
                among = planned(among, config)[: config.training.keep_checkpoints] or among[:1]
            saved = folder.load_last(count, complaints, for_training=False, among=among)
        names = [each.path.name for each in saved]
        if len(saved) < count and not complaints:
            complaints.append(
                f"{run} has only {len(saved)} of the {count} checkpoints to be averaged "
                "(training.keep_checkpoints says how many are kept)"
            )
        for complaint in complaints:
            print(f"warning: {complaint}; using {', '.join(names)}", file=sys.stderr)
        for each in saved:
            refuse_other_settings(each.settings, each.path.name, config, folder.path)
        model = trained_model(config, tokenizer, {str(each.path): each.model for each in saved})
        translator = cls(model.to(choose_device(device)).eval(), tokenizer, config)
        translator.checkpoint = names[0]
        if len(saved) > 1:
            translator.checkpoint = f"mean of {len(saved)}, {names[-1]} to {names[0]}"
        translator.data_fingerprint = saved[0].state.data_fingerprint
        return translator

    def __call__(self, text: str) -> str:
        """Translate one sentence."""
        return self.translate([text])[0].text

    def translate(
        self, texts: Iterable[str], *, batch_size: int = 64, runners_up: int = 0
    ) -> list[Translation]:
        """Translate sentences in order; similar lengths are decoded together."""
        sources = [self.tokenizer.encode_source(text) for text in texts]
        translations: dict[int, Translation] = {}
        places = sorted(range(len(sources)), key=lambda place: len(sources[place].ids))
        for place in places:
            if not sources[place].words:  # nothing in, nothing out
                translations[place] = Translation(sources[place], "", [], [])
        places = [place for place in places if place not in translations]
        count = self.search.sentences_at_a_time(batch_size)
        for start in range(0, len(places), count):
            chosen = places[start : start + count]
            decoded = self.decode([sources[place] for place in chosen], runners_up)
            translations.update(zip(chosen, decoded, strict=True))
        return [translations[place] for place in range(len(sources))]

    def decode(self, sources: list[Encoded], runners_up: int) -> list[Translation]:
        rows = [self.fit(source.ids) for source in sources]
        device = next(self.model.parameters()).device
        source = pad(rows).to(device)
        start_id, limits = self.tokenizer.start_id, [self.max_length] * len(rows)
        penalty = self.search.length_penalty
        if self.search.beam == 1:
            produced = [
                [(choices, log_probability(choices) / len(choices) ** penalty)]
                for choices in greedy(
                    self.model, source, start_id=start_id, limits=limits, runners_up=runners_up
                )
            ]
        else:
            found = beam_search(
                self.model, source, start_id=start_id, limits=limits,
                width=self.search.beam, length_penalty=penalty,
            )  # fmt: skip
            produced = [[(each.choices, each.score(penalty)) for each in beam] for beam in found]
        return [
            self.translation(source, len(source.ids) - len(row), candidates)
            for source, row, candidates in zip(sources, rows, produced, strict=True)
        ]

    def translation(
        self, source: Encoded, left_out: int, candidates: list[tuple[list[Choice], float]]
    ) -> Translation:
        """The first of the candidates, and with it the others; each has a score."""
        target = self.tokenizer.target
        best, *others = (
            Translation(
                source,
                target.decode(choice.id for choice in choices),
                [target.tokens[choice.id] for choice in choices],
                choices,
                left_out,
                score,
            )
            for choices, score in candidates
        )
        return replace(best, others=others)

    def fit(self, ids: list[int]) -> list[int]:
        """Cut a sentence that is longer than the model takes, keeping its end marker."""
        if len(ids) <= self.max_length:
            return ids
        end = ids[-1:] if self.tokenizer.source_end else []
        return ids[: self.max_length - len(end)] + end


def log_probability(choices: list[Choice]) -> float:
    # A token that may not be produced can have all of the probability.
    return sum(math.log(max(choice.probability, sys.float_info.min)) for choice in choices)
