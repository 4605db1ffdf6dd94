"""The check of a walk-through: every value is recomputed from the values before it."""

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
    NormStage,
    OutputProjectionStage,
    ResidualStage,
    Stage,
)
from minitransformer.explain.walkthrough import Walkthrough, best_candidates, forced_ids
from minitransformer.model.attention import apply_mask, dot_scores, merge_heads, split_heads
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.positional import rotate
from minitransformer.model.recurrent import Recurrence, SourceAttention, State
from minitransformer.model.transformer import Embedding, FeedForward, MultiHeadAttention

# float32 adds in another order here; relative to the value, and to the largest of its tensor
TOLERANCE, TOLERANCE_OF_LARGEST = 1e-5, 1e-6


class Mismatch(UserError):
    """A recorded value that differs from what the values and weights before it give."""


@torch.no_grad()
def check(walk: Walkthrough) -> int:
    """Recompute every value and return how many; raise a Mismatch for the first that differs.

    Weights that this translation does not use, such as other words' embeddings, are not checked.
    """
    count = 0
    for where, recorded, again in recomputed(walk):
        if recorded.shape != again.shape:
            sizes = f"{tuple(recorded.shape)}, recomputed {tuple(again.shape)}"
            raise Mismatch(f"{where} is {sizes}")
        recorded, again = (each.detach().cpu().double() for each in (recorded, again))
        if not again.isfinite().all():
            raise Mismatch(f"{where}: recomputed values are NaN or Inf")
        largest = again.abs().max() if again.numel() else 0.0
        tolerance = TOLERANCE * again.abs() + TOLERANCE_OF_LARGEST * largest
        wrong = ~((recorded - again).abs() <= tolerance)
        if wrong.any():
            index = wrong.nonzero()[0].tolist()
            raise Mismatch(
                f"{where}{index} is {float(recorded[*index]):.6g}, "
                f"recomputed {float(again[*index]):.6g}"
            )
        count += recorded.numel()
    for where, found, correct in recomputed_labels(walk):
        if found != correct:
            raise Mismatch(f"{where} is {found!r}, not {correct!r}")
    return count


def step_name(step: int) -> str:
    return f"decoding step {step}" if step else "encoder"


