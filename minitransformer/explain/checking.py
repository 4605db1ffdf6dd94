"""A walk-through checks itself: every value is computed again from the values before it."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from minitransformer.data.tokenizer import EOS_ID, PAD_ID
from minitransformer.errors import UserError
from minitransformer.explain.interventions import changes_without
from minitransformer.explain.stages import (
    AttentionStage,
    EmbeddingStage,
    FeedForwardStage,
    GruStage,
    HeadStage,
    JoinedStage,
    LstmStage,
    NarrowedStage,
    NormStage,
    ResidualStage,
    Stage,
)
from minitransformer.explain.walkthrough import Walkthrough, best_candidates, forced_ids
from minitransformer.model.attention import apply_mask, dot_scores, merge_heads, split_heads
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.positional import rotate
from minitransformer.model.recurrent import Recurrence, SourceAttention, State
from minitransformer.model.transformer import Embedding, FeedForward, MultiHeadAttention

Again = Iterator[tuple[str, Tensor, Tensor]]  # a name, what was recorded, what it comes to
Values = Iterator[tuple[str, Tensor]]


class StateRecomputation:
    """Goes from word to word and carries the state of every layer."""

    def __init__(self, model: EncoderDecoder, source_mask: Tensor) -> None:
        self.model = model
        self.source_mask = source_mask
        self.carried: dict[str, State] = {}  # what a layer of the decoder goes on from
        self.states: list[Tensor] = []  # of the ways of an encoder's layer: [T, W]

    def stage(self, stage: GruStage | LstmStage, inputs: Tensor) -> Again:
        layer = self.model.get_submodule(stage.path)
        assert isinstance(layer, Recurrence)
        side, _, number, *_ = stage.path.split(".")
        own, is_encoder = f"decoder.layers.{number}", side == "encoder"
        known = self.source_mask if is_encoder else torch.ones(1, dtype=torch.bool)
        yield "is_read", stage.is_read, known.to(stage.is_read.device)
        state = (
            layer.initial_state(inputs[:1]) if is_encoder else self.carried[own]
        )  # each part [1, W]
        places = range(len(inputs))
        for place in reversed(places) if stage.is_backward else places:
            word = tensors_of(stage, place)
            from_word, from_state = (
                layer.input_proj(inputs[[place]]),
                layer.hidden_proj(word["before"]),
            )
            names = ("before",) if isinstance(stage, GruStage) else ("before", "cell_before")
            for name, carried in zip(names, state, strict=True):
                yield f"{name}[{place}]", word[name], carried
            formulas = gru if isinstance(stage, GruStage) else lstm
            for name, value in formulas(word, from_word, from_state):
                yield f"{name}[{place}]", word[name], value
            state = tuple(word[name] for name in ("state", "cell") if name in word)
        if stage.is_backward:  # after the way from left to right
            self.states.append(stage.state)
            parts = zip(self.carried[own], state, strict=True)
            state = tuple(torch.cat(both, dim=-1) for both in parts)
        else:
            self.states = [stage.state]
        self.carried[own] = state


def tensors_of(stage: GruStage | LstmStage, place: int) -> dict[str, Tensor]:
    """What a layer recorded of one word, each [1, W]."""
    fields = vars(stage).items()
    return {name: value[[place]] for name, value in fields if isinstance(value, Tensor)}


def gru(word: dict[str, Tensor], from_word: Tensor, from_state: Tensor) -> Values:
    own, state = from_word.chunk(3, dim=-1), from_state.chunk(3, dim=-1)
    yield "reset", torch.sigmoid(own[0] + state[0])
    yield "update", torch.sigmoid(own[1] + state[1])
    yield "candidate", torch.tanh(own[2] + word["reset"] * state[2])
    new = (1 - word["update"]) * word["candidate"] + word["update"] * word["before"]
    yield "state", torch.where(word["is_read"], new, word["before"])


def lstm(word: dict[str, Tensor], from_word: Tensor, from_state: Tensor) -> Values:
    enter, forget, candidate, output = (from_word + from_state).chunk(4, dim=-1)
    yield "input", torch.sigmoid(enter)
    yield "forget", torch.sigmoid(forget)
    yield "candidate", torch.tanh(candidate)
    yield "output", torch.sigmoid(output)
    cell = word["forget"] * word["cell_before"] + word["input"] * word["candidate"]
    yield "cell", torch.where(word["is_read"], cell, word["cell_before"])
    yield "state", torch.where(word["is_read"], word["output"] * torch.tanh(cell), word["before"])


class Recomputation:
    """Goes from stage to stage and carries what later ones are made of."""

    def __init__(self, model: EncoderDecoder, source_ids: list[int]) -> None:
        self.model = model
        self.source_mask = torch.tensor([id != PAD_ID for id in source_ids])
        self.stream = torch.empty(0)  # the line everything adds to: [T, D]
        self.block_input = torch.empty(0)  # what a block reads: the stream, or its norm: [T, D]
        self.update = torch.empty(0)  # what the last block found: [T, D]
        self.memory = torch.empty(0)  # [S, D]
        self.earlier: dict[str, tuple[Tensor, Tensor]] = {}  # keys and values of earlier tokens
        self.recurrent = StateRecomputation(model, self.source_mask)

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
            case GruStage() | LstmStage():
                yield from self.recurrent.stage(stage, self.block_input)
                self.stream = stage.state
                layer = self.model.get_submodule(stage.path.rpartition(".")[0])
                if getattr(layer, "backward_rnn", None) is None:  # which reads the same once more
                    self.block_input = self.stream
            case JoinedStage():
                yield from self.joined(stage)
            case NarrowedStage():
                yield "joined", stage.joined, self.stream
                matrix = self.model.get_submodule(stage.path)
                yield "output", stage.output, torch.tanh(matrix(stage.joined))
                self.stream = stage.output
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
        vectors = functional.embedding(ids, embedding.weight) * embedding.scale
        yield "vectors", stage.vectors, vectors
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
        assert isinstance(attention, MultiHeadAttention | SourceAttention)
        output = merge_heads(stage.context[None])[0]  # [T, D]
        if isinstance(attention, MultiHeadAttention):
            yield from self.projections(step, stage, attention)
            output = output if attention.output is None else attention.output(output)
        else:
            turned = self.memory if attention.key is None else attention.key(self.memory)
            yield "query", stage.query, self.stream[None]
            yield "key", stage.key, turned[None]
            yield "value", stage.value, self.memory[None] * (not attention.is_off)
        sees_source = step == 0 or stage.look == "cross-attention"
        mask = self.source_mask if sees_source else torch.ones(len(stage.keys), dtype=torch.bool)
        yield "allowed", stage.allowed, mask.to(stage.allowed.device).expand(stage.allowed.shape)
        yield "scores", stage.scores, dot_scores(stage.query, stage.key)
        width = stage.query.shape[-1] if attention.scale_scores else 1
        yield "scaled", stage.scaled, stage.scores / width**0.5
        yield "weights", stage.weights, apply_mask(stage.scaled, stage.allowed).softmax(-1)
        yield "context", stage.context, stage.weights @ stage.value
        yield "output", stage.output, output
        self.update = stage.output

    def projections(self, step: int, stage: AttentionStage, attention: MultiHeadAttention) -> Again:
        """Queries, keys and values, those of earlier tokens from earlier steps."""
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

    def joined(self, stage: JoinedStage) -> Again:
        is_encoder = stage.path.startswith("encoder")
        parts = self.recurrent.states if is_encoder else [self.update, self.stream]
        yield "first", stage.first, parts[0]
        yield "second", stage.second, parts[1]
        yield "output", stage.output, torch.cat((stage.first, stage.second), dim=-1)
        self.stream = self.block_input = stage.output

    def feed_forward(self, stage: FeedForwardStage) -> Again:
        block = self.model.get_submodule(stage.path)
        assert isinstance(block, FeedForward)
        yield "pre_activation", stage.pre_activation, block.fc1(self.block_input)
        yield "hidden", stage.hidden, block.activation(stage.pre_activation)
        yield "output", stage.output, block.fc2(stage.hidden)
        self.update = stage.output


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
        place = place_of(step)
        if recorded.shape != again.shape:
            sizes = f"{tuple(recorded.shape)}, recomputed {tuple(again.shape)}"
            raise Mismatch(f"{place}: {name} is {sizes}")
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


def place_of(step: int) -> str:
    return f"decoding step {step}" if step else "encoder"


@torch.no_grad()
def recomputed(walk: Walkthrough) -> Iterator[tuple[int, str, Tensor, Tensor]]:
    """Each recorded value with its step, its name, and what comes out when it is computed again."""
    recomputation = Recomputation(walk.model, walk.source_ids)
    for step, stage in walk.stages():
        for name, recorded, again in recomputation.stage(step, stage):
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
            told[f"{place_of(number)}: {stage.path}.{field}"] = (words, expected)
    for step in walk.steps:
        place = f"{place_of(step.number)}: "
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
