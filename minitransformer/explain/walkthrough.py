"""One translation with every tensor that was computed, from the source to the last <EOS>."""

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
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.trace import record
from minitransformer.search import eval_mode, top_tokens
from minitransformer.translator import Translator

NUM_CANDIDATES = 5
NO_ATTENTION = "this model has no attention: it was built with model.attention: none"


class Candidate(NamedTuple):
    """A token that could have been produced."""

    id: int
    token: str
    probability: float


@dataclass(frozen=True)
class DecodingStep:
    """One produced token, with every stage that led to it."""

    number: int  # from 1
    fed_id: int  # the decoder input
    fed: str
    stages: list[Stage]
    head: HeadStage
    candidates: list[Candidate]  # the most probable ones, best first
    produced_id: int
    produced: str
    is_forced: bool
    expected: str = ""  # the reference's token at this position, if there is one
    # The change of its log-probability without each source word; None for what cannot be hidden.
    why: list[float | None] = field(default_factory=list)

    @property
    def probability(self) -> float:
        return float(self.head.probabilities[self.produced_id])

    @property
    def cross_attention(self) -> AttentionStage | None:
        """Return the last layer's cross-attention, if the model has attention."""
        attentions = [stage for stage in self.stages if isinstance(stage, AttentionStage)]
        return attentions[-1] if attentions else None


@dataclass(frozen=True)
class Walkthrough:
    """A translation with all of its values; `check()` in checking.py recomputes them."""

    model: EncoderDecoder
    tokenizer: PairTokenizer
    experiment: Experiment
    text: str
    source: list[str]  # a word that an experiment hides is in brackets
    source_ids: list[int]
    hidden: list[bool]
    expected: list[str]  # the reference's tokens, if there is one
    encoder: list[Stage]
    steps: list[DecodingStep]
    translation: str
    is_finished: bool

    @property
    def has_attention(self) -> bool:
        return self.steps[0].cross_attention is not None

    def stages(self) -> Iterator[tuple[int, Stage | HeadStage]]:
        """Yield every stage with the number of its decoding step; 0 is the encoder."""
        yield from ((0, stage) for stage in self.encoder)
        for step in self.steps:
            yield from ((step.number, stage) for stage in step.stages)
            yield step.number, step.head


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
    indices = translator.truncate(list(range(len(encoded.ids))))  # of tokens that the model reads
    hidden = [index + 1 in experiment.hidden for index in indices]
    if all(hidden[: len(indices) - tokenizer.source_eos]):
        raise DataError("every source word is hidden; leave one")
    tokens, ids = [encoded.tokens[n] for n in indices], [encoded.ids[n] for n in indices]
    tokens = [f"({token})" if hides else token for token, hides in zip(tokens, hidden, strict=True)]
    ids = [PAD_ID if hides else id for id, hides in zip(ids, hidden, strict=True)]
    model = changed_model(translator.model, experiment)
    with eval_mode(model):
        with record(model) as tensors:
            memory = model.encode(torch.tensor([ids], device=device_of(model)))
        labels = Labels(tokens, ids, tokens, tokens, memory.mask[0, 0])
        encoder = list(stages_of(model.encoder, "encoder", tensors, labels))

        # Greedy decoding, one recorded call per token; the first tokens may be forced.
        names = tokenizer.target.tokens
        expected_tokens = tokenizer.encode_target(expected).tokens if expected else []
        forced = forced_ids(tokenizer, experiment)
        cache = model.new_cache(memory)
        fed = [tokenizer.start_id]
        steps: list[DecodingStep] = []
        while len(steps) < translator.max_length and (not steps or fed[-1] != EOS_ID):
            last, index = fed[-1], len(steps)
            with record(model) as tensors:
                target = torch.tensor([[last]], device=memory.states.device)
                logits = model.decode(target, memory, cache)[0, 0]
            head = HeadStage(
                path="head",
                state=tensors["decoder.output"][0, 0].clone(),
                logits=logits,
                probabilities=logits.softmax(-1),
            )
            candidates = best_candidates(head.probabilities, names)
            is_forced = index < len(forced)
            produced = forced[index] if is_forced else candidates[0].id
            labels = replace(
                labels, tokens=[names[last]], ids=[last], earlier=[names[id] for id in fed]
            )
            step = DecodingStep(
                number=index + 1,
                fed_id=last,
                fed=names[last],
                stages=list(stages_of(model.decoder, "decoder", tensors, labels)),
                head=head,
                candidates=candidates,
                produced_id=produced,
                produced=names[produced],
                is_forced=is_forced,
                expected=expected_tokens[index] if index < len(expected_tokens) else "",
            )
            steps.append(step)
            fed.append(produced)
        changes = changes_without(model, ids, fed[:-1], fed[1:])
    return Walkthrough(
        model=model,
        tokenizer=tokenizer,
        experiment=experiment,
        text=text,
        source=tokens,
        source_ids=ids,
        hidden=hidden,
        expected=expected_tokens,
        encoder=encoder,
        steps=[replace(step, why=why) for step, why in zip(steps, changes, strict=True)],
        translation=tokenizer.target.decode(fed[1:]),
        is_finished=fed[-1] == EOS_ID,
    )


def forced_ids(tokenizer: PairTokenizer, experiment: Experiment) -> list[int]:
    """Return the tokens that an experiment forces the translation to begin with."""
    return tokenizer.target.encode(experiment.forced, end=False).ids if experiment.forced else []


def best_candidates(probabilities: Tensor, names: list[str]) -> list[Candidate]:
    """Return the most probable tokens, best first."""
    best, ids = top_tokens(probabilities[None].clone(), NUM_CANDIDATES)
    return [
        Candidate(id, names[id], probability)
        for id, probability in zip(ids[0].tolist(), best[0].tolist(), strict=True)
    ]
