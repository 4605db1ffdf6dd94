"""A walk-through told in the order and the words of the sheets that people work through by hand.

What is told is blocks: a sentence, and tables whose last column is a word. Renderers show them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from minitransformer.explain.figures import shown, shown_columns, shown_sum, shown_terms
from minitransformer.explain.stages import (
    AttentionStage,
    EmbeddingStage,
    FeedForwardStage,
    NormStage,
    ResidualStage,
    Stage,
)
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough

MOST_WORDS = 8  # of one table; beyond, the most important ones and the sum of the others
REST = "…"


@dataclass(frozen=True)
class Row:
    """One line of a table: what it is, its numbers, and the word that it belongs to."""

    name: str
    numbers: list[str]
    word: str


@dataclass(frozen=True)
class Table:
    rows: list[Row]
    headings: list[str] = field(default_factory=list)  # of the numbers, where they differ in kind


@dataclass(frozen=True)
class Block:
    """Something that happens in the model, told and shown."""

    step: int  # 0 is the encoder
    path: str
    sentence: str
    tables: list[Table]


def narrate(walk: Walkthrough, precision: int) -> Iterator[Block]:
    """Everything, from the embeddings of the source to the last choice."""
    for stage in walk.encoder:
        yield from tell(0, stage, precision)
    for step in walk.steps:
        for stage in step.stages:
            yield from tell(step.number, stage, precision)
        yield head_block(step, precision)
        yield source_block(walk, step, precision)


def tell(step: int, stage: Stage, precision: int) -> Iterator[Block]:
    match stage:
        case EmbeddingStage():
            yield from tell_embedding(step, stage, precision)
        case AttentionStage():
            yield from tell_attention(step, stage, precision)
        case ResidualStage():
            found = "V embedding" if stage.block == "attention" else "output of the network"
            original = "latest" if step and "cross" in stage.path else "original"
            original = "latest" if stage.block == "feed-forward" else original
            sentence = f"Add the {found} of {listed(stage.tokens)} to its {original} embedding"
            rows = sums(stage.states, stage.update, stage.total, stage.tokens, precision, "found")
            yield Block(step, stage.path, sentence, [Table(rows)])
        case NormStage():
            sentence = f"Normalise the embedding of {listed(stage.tokens)}"
            rows = vectors("before", stage.before, stage.tokens, precision)
            rows += vectors("after", stage.after, stage.tokens, precision)
            yield Block(step, stage.path, sentence, [Table(rows)])
        case FeedForwardStage():
            sentence = f"Feed {listed(stage.tokens)} through the feed-forward network"
            rows = vectors("hidden", stage.hidden, stage.tokens, precision)
            rows += vectors("output", stage.output, stage.tokens, precision)
            yield Block(step, stage.path, sentence, [Table(rows)])


def tell_embedding(step: int, stage: EmbeddingStage, precision: int) -> Iterator[Block]:
    words = listed(stage.tokens)
    ids = Row("id", [str(id) for id in stage.ids], "")
    table = Table(vectors("embedding", stage.vectors, stage.tokens, precision))
    opening = "Start with embeddings of" if step == 0 else "Take the embedding of"
    yield Block(step, stage.path, f"{opening} {words}", [Table([ids]), table])
    if stage.positions is None:
        return
    sentence = "Add positional encoding to determine the order of the words"
    rows = sums(stage.vectors, stage.positions, stage.output, stage.tokens, precision, "position")
    yield Block(step, f"{stage.path}.positions", sentence, [Table(rows)])


def tell_attention(step: int, stage: AttentionStage, precision: int) -> Iterator[Block]:
    whose = {
        "self-attention": "the encoder",
        "masked self-attention": "the decoder",
        "cross-attention": "cross attention",
    }[stage.look]
    words = listed(stage.queries)
    sentence = f"Transform {words} into Q, K and V embedding with the matrices of {whose}"
    if stage.look == "cross-attention":
        sentence = (
            f"Convert the latest embedding of {words} to a Q embedding with the matrices of "
            f"{whose}; K and V embeddings are those of {listed(stage.keys)}"
        )
    num_heads = len(stage.query)
    for head in range(num_heads):
        of = f" (head {head + 1} of {num_heads})" if num_heads > 1 else ""
        path = f"{stage.path}.{head}" if num_heads > 1 else stage.path
        rows = vectors("Q", stage.query[head], stage.queries, precision)
        new = 0 if stage.look == "cross-attention" else -len(stage.queries)  # the rest were told
        rows += vectors("K", stage.key[head][new:], stage.keys[new:], precision)
        rows += vectors("V", stage.value[head][new:], stage.keys[new:], precision)
        yield Block(step, path, sentence + of, [Table(rows)])
        for place, word in enumerate(stage.queries):
            pairs = listed([f"{word} and {key}" for key in stage.keys])
            told = f"Calculate the attention between {pairs}{of}, and update the V embedding"
            yield Block(step, path, told, [attention_table(stage, head, place, precision)])
    if stage.output.shape[1:] == (num_heads * stage.context.shape[2],) and num_heads > 1:
        rows = vectors("V", stage.output, stage.queries, precision)
        told = f"Put the heads of {words} together"
        yield Block(step, stage.path, told, [Table(rows)])


def attention_table(stage: AttentionStage, head: int, place: int, precision: int) -> Table:
    """Scores, weights and weighted values of one query, a line per key; the columns add up."""
    weights = stage.weights[head, place].tolist()
    terms = (stage.weights[head, place][:, None] * stage.value[head]).tolist()  # [S, K]
    order = most_important(weights, [abs(weight) for weight in weights])
    kept = [terms[key] for key in order]
    shares = [weights[key] for key in order]
    total = stage.context[head, place].tolist()
    if len(order) < len(weights):
        left_out = [key for key in range(len(weights)) if key not in order]
        kept.append([sum(terms[key][d] for key in left_out) for d in range(len(total))])
        shares.append(sum(weights[key] for key in left_out))
    texts, totals = shown_columns(kept, total, precision)
    shown_shares = shown_terms(shares, 1.0, precision)
    columns = {"score": stage.scores, "scaled": stage.scaled}
    if stage.scores.equal(stage.scaled):  # a model that does not scale
        del columns["scaled"]
    blank = [""] * len(columns)
    rows = []
    for number, key in enumerate(order):
        scores = [shown(float(each[head, place, key]), precision) for each in columns.values()]
        if not stage.allowed[place, key]:
            scores[-1] = "-inf"
        rows.append(Row("", [*scores, shown_shares[number], *texts[number]], stage.keys[key]))
    if len(order) < len(weights):
        rest = f"{REST} {len(weights) - len(order)} more"
        rows.append(Row("", [*blank, shown_shares[-1], *texts[-1]], rest))
    rows.append(Row("=", [*blank, shown(1, precision), *totals], stage.queries[place]))
    return Table(rows, [*columns, "weight", "weight·V"])


def most_important(values: list[float], importance: list[float]) -> list[int]:
    """The places of the values that a table has room for, in their own order."""
    if len(values) <= MOST_WORDS:
        return list(range(len(values)))
    best = sorted(range(len(values)), key=lambda place: importance[place], reverse=True)
    return sorted(best[: MOST_WORDS - 2])


def head_block(step: DecodingStep, precision: int) -> Block:
    """The dense head's candidates; with the rest of the vocabulary, their probabilities add up."""
    candidates = step.candidates
    rest = len(step.head.probabilities) - len(candidates)
    probabilities = [each.probability for each in candidates]
    shares = shown_terms([*probabilities, 1 - sum(probabilities)], 1.0, max(precision, 4))
    rows = [
        Row("", [shown(float(step.head.logits[each.id]), precision), share], each.token)
        for each, share in zip(candidates, shares[:-1], strict=True)
    ]
    rows.append(Row("", ["", shares[-1]], f"{REST} {rest} more"))
    sentence = f"Feed the latest embedding of {step.fed} to a dense network to produce "
    sentence += step.produced + (" (forced)" if step.is_forced else "")
    return Block(step.number, "head", sentence, [Table(rows, ["logit", "probability"])])


