"""Translation with a trained run: text in, text out.

B batch, S source.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

import torch
from torch.nn.utils.rnn import pad_sequence

from minitransformer.checkpoint import Checkpoint, refuse_other_settings, trained_model
from minitransformer.data.tokenizer import EOS, EOS_ID, PAD_ID, Encoded, PairTokenizer
from minitransformer.errors import UsageError, did_you_mean, printable_word
from minitransformer.model.base import EncoderDecoder, choose_device
from minitransformer.run import RunFolder, regular_checkpoints
from minitransformer.search import GREEDY_SEARCH, TokenScore, beam_search, greedy
from minitransformer.settings import Config

NUM_ALTERNATIVES = 3  # shown with each token's score
MAX_NAMED_UNKNOWN = 5


@dataclass(frozen=True)
class Translation:
    """A translated sentence, with its source and the score of each produced token."""

    source: Encoded
    text: str
    tokens: list[str]
    token_scores: list[TokenScore]
    num_truncated: int = 0  # source tokens beyond model.max_length
    score: float = 0.0  # log probability / length ** length penalty
    others: list["Translation"] = field(default_factory=list)  # of the beam, best first

    @property
    def is_finished(self) -> bool:
        """Return whether it ended in <EOS>, and was not truncated at model.max_length."""
        return not self.token_scores or self.token_scores[-1].id == EOS_ID


class Translator:
    """Translates text with a trained run."""

    def __init__(self, model: EncoderDecoder, tokenizer: PairTokenizer, config: Config) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = config.model.max_length
        self.search = GREEDY_SEARCH
        self.checkpoint = ""  # the name of the loaded step, or those of several
        self.data_fingerprint = ""  # of the training pairs

    @classmethod
    def load(
        cls,
        run: str | Path,
        *,
        device: str = "cpu",
        checkpoint: str | int | None = None,
        average: int | None = None,
    ) -> "Translator":
        """Load a run's weights: by default, those that its config selects.

        These are the mean of the last `evaluation.average_checkpoints` if that is more than one,
        else "best" if `evaluation.best_metric` is not none, else the last one. `checkpoint` is
        "last", "best" or the number of a step; `average` asks for the mean of so many.
        """
        folder = RunFolder(Path(run))
        config = folder.load_config()
        tokenizer = folder.load_tokenizer(config)
        checkpoints = load_checkpoints(folder, config, checkpoint, average)
        names = [each.path.name for each in checkpoints]
        for each in checkpoints:
            refuse_other_settings(each.settings, each.path.name, config, folder.path)
        weights = {str(each.path): each.model for each in checkpoints}
        model = trained_model(config, tokenizer, weights)
        translator = cls(model.to(choose_device(device)).eval(), tokenizer, config)
        translator.checkpoint = names[0]
        if len(names) > 1:
            translator.checkpoint = f"mean of {len(names)}, {names[-1]} to {names[0]}"
        translator.data_fingerprint = checkpoints[0].state.data_fingerprint
        return translator

    def __call__(self, text: str) -> str:
        """Translate one sentence."""
        return self.translate([text])[0].text

    def translate(
        self, texts: Iterable[str], *, batch_size: int = 64, alternatives: int = 0
    ) -> list[Translation]:
        """Translate sentences; those of similar length are decoded together."""
        sources = [self.tokenizer.encode_source(text) for text in texts]
        translations = [Translation(source, "", [], []) for source in sources]  # of empty ones
        by_length = sorted(range(len(sources)), key=lambda index: len(sources[index].ids))
        filled = [index for index in by_length if sources[index].words]
        count = self.search.num_sentences(batch_size)
        for start in range(0, len(filled), count):
            indices = filled[start : start + count]
            decoded = self.decode([sources[index] for index in indices], alternatives)
            for index, translation in zip(indices, decoded, strict=True):
                translations[index] = translation
        return translations

    def decode(self, sources: list[Encoded], alternatives: int) -> list[Translation]:
        """Translate one batch."""
        rows = [self.truncate(source.ids) for source in sources]
        ids = pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=PAD_ID)
        source_ids = ids.to(next(self.model.parameters()).device)  # [B, S]
        start_id, max_lengths = self.tokenizer.start_id, [self.max_length] * len(rows)
        penalty = self.search.length_penalty
        candidates: list[list[tuple[list[TokenScore], float]]]  # of each row, with their scores
        if self.search.beam == 1:
            produced = greedy(
                self.model, source_ids, start_id=start_id, max_lengths=max_lengths,
                alternatives=alternatives,
            )  # fmt: skip
            candidates = [[(row, log_probability(row) / len(row) ** penalty)] for row in produced]
        else:
            beams = beam_search(
                self.model, source_ids, start_id=start_id, max_lengths=max_lengths,
                width=self.search.beam, length_penalty=penalty,
            )  # fmt: skip
            candidates = [
                [(each.token_scores, each.score(penalty)) for each in beam] for beam in beams
            ]
        target = self.tokenizer.target
        translations = []
        for source, row, scored in zip(sources, rows, candidates, strict=True):
            best, *others = (
                Translation(
                    source,
                    target.decode(each.id for each in token_scores),
                    [target.tokens[each.id] for each in token_scores],
                    token_scores,
                    len(source.ids) - len(row),
                    score,
                )
                for token_scores, score in scored
            )
            translations.append(replace(best, others=others))
        return translations

    def truncate(self, ids: list[int]) -> list[int]:
        """Truncate a source to model.max_length, keeping its end marker."""
        if len(ids) <= self.max_length:
            return ids
        end = ids[-1:] if self.tokenizer.source_eos else []
        return ids[: self.max_length - len(end)] + end


def load_checkpoints(
    folder: RunFolder, config: Config, checkpoint: str | int | None, average: int | None
) -> list[Checkpoint]:
    """Read the checkpoints to translate with, newest first; warn where some are missing."""
    if not isinstance(checkpoint, int) and checkpoint not in (None, "last", "best"):
        raise UsageError(f"checkpoint {checkpoint!r}: choose last, best or a step's number")
    if average is not None and (average < 1 or checkpoint is not None):
        raise UsageError(f"average={average}: must be at least 1, and does not go with checkpoint")
    if isinstance(checkpoint, int):
        return [folder.load(checkpoint, for_training=False)]
    count = average or (config.evaluation.average_checkpoints if checkpoint is None else 1)
    selects = config.evaluation.best_metric != "none"
    takes_best = selects and (checkpoint, average, count) == (None, None, 1)
    if checkpoint == "best" or (takes_best and folder.best_step is not None):
        return [folder.load_best()]
    steps = folder.steps()
    if count > 1:  # a checkpoint saved on a signal, between scheduled ones, would change the mean
        # After the last `keep_checkpoints`, there may be an older one that is kept as the best.
        steps = regular_checkpoints(steps, config)[: config.training.keep_checkpoints] or steps[:1]
    complaints: list[str] = []
    found = folder.load_last(count, complaints, for_training=False, among=steps)
    if len(found) < count and not complaints:
        complaints.append(
            f"{folder.path} has only {len(found)} of the {count} checkpoints to be averaged "
            "(training.keep_checkpoints says how many are kept)"
        )
    for complaint in complaints:
        names = ", ".join(each.path.name for each in found)
        print(f"warning: {complaint}; using {names}", file=sys.stderr)
    return found


def log_probability(token_scores: list[TokenScore]) -> float:
    """Return the log probability of a whole translation."""
    # <PAD> and <BOS>, which are never produced, may have all of the probability.
    return sum(math.log(max(each.probability, sys.float_info.min)) for each in token_scores)


def translate_lines(
    translator: Translator,
    lines: Iterable[str],
    output: TextIO,
    *,
    scores: bool = False,
    n_best: int | None = None,
    batch_size: int = 1,
) -> None:
    """Translate lines as they arrive, `batch_size` at a time, and write each batch at once.

    With `n_best`, write up to so many lines for each: the number of its input line, text, score.
    """
    lines = iter(lines)
    number = 0
    alternatives = NUM_ALTERNATIVES if scores else 0
    while batch := list(islice(lines, batch_size)):
        for translation in translator.translate(batch, alternatives=alternatives):
            number += 1
            for warning in translation_warnings(translation, translator):
                print(f"line {number}: {warning}", file=sys.stderr, flush=True)
            for each in [translation, *translation.others][: n_best or 1]:
                fields = [each.text]
                if n_best:
                    fields = [str(number), each.text, f"{each.score:.4f}"]
                if scores:
                    fields += format_token_scores(each, translator)
                output.write("\t".join(fields) + "\n")
            output.flush()


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield lines ended by \\n alone as they arrive; bytes that are not UTF-8 become U+FFFD."""
    for number, line in enumerate(stream, start=1):
        text = line.removesuffix(b"\n").decode("utf-8", errors="replace")
        if number == 1:
            text = text.removeprefix("\ufeff")
        yield text


