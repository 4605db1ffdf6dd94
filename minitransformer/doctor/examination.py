"""A model examined: all checks that take a moment, for a report or before a training begins."""

from minitransformer.data.encoding import EncodedPair
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.doctor.decoding_checks import cached_as_uncached, same_twice
from minitransformer.doctor.findings import FAILED, WARNING, Finding
from minitransformer.doctor.learning_checks import finite_everywhere, start_loss
from minitransformer.doctor.model_checks import (
    attention_rows,
    decoder_input,
    no_look_ahead,
    no_neighbours,
    word_order,
)
from minitransformer.doctor.patient import Patient, few_pairs, padded_batch, with_more_digits
from minitransformer.errors import ModelError
from minitransformer.model.base import EncoderDecoder
from minitransformer.settings import Config
from minitransformer.training.trainer import Trainer

# Where several fail, the first says best what is wrong.
CHECKS = (
    decoder_input,
    finite_everywhere,
    attention_rows,
    no_look_ahead,
    no_neighbours,
    word_order,
    cached_as_uncached,
    same_twice,
)
SUMMED_OTHERWISE = (no_neighbours, cached_as_uncached)  # the same numbers, in another order


def new_patient(
    model: EncoderDecoder, pairs: list[EncodedPair], tokenizer: PairTokenizer, config: Config
) -> Patient:
    """A model with a batch of these pairs, where the model is."""
    batch = padded_batch(pairs, tokenizer.start_id, config.model.max_length)
    device = next(model.parameters()).device
    return Patient(model, batch.to(device), tokenizer.start_id, config)


def quick_checks(patient: Patient, *, is_fresh: bool) -> list[Finding]:
    """Everything that can be measured without training; leaves the model as it was."""
    findings = [check(patient) for check in CHECKS]
    for place, check in enumerate(CHECKS):
        if check in SUMMED_OTHERWISE and findings[place].verdict == FAILED:
            in_float64, kind = check(with_more_digits(patient)), patient.config.model.kind
            findings[place] = unless_rounded(findings[place], in_float64, kind)
    return [*findings, start_loss(patient)] if is_fresh else findings


def unless_rounded(finding: Finding, in_float64: Finding, kind: str) -> Finding:
    """A failure that more digits make go away is not a mistake in the model."""
    if in_float64.verdict == FAILED:
        return finding
    return Finding(
        finding.name,
        WARNING,
        f"{finding.measured}, in float32 alone",
        "scores or logits are so large that few digits are left: model.embedding_std, "
        f"model.scale_scores{', model.norm' * (kind == 'transformer')}?",
    )


def examine_before_training(trainer: Trainer) -> None:
    """Refuse to train a model that a check finds broken; warnings become notes of the run.

    Of several processes the first one looks, and nothing is exchanged meanwhile.
    """
    if trainer.is_finished or not trainer.ranks.is_first:
        return
    pairs = few_pairs(trainer.encoded["train"])
    patient = new_patient(trainer.model, pairs, trainer.tokenizer, trainer.config)
    is_fresh = trainer.state.step == 0 and not trainer.config.training.start_from
    findings = quick_checks(patient, is_fresh=is_fresh)
    for finding in findings:
        if finding.verdict == FAILED:
            raise ModelError(f"the model fails a check; {finding.sentence()}")
    trainer.notes += [each.sentence() for each in findings if each.verdict == WARNING]