def source_block(walk: Walkthrough, step: DecodingStep, precision: int) -> Block:
    """Where a token looked, and what it would have been worth without each word."""
    stage = step.cross_attention
    weights = stage.weights.mean(dim=0)[0].tolist()  # [S]
    changes = [0.0 if change is None else change for change in step.why]
    importance = [w + abs(change) for w, change in zip(weights, changes, strict=True)]
    order = most_important(weights, importance)
    left_out = [place for place in range(len(weights)) if place not in order]
    shares = [weights[place] for place in order] + [sum(weights[place] for place in left_out)]
    texts = shown_terms(shares, 1.0, precision)
    rows = [
        Row("", [texts[number], told_change(step.why[place], precision)], walk.source[place])
        for number, place in enumerate(order)
    ]
    if left_out:
        rows.append(Row("", [texts[-1], ""], f"{REST} {len(left_out)} more"))
    sentence = f"Why {step.produced}? Attention, and the change of log-probability without a word"
    return Block(step.number, "why", sentence, [Table(rows, ["attention", "without it"])])


def told_change(change: float | None, precision: int) -> str:
    if change is None:
        return "-"
    text = shown(change, precision)
    return text if text.startswith("-") else f"+{text}"


def vectors(name: str, values: Tensor, tokens: list[str], precision: int) -> list[Row]:
    return [
        Row(name, [shown(value, precision) for value in row], token)
        for row, token in zip(values.tolist(), tokens, strict=True)
    ]


def sums(
    before: Tensor, found: Tensor, after: Tensor, tokens: list[str], precision: int, name: str
) -> list[Row]:
    """before + found = after, for each token."""
    rows = []
    triples = zip(before.tolist(), found.tolist(), after.tolist(), strict=True)
    for token, triple in zip(tokens, triples, strict=True):
        first, second, total = shown_sum(*triple, precision)
        rows += [Row("", first, token), Row(f"+ {name}", second, ""), Row("=", total, token)]
    return rows


def listed(words: list[str]) -> str:
    """Words with commas, the middle of a long list left out."""
    if len(words) <= MOST_WORDS:
        return ", ".join(words)
    return f"{', '.join(words[:4])}, {REST} {len(words) - 5} more, {words[-1]}"