def translation_warnings(translation: Translation, translator: Translator) -> list[str]:
    """Return warnings about unknown words and truncation."""
    vocabulary = translator.tokenizer.source
    name, unknown = vocabulary.unknown_name, translation.source.unknown
    warnings = [
        f"unknown {name} '{printable_word(word)}'{did_you_mean(word, vocabulary.ids)}"
        for word in unknown[:MAX_NAMED_UNKNOWN]
    ]
    if len(unknown) > MAX_NAMED_UNKNOWN:
        warnings.append(f"and {len(unknown) - MAX_NAMED_UNKNOWN} more unknown {name}s")
    return warnings + length_warnings(
        len(translation.source.ids),
        translation.num_truncated,
        len(translation.tokens),
        is_finished=translation.is_finished,
    )


def length_warnings(
    num_tokens: int, num_truncated: int, num_produced: int, *, is_finished: bool
) -> list[str]:
    """Return warnings about the truncation of a source and of its translation."""
    warnings = []
    if num_truncated:
        taken = f"{num_tokens} tokens, the model takes {num_tokens - num_truncated}"
        warnings.append(f"{taken}; the last {num_truncated} were left out")
    if not is_finished:
        warnings.append(f"no {EOS} within {num_produced} tokens; truncated")
    return warnings


def format_token_scores(translation: Translation, translator: Translator) -> list[str]:
    """Return each produced token with its probability and the next most probable tokens."""
    names = translator.tokenizer.target.tokens
    fields = []
    for token, score in zip(translation.tokens, translation.token_scores, strict=True):
        alternatives = ", ".join(f"{names[id]} {value:.4f}" for id, value in score.alternatives)
        fields.append(
            f"{token} {score.probability:.4f}" + f" ({alternatives})" * bool(alternatives)
        )
    return fields
