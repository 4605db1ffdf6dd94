"""A walk-through checks itself: each value is recomputed from the values and weights before it.

T tokens of this call, S tokens that are looked at, H heads, D d_model, K d_head.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from minitransformer.data.tokens import EOS_ID, PAD_ID
from minitransformer.errors import UserError
from minitransformer.explain.reasons import changes_without
from minitransformer.explain.stages import (
    AttentionStage,
    EmbeddingStage,
    FeedForwardStage,
    HeadStage,
    NormStage,
    ResidualStage,
    Stage,
)
from minitransformer.explain.walkthrough import Walkthrough, best_candidates, forced_ids
from minitransformer.model.attention import dot_scores, hide, merge_heads, split_heads
from minitransformer.model.embedding import Embedding
from minitransformer.model.layers import FeedForward, MultiHeadAttention
from minitransformer.model.positional import rotate
from minitransformer.model.transformer import Transformer

# float32 sums in another order: of the value itself, and of the largest one beside it
TOLERANCE, BESIDE = 1e-5, 1e-6


class Mismatch(UserError):
    """A recorded value is not what the values and weights before it give."""


def check(walk: Walkthrough) -> int:
    """Recompute every value; returns how many, or fails naming the first that differs.

    Weights that this translation does not use, such as other words' embeddings, are not seen.
    """
    count = 0
    for step, name, recorded, again in recomputed(walk):
        place = "encoder" if step == 0 else f"decoding step {step}"
        if recorded.shape != again.shape:
            raise Mismatch(f"{place}: {name} is {shape(recorded)}, recomputed {shape(again)}")
        recorded, again = (each.detach().cpu().double() for each in (recorded, again))
        if not again.isfinite().all():
            raise Mismatch(f"{place}: {name}: the numbers are too large to be numbers any more")
        largest = again.abs().max() if again.numel() else 0.0
        wrong = ~((recorded - again).abs() <= TOLERANCE * again.abs() + BESIDE * largest)
        if wrong.any():
            at = wrong.nonzero()[0].tolist()
            raise Mismatch(
                f"{place}: {name}{at} is {float(recorded[*at]):.6g}, "
                f"recomputed {float(again[*at]):.6g}"
            )
        count += recorded.numel()
    check_words(walk)
    return count


def shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


@torch.no_grad()
def recomputed(walk: Walkthrough) -> Iterator[tuple[int, str, Tensor, Tensor]]:
    """Each recorded value with its step, its name, and what comes out when it is computed again."""
    checker = Checker(walk.model, walk.source_ids)
    for step, stage in walk.stages():
        for name, recorded, again in checker.stage(step, stage):
            yield step, f"{stage.path}.{name}", recorded, again
    for step, name, told, found in recomputed_choices(walk):
        yield step, name, torch.tensor(told), torch.tensor(found)


def recomputed_choices(walk: Walkthrough) -> Iterator[tuple[int, str, list[float], list[float]]]:
    """What was made of the probabilities: candidates, the choice, what is fed next, the reasons."""
    fed, produced = [step.fed_id for step in walk.steps], [step.produced_id for step in walk.steps]
    forced = forced_ids(walk.tokenizer, walk.experiment)
    reasons = changes_without(walk.model, walk.source_ids, fed, produced)
    yield 0, "ids", list(walk.source_ids), ids_of(walk.encoder)
    for place, (step, changes) in enumerate(zip(walk.steps, reasons, strict=True)):
        best = best_candidates(step.head.probabilities, walk.tokenizer.target.tokens)
        for field in ("id", "probability"):
            told = [getattr(each, field) for each in step.candidates]
            yield step.number, f"candidates.{field}", told, [getattr(each, field) for each in best]
        choice = forced[place] if place < len(forced) else best[0].id
        yield step.number, "produced", [step.produced_id], [choice]
        before = produced[place - 1] if place else walk.tokenizer.start_id
        yield step.number, "fed", [step.fed_id, *ids_of(step.stages)], [before, before]
        yield step.number, "why", filled(step.why), filled(changes)


def ids_of(stages: list[Stage]) -> list[float]:
    return [id for stage in stages if isinstance(stage, EmbeddingStage) for id in stage.ids]


def filled(values: list[float | None]) -> list[float]:
    """Changes, followed by whether there is one."""
    known = [value is not None for value in values]
    return [0.0 if value is None else value for value in values] + [float(each) for each in known]


def check_words(walk: Walkthrough) -> None:
    """Every word that stands beside a number is the one that the number belongs to."""
    names = walk.tokenizer.target.tokens
    fed = [names[step.fed_id] for step in walk.steps]
    produced = [step.produced_id for step in walk.steps]
    told = {
        "hidden": (walk.hidden, [id == PAD_ID for id in walk.source_ids]),
        "translation": (walk.translation, walk.tokenizer.target.decode(produced)),
        "is_finished": (walk.is_finished, produced[-1] == EOS_ID),
        "end": (EOS_ID in produced[:-1], False),
    }
    for number, stage in walk.stages():
        tokens = walk.source if number == 0 else [fed[number - 1]]
        seen = walk.source if number == 0 else fed[:number]
        for field, expected in (("tokens", tokens), ("queries", tokens), ("keys", seen)):
            if field == "keys" and getattr(stage, "look", "") == "cross-attention":
                expected = walk.source
            words = getattr(stage, field, expected)
            told[f"decoding step {number}: {stage.path}.{field}"] = (words, expected)
    for step in walk.steps:
        place = f"decoding step {step.number}: "
        told[f"{place}fed"] = (step.fed, names[step.fed_id])
        told[f"{place}produced"] = (step.produced, names[step.produced_id])
        words = [each.token for each in step.candidates]
        told[f"{place}candidates.token"] = (words, [names[each.id] for each in step.candidates])
        forced = len(forced_ids(walk.tokenizer, walk.experiment))
        told[f"{place}is_forced"] = (step.is_forced, step.number <= forced)
        expected = walk.expected[step.number - 1 : step.number]
        told[f"{place}expected"] = ([step.expected] if step.expected else [], expected)
    for name, (found, right) in told.items():
        if found != right:
            raise Mismatch(f"{name} is {found!r}, not {right!r}")


Again = Iterator[tuple[str, Tensor, Tensor]]


class Checker:
    """Goes from stage to stage and carries what later ones are made of."""

    def __init__(self, model: Transformer, source_ids: list[int]) -> None:
        self.model = model
        self.source_mask = torch.tensor([id != PAD_ID for id in source_ids])
        self.stream = torch.empty(0)  # the line everything adds to: [T, D]
        self.block_input = torch.empty(0)  # what a block reads: the stream, or its norm: [T, D]
        self.update = torch.empty(0)  # what the last block found: [T, D]
        self.memory = torch.empty(0)  # [S, D]
        self.earlier: dict[str, tuple[Tensor, Tensor]] = {}  # keys and values of earlier tokens

    def stage(self, step: int, stage: Stage) -> Again:
        match stage:
            case EmbeddingStage():
                if step == 1:
                    self.memory = self.stream
                yield from self.embedding(step, stage)
            case NormStage():
                yield from self.norm(stage)
            case AttentionStage():
                yield from self.attention(step, stage)
            case FeedForwardStage():
                yield from self.feed_forward(stage)
            case ResidualStage():
                yield "states", stage.states, self.stream
                yield "update", stage.update, self.update
                yield "total", stage.total, stage.states + stage.update
                self.stream = self.block_input = stage.total
            case HeadStage():
                yield "state", stage.state, self.stream[0]
                yield "logits", stage.logits, self.model.head(stage.state)
                yield "probabilities", stage.probabilities, stage.logits.softmax(-1)

    def embedding(self, step: int, stage: EmbeddingStage) -> Again:
        embedding = self.model.get_submodule(stage.path)
        assert isinstance(embedding, Embedding)
        ids = torch.tensor(stage.ids, device=stage.vectors.device)
        yield (
            "vectors",
            stage.vectors,
            functional.embedding(ids, embedding.weight) * embedding.scale,
        )
        if stage.positions is None:
            yield "output", stage.output, stage.vectors
        else:
            assert embedding.positions is not None
            start = max(step - 1, 0)
            again = embedding.positions(start, start + len(stage.ids))
            yield "positions", stage.positions, again
            yield "output", stage.output, stage.vectors + stage.positions
        self.stream = self.block_input = stage.output

    def norm(self, stage: NormStage) -> Again:
        yield "before", stage.before, self.stream
        yield "after", stage.after, self.model.get_submodule(stage.path)(stage.before)
        self.block_input = stage.after
        if not stage.path.endswith("pre_norm"):
            self.stream = stage.after

    def attention(self, step: int, stage: AttentionStage) -> Again:
        attention = self.model.get_submodule(stage.path)
        assert isinstance(attention, MultiHeadAttention)
        is_cross = stage.look == "cross-attention"

        def heads(linear: nn.Module, states: Tensor) -> Tensor:
            return split_heads(linear(states)[None], attention.num_heads)  # [1, H, T, K]

        places = torch.arange(len(stage.queries)) + max(step - 1, 0)
        turns = self.model.rotary and not is_cross

        def turned(states: Tensor) -> Tensor:
            return (rotate(states, places.to(states.device)) if turns else states)[0]

        yield "query", stage.query, turned(heads(attention.query, self.block_input))
        read = self.memory if is_cross else self.block_input
        key, value = heads(attention.key, read), heads(attention.value, read)[0]
        key = key[0] if is_cross else turned(key)
        if step > 1 and not is_cross:
            before = self.earlier[stage.path]
            key, value = torch.cat((before[0], key), 1), torch.cat((before[1], value), 1)
        yield "key", stage.key, key
        yield "value", stage.value, value
        if not is_cross:
            self.earlier[stage.path] = stage.key, stage.value
        is_encoder = step == 0 or is_cross
        mask = self.source_mask if is_encoder else torch.ones(len(stage.keys), dtype=torch.bool)
        yield "allowed", stage.allowed, mask.to(stage.allowed.device).expand(stage.allowed.shape)
        yield "scores", stage.scores, dot_scores(stage.query, stage.key)
        width = stage.query.shape[-1] if attention.scale_scores else 1
        yield "scaled", stage.scaled, stage.scores / width**0.5
        yield "weights", stage.weights, hide(stage.scaled, stage.allowed).softmax(-1)
        yield "context", stage.context, stage.weights @ stage.value
        merged = merge_heads(stage.context[None])[0]  # [T, D]
        yield "output", stage.output, attention.output(merged) if attention.output else merged
        self.update = stage.output

    def feed_forward(self, stage: FeedForwardStage) -> Again:
        block = self.model.get_submodule(stage.path)
        assert isinstance(block, FeedForward)
        yield "widened", stage.widened, block.widen(self.block_input)
        yield "hidden", stage.hidden, block.activation(stage.widened)
        yield "output", stage.output, block.narrow(stage.hidden)
        self.update = stage.output