def recomputed(walk: Walkthrough) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield each recorded tensor with its name and its recomputed value."""
    recomputation = Recomputation(walk.model, walk.source_ids)
    for step, stage in walk.stages():
        for name, recorded, again in recomputation.stage(step, stage):
            yield f"{step_name(step)}: {stage.path}.{name}", recorded, again
    for step, name, numbers, numbers_again in recomputed_choices(walk):
        yield f"{step_name(step)}: {name}", torch.tensor(numbers), torch.tensor(numbers_again)


def recomputed_choices(walk: Walkthrough) -> Iterator[tuple[int, str, list[float], list[float]]]:
    """Yield what follows from the probabilities: candidates, the choice, the next input, `why`."""
    fed, produced = [step.fed_id for step in walk.steps], [step.produced_id for step in walk.steps]
    forced = forced_ids(walk.tokenizer, walk.experiment)
    changes_again = changes_without(walk.model, walk.source_ids, fed, produced)

    def ids_of(stages: list[Stage]) -> list[float]:
        return [id for stage in stages if isinstance(stage, EmbeddingStage) for id in stage.ids]

    def numbers(changes: list[float | None]) -> list[float]:
        """Return changes, 0 where there is none, and whether there is one."""
        return [each or 0.0 for each in changes] + [float(each is not None) for each in changes]

    yield 0, "ids", list(walk.source_ids), ids_of(walk.encoder)
    for index, (step, changes) in enumerate(zip(walk.steps, changes_again, strict=True)):
        best = best_candidates(step.head.probabilities, walk.tokenizer.target.tokens)
        for field in ("id", "probability"):
            recorded, again = ([getattr(each, field) for each in candidates]
                               for candidates in (step.candidates, best))  # fmt: skip
            yield step.number, f"candidates.{field}", recorded, again
        choice = forced[index] if index < len(forced) else best[0].id
        yield step.number, "produced", [step.produced_id], [choice]
        before = produced[index - 1] if index else walk.tokenizer.start_id
        yield step.number, "fed", [step.fed_id, *ids_of(step.stages)], [before, before]
        yield step.number, "why", numbers(step.why), numbers(changes)


def recomputed_labels(walk: Walkthrough) -> Iterator[tuple[str, object, object]]:
    """Yield what is recorded in words, with its name and what it must be."""
    names = walk.tokenizer.target.tokens
    fed = [names[step.fed_id] for step in walk.steps]
    produced = [step.produced_id for step in walk.steps]
    yield "hidden", walk.hidden, [id == PAD_ID for id in walk.source_ids]
    yield "translation", walk.translation, walk.tokenizer.target.decode(produced)
    yield "is_finished", walk.is_finished, produced[-1] == EOS_ID
    yield "end", EOS_ID in produced[:-1], False
    for number, stage in walk.stages():
        tokens = walk.source if number == 0 else [fed[number - 1]]
        is_cross = isinstance(stage, AttentionStage) and stage.is_cross
        keys = walk.source if number == 0 or is_cross else fed[:number]
        for field, expected in (("tokens", tokens), ("queries", tokens), ("keys", keys)):
            words = getattr(stage, field, expected)
            yield f"{step_name(number)}: {stage.path}.{field}", words, expected
    num_forced = len(forced_ids(walk.tokenizer, walk.experiment))
    for step in walk.steps:
        where = step_name(step.number)
        yield f"{where}: fed", step.fed, names[step.fed_id]
        yield f"{where}: produced", step.produced, names[step.produced_id]
        words = [each.token for each in step.candidates]
        yield f"{where}: candidates.token", words, [names[each.id] for each in step.candidates]
        yield f"{where}: is_forced", step.is_forced, step.number <= num_forced
        expected = walk.expected[step.number - 1 : step.number]
        yield f"{where}: expected", [step.expected] if step.expected else [], expected


Checks = Iterator[tuple[str, Tensor, Tensor]]  # name, recorded value, recomputed value


class Recomputation:
    """Recomputes stage after stage, carrying the values that later ones depend on."""

    def __init__(self, model: EncoderDecoder, source_ids: list[int]) -> None:
        self.model = model
        self.source_mask = torch.tensor([id != PAD_ID for id in source_ids])
        self.stream = torch.empty(0)  # the residual stream: [T, D]
        self.block_input = torch.empty(0)  # the stream, or its norm: [T, D]
        self.update = torch.empty(0)  # the last block's output: [T, D]
        self.memory = torch.empty(0)  # [S, D]
        self.earlier: dict[str, tuple[Tensor, Tensor]] = {}  # keys and values of earlier tokens
        # Of recurrent models:
        self.final_states: dict[str, State] = {}  # by the decoder layer that continues from them
        self.directions: list[Tensor] = []  # states of an encoder layer's directions: [S, W]

    def stage(self, step: int, stage: Stage | HeadStage) -> Checks:
        match stage:
            case EmbeddingStage():
                if step == 1:
                    self.memory = self.stream
                yield from self.embedding(step, stage)
            case NormStage():
                yield "before", stage.before, self.stream
                yield "after", stage.after, self.model.get_submodule(stage.path)(stage.before)
                self.block_input = stage.after
                if not stage.path.endswith("pre_norm"):
                    self.stream = stage.after
            case AttentionStage():
                yield from self.attention(step, stage)
                self.update = stage.output
            case FeedForwardStage():
                block = self.model.get_submodule(stage.path)
                assert isinstance(block, FeedForward)
                yield "pre_activation", stage.pre_activation, block.fc1(self.block_input)
                yield "hidden", stage.hidden, block.activation(stage.pre_activation)
                yield "output", stage.output, block.fc2(stage.hidden)
                self.update = stage.output
            case ResidualStage():
                yield "states", stage.states, self.stream
                yield "update", stage.update, self.update
                yield "total", stage.total, stage.states + stage.update
                self.stream = self.block_input = stage.total
            case GruStage() | LstmStage():
                yield from self.recurrence(stage)
                self.stream = stage.state
                layer = self.model.get_submodule(stage.path.rpartition(".")[0])
                if getattr(layer, "backward_rnn", None) is None:  # else it has the same input
                    self.block_input = self.stream
            case JoinedStage():
                is_encoder = stage.path.startswith("encoder")
                first, second = self.directions if is_encoder else (self.update, self.stream)
                yield "first", stage.first, first
                yield "second", stage.second, second
                yield "output", stage.output, torch.cat((stage.first, stage.second), dim=-1)
                self.stream = self.block_input = stage.output
            case OutputProjectionStage():
                yield "joined", stage.joined, self.stream
                matrix = self.model.get_submodule(stage.path)
                yield "output", stage.output, torch.tanh(matrix(stage.joined))
                self.stream = stage.output
            case HeadStage():
                yield "state", stage.state, self.stream[0]
                yield "logits", stage.logits, self.model.head(stage.state)
                yield "probabilities", stage.probabilities, stage.logits.softmax(-1)

    def embedding(self, step: int, stage: EmbeddingStage) -> Checks:
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
            positions = embedding.positions(start, start + len(stage.ids))
            yield "positions", stage.positions, positions
            yield "output", stage.output, stage.vectors + stage.positions
        self.stream = self.block_input = stage.output

    def attention(self, step: int, stage: AttentionStage) -> Checks:
        attention = self.model.get_submodule(stage.path)
        assert isinstance(attention, MultiHeadAttention | SourceAttention)
        output = merge_heads(stage.context[None])[0]  # [T, D]
        if isinstance(attention, MultiHeadAttention):
            yield from self.projections(step, stage, attention)
            output = output if attention.output is None else attention.output(output)
        else:
            key = self.memory if attention.key is None else attention.key(self.memory)
            yield "query", stage.query, self.stream[None]
            yield "key", stage.key, key[None]
            yield "value", stage.value, self.memory[None] * (not attention.is_off)
        # A decoding step's self-attention has no later tokens to mask.
        has_source = step == 0 or stage.is_cross
        mask = self.source_mask if has_source else torch.ones(len(stage.keys), dtype=torch.bool)
        yield "allowed", stage.allowed, mask.to(stage.allowed.device).expand(stage.allowed.shape)
        yield "scores", stage.scores, dot_scores(stage.query, stage.key)
        width = stage.query.shape[-1] if attention.scale_scores else 1
        yield "scaled", stage.scaled, stage.scores / width**0.5
        yield "weights", stage.weights, apply_mask(stage.scaled, stage.allowed).softmax(-1)
        yield "context", stage.context, stage.weights @ stage.value
        yield "output", stage.output, output

    def projections(
        self, step: int, stage: AttentionStage, attention: MultiHeadAttention
    ) -> Checks:
        """Recompute Q, K and V; a self-attention has those of earlier steps as well."""
        positions = torch.arange(len(stage.queries)) + max(step - 1, 0)
        rotates = attention.rotary

        def heads(linear: nn.Module, states: Tensor, *, rotates: bool = False) -> Tensor:
            found = split_heads(linear(states)[None], attention.num_heads)  # [1, H, T, K]
            return (rotate(found, positions.to(found.device)) if rotates else found)[0]

        yield "query", stage.query, heads(attention.query, self.block_input, rotates=rotates)
        source = self.memory if stage.is_cross else self.block_input
        key, value = heads(attention.key, source, rotates=rotates), heads(attention.value, source)
        if step > 1 and not stage.is_cross:
            before = self.earlier[stage.path]
            key, value = torch.cat((before[0], key), 1), torch.cat((before[1], value), 1)
        yield "key", stage.key, key
        yield "value", stage.value, value
        if not stage.is_cross:
            self.earlier[stage.path] = stage.key, stage.value

    def recurrence(self, stage: GruStage | LstmStage) -> Checks:
        layer = self.model.get_submodule(stage.path)
        assert isinstance(layer, Recurrence)
        inputs = self.block_input
        side, _, number, *_ = stage.path.split(".")
        decoder_layer, is_encoder = f"decoder.layers.{number}", side == "encoder"
        mask = self.source_mask if is_encoder else torch.ones(1, dtype=torch.bool)
        yield "mask", stage.mask, mask.to(stage.mask.device)
        state = layer.initial_state(inputs[:1]) if is_encoder else self.final_states[decoder_layer]
        tensors = {name: each for name, each in vars(stage).items() if isinstance(each, Tensor)}
        indices = range(len(inputs))
        for index in reversed(indices) if stage.is_backward else indices:
            token = {name: values[[index]] for name, values in tensors.items()}  # each [1, W]
            for name, carried in zip(("before", "cell_before"), state, strict=False):
                yield f"{name}[{index}]", token[name], carried
            step = recompute_gru if isinstance(stage, GruStage) else recompute_lstm
            gates = layer.input_proj(inputs[[index]]), layer.hidden_proj(token["before"])
            for name, again in step(token, *gates):
                yield f"{name}[{index}]", token[name], again
            state = tuple(token[name] for name in ("state", "cell") if name in token)
        if stage.is_backward:  # after the forward direction
            self.directions.append(stage.state)
            pairs = zip(self.final_states[decoder_layer], state, strict=True)
            state = tuple(torch.cat(pair, dim=-1) for pair in pairs)
        else:
            self.directions = [stage.state]
        self.final_states[decoder_layer] = state


# The steps of model/recurrent.py, each value from the recorded ones before it.


def recompute_gru(
    token: dict[str, Tensor], input_gates: Tensor, hidden_gates: Tensor
) -> Iterator[tuple[str, Tensor]]:
    inputs, hidden = input_gates.chunk(3, dim=-1), hidden_gates.chunk(3, dim=-1)
    yield "reset", torch.sigmoid(inputs[0] + hidden[0])
    yield "update", torch.sigmoid(inputs[1] + hidden[1])
    yield "candidate", torch.tanh(inputs[2] + token["reset"] * hidden[2])
    new = (1 - token["update"]) * token["candidate"] + token["update"] * token["before"]
    yield "state", torch.where(token["mask"], new, token["before"])


def recompute_lstm(
    token: dict[str, Tensor], input_gates: Tensor, hidden_gates: Tensor
) -> Iterator[tuple[str, Tensor]]:
    enter, forget, candidate, output = (input_gates + hidden_gates).chunk(4, dim=-1)
    yield "input", torch.sigmoid(enter)
    yield "forget", torch.sigmoid(forget)
    yield "candidate", torch.tanh(candidate)
    yield "output", torch.sigmoid(output)
    cell = token["forget"] * token["cell_before"] + token["input"] * token["candidate"]
    yield "cell", torch.where(token["mask"], cell, token["cell_before"])
    state = token["output"] * torch.tanh(cell)
    yield "state", torch.where(token["mask"], state, token["before"])
