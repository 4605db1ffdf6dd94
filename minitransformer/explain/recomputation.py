"""Each value of a walk-through once more, from the values and weights before it.

T tokens of this call, S tokens that are looked at, H heads, D d_model, K d_head.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from minitransformer.data.tokens import PAD_ID
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
from minitransformer.explain.state_recomputation import Again, StateRecomputation
from minitransformer.model.attention import apply_mask, dot_scores, merge_heads, split_heads
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.positional import rotate
from minitransformer.model.recurrent import SourceAttention
from minitransformer.model.transformer import Embedding, FeedForward, MultiHeadAttention


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
                if getattr(layer, "leftward", None) is None:  # which reads the same once more
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
        yield "widened", stage.widened, block.widen(self.block_input)
        yield "hidden", stage.hidden, block.activation(stage.widened)
        yield "output", stage.output, block.narrow(stage.hidden)
        self.update = stage.output
