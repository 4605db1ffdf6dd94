"""One translation, watched: every tensor that was computed, from the source to the last <EOS>."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from minitransformer.data.tokenizer import EOS_ID, PAD_ID, PairTokenizer
from minitransformer.errors import DataError
from minitransformer.explain.interventions import (
    NOTHING,
    Experiment,
    changed_model,
    changes_without,
    device_of,
)
from minitransformer.explain.stages import AttentionStage, HeadStage, Labels, Stage, stages_of
from minitransformer.model.base import EncoderDecoder, Memory
from minitransformer.model.trace import record
from minitransformer.search import eval_mode, top_tokens
from minitransformer.translator import Translator


class Candidate(NamedTuple):
    """A token that could have been produced."""

    id: int
    token: str
    probability: float


@dataclass(frozen=True)
class DecodingStep:
    """One produced token, with everything that led to it."""

    number: int  # from 1
    fed_id: int
    fed: str
    stages: list[Stage]
    head: HeadStage
    candidates: list[Candidate]  # the most probable ones, best first
    produced_id: int
    produced: str
    is_forced: bool
    expected: str = ""  # what a reference has here, if there is one
    # The change of its log-probability without each source word; None for what cannot be taken out.
    why: list[float | None] = field(default_factory=list)

    @property
    def probability(self) -> float:
        return float(self.head.probabilities[self.produced_id])

    @property
    def cross_attention(self) -> AttentionStage | None:
        """The last layer's look at the source, if the model has attention."""
        found = [each for each in self.stages if isinstance(each, AttentionStage)]
        return found[-1] if found else None


@dataclass(frozen=True)
class Walkthrough:
    """A translation with every value of it; `check()` in checking.py recomputes them all."""

    model: EncoderDecoder
    tokenizer: PairTokenizer
    experiment: Experiment
    text: str
    source: list[str]  # a word that an experiment has taken out stands in brackets
    source_ids: list[int]
    hidden: list[bool]
    expected: list[str]  # a reference's tokens, if there is one
    encoder: list[Stage]
    steps: list[DecodingStep]
    translation: str
    is_finished: bool

    @property
    def has_attention(self) -> bool:
        return self.steps[0].cross_attention is not None

    def stages(self) -> Iterator[tuple[int, Stage]]:
        """Every stage with the number of its decoding step; 0 is the encoder."""
        for stage in self.encoder:
            yield 0, stage
        for step in self.steps:
            for stage in (*step.stages, step.head):
                yield step.number, stage


NUM_CANDIDATES = 5
NO_ATTENTION = "this model looks at nothing: it was built with model.attention: none"


@torch.no_grad()
def walk_through(
    translator: Translator,
    text: str,
    *,
    expected: str = "",
    experiment: Experiment = NOTHING,
) -> Walkthrough:
    """Translate a sentence greedily and keep every value."""
    tokenizer = translator.tokenizer
    encoded = tokenizer.encode_source(text)
    if not encoded.words:
        raise DataError("there is no word to walk through")
    places = translator.truncate(list(range(len(encoded.ids))))  # those that the model takes
    hidden = [place + 1 in experiment.hidden for place in places]
    if all(hidden[: len(places) - tokenizer.source_eos]):
        raise DataError("every source word is hidden; leave one")
    tokens = [encoded.tokens[place] for place in places]
    source = [f"({token})" if hidden[n] else token for n, token in enumerate(tokens)]
    ids = [PAD_ID if hidden[n] else encoded.ids[place] for n, place in enumerate(places)]
    model = changed_model(translator.model, experiment)
    with eval_mode(model):
        with record(model) as tensors:
            memory = model.encode(torch.tensor([ids], device=device_of(model)))
        labels = Labels(source, ids, source, source, memory.mask[0, 0])
        expected_tokens = tokenizer.encode_target(expected).tokens if expected else []
        forced = forced_ids(tokenizer, experiment)
        steps = decode(translator, model, memory, labels, forced, expected_tokens)
        fed, produced = [each.fed_id for each in steps], [each.produced_id for each in steps]
        reasons = changes_without(model, ids, fed, produced)
    return Walkthrough(
        model=model,
        tokenizer=tokenizer,
        experiment=experiment,
        text=text,
        source=source,
        source_ids=ids,
        hidden=hidden,
        expected=expected_tokens,
        encoder=list(stages_of(model.encoder, "encoder", tensors, labels)),
        steps=[replace(step, why=why) for step, why in zip(steps, reasons, strict=True)],
        translation=tokenizer.target.decode(produced),
        is_finished=produced[-1] == EOS_ID,
    )


def forced_ids(tokenizer: PairTokenizer, experiment: Experiment) -> list[int]:
    """The tokens with which an experiment makes a translation begin."""
    return tokenizer.target.encode(experiment.forced, end=False).ids if experiment.forced else []


def decode(
    translator: Translator,
    model: EncoderDecoder,
    memory: Memory,
    source: Labels,
    forced: list[int],
    reference: list[str],
) -> list[DecodingStep]:
    """Greedy decoding, one recorded call per token; the first tokens may be forced."""
    names = translator.tokenizer.target.tokens
    cache = model.new_cache(memory)
    fed = [translator.tokenizer.start_id]
    steps: list[DecodingStep] = []
    while len(steps) < translator.max_length and (not steps or fed[-1] != EOS_ID):
        last = fed[-1]
        with record(model) as tensors:
            logits = model.decode(
                torch.tensor([[last]], device=memory.states.device), memory, cache
            )
        labels = replace(
            source, tokens=[names[last]], ids=[last], earlier=[names[id] for id in fed]
        )
        head = HeadStage(
            path="head",
            state=tensors["decoder.output"][0, 0].clone(),
            logits=logits[0, 0],
            probabilities=logits[0, 0].softmax(-1),
        )
        candidates = best_candidates(head.probabilities, names)
        is_forced = len(steps) < len(forced)
        choice = forced[len(steps)] if is_forced else candidates[0].id
        steps.append(
            DecodingStep(
                number=len(steps) + 1,
                fed_id=last,
                fed=names[last],
                stages=list(stages_of(model.decoder, "decoder", tensors, labels)),
                head=head,
                candidates=candidates,
                produced_id=choice,
                produced=names[choice],
                is_forced=is_forced,
                expected=reference[len(steps)] if len(steps) < len(reference) else "",
            )
        )
        fed.append(choice)
    return steps


def best_candidates(probabilities: Tensor, names: list[str]) -> list[Candidate]:
    """The most probable tokens by name."""
    best, ids = top_tokens(probabilities[None].clone(), NUM_CANDIDATES)
    return [
        Candidate(id, names[id], probability)
        for id, probability in zip(ids[0].tolist(), best[0].tolist(), strict=True)
    ]
