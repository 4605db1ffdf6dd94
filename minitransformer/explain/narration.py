"""A walk-through told in the order and the words of the sheets that people work through by hand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from torch import Tensor

from minitransformer.explain.attention_maps import produced_words, words_of_walk
from minitransformer.explain.stages import (
    BY_QUERIES,
    AttentionStage,
    EmbeddingStage,
    FeedForwardStage,
    GruStage,
    JoinedStage,
    LstmStage,
    NarrowedStage,
    NormStage,
    ResidualStage,
    Stage,
)
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough
from minitransformer.model.attention import merge_heads


def shown(value: float, precision: int) -> str:
    """A number with so many digits after the point, and no minus zero."""
    text = f"{value:.{precision}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def rounding_row(rows: list[list[str]], totals: list[str]) -> list[str] | None:
    """What must be added so that shown terms make up their shown totals; None if nothing.

    Every number is shown as it is, so that it looks the same wherever it stands; what rounding does
    to a sum stands on a line of its own.
    """
    missing = [
        Decimal(total) - sum(Decimal(row[place]) for row in rows) if total else None
        for place, total in enumerate(totals)
    ]
    if not any(missing):
        return None
    return ["" if each is None else str(each) if each else "0" for each in missing]


MOST_WORDS = 8  # of one table; beyond, the most important ones and the sum of the others
REST = "…"
ROUNDING = "rounding"  # what must be added so that shown terms make up their total


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


def most_important(importance: list[float]) -> list[int]:
    """The places that a table has room for, in their own order."""
    if len(importance) <= MOST_WORDS:
        return list(range(len(importance)))
    best = sorted(range(len(importance)), key=lambda place: importance[place], reverse=True)
    return sorted(best[: MOST_WORDS - 2])


def with_total(terms: list[Row], total: Row) -> list[Row]:
    """Terms and their total, and between them what rounding leaves open."""
    rest = rounding_row([row.numbers for row in terms], total.numbers)
    return [*terms, *([Row(ROUNDING, rest, "")] if rest else []), total]


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
    for place, token in enumerate(tokens):
        first, second, total = (
            [shown(value, precision) for value in values[place].tolist()]
            for values in (before, found, after)
        )
        terms = [Row("", first, token), Row(f"+ {name}", second, "")]
        rows += with_total(terms, Row("=", total, token))
    return rows


def listed(words: list[str]) -> str:
    """Words with commas, the middle of a long list left out."""
    if len(words) <= MOST_WORDS:
        return ", ".join(words)
    return f"{', '.join(words[:4])}, {REST} {len(words) - 5} more, {words[-1]}"


def source_block(walk: Walkthrough, step: DecodingStep, precision: int) -> Block:
    """Where a token looked, and what it would have been worth without each word."""
    look = step.cross_attention
    weights = None if look is None else look.weights.mean(dim=0)[0].tolist()  # [S]
    sentence = f"Why {step.produced}? {columns_of(step)} without a word"
    table = reasons_table(weights, step.why, walk.source, precision)
    return Block(step.number, "why", sentence, [table])


def word_blocks(walk: Walkthrough, precision: int, step: int | None = None) -> Iterator[Block]:
    """The same for whole words, where the steps are those of pieces; or for that of one step."""
    source = [word.text for word in words_of_walk(walk).source]
    for word in produced_words(walk):
        if step is not None and step not in word.steps:
            continue
        first, last = word.steps[0], word.steps[-1]
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        mean = "" if first == last else ", mean of these steps"
        sentence = (
            f"Why {word.text} ({steps}, probability {shown(word.probability, max(precision, 4))})? "
            f"{columns_of(walk.steps[0], mean)} without a whole word"
        )
        table = reasons_table(word.attention, word.why, source, precision)
        yield Block(last, "why", sentence, [table])


def columns_of(step: DecodingStep, mean: str = "") -> str:
    """What stands in a table of reasons."""
    look, change = step.cross_attention, "the change of log-probability"
    if look is None:
        return change.capitalize()
    num_heads = len(look.weights)
    of_heads = "" if num_heads == 1 else f" (mean of {num_heads} heads, last layer)"
    return f"Attention{of_heads}{mean}, and {change}"


def reasons_table(
    weights: list[float] | None, why: list[float | None], words: list[str], precision: int
) -> Table:
    """A line for each source word that matters, and one for all others together."""
    shares = [0.0] * len(words) if weights is None else weights
    changes = [0.0 if change is None else change for change in why]
    importance = [share + abs(change) for share, change in zip(shares, changes, strict=True)]
    order = most_important(importance)
    left_out = [place for place in range(len(words)) if place not in order]

    def cells(share: float, change: str) -> list[str]:
        return [change] if weights is None else [shown(share, precision), change]

    rows = [
        Row("", cells(shares[place], told_change(why[place], precision)), words[place])
        for place in order
    ]
    if left_out:
        share = sum(shares[place] for place in left_out)
        rows.append(Row("", cells(share, ""), f"{REST} {len(left_out)} more together"))
    return Table(rows, ["without it"] if weights is None else ["attention", "without it"])


def told_change(change: float | None, precision: int) -> str:
    if change is None:
        return "-"
    text = shown(change, precision)
    return text if text.startswith("-") else f"+{text}"


CELLS = {GruStage: "a GRU", LstmStage: "an LSTM"}
FORMULAS = {
    GruStage: "(1-z)·n + z·(state before)",
    LstmStage: "o·tanh(c), where c is f·(cell before) + i·g",
}


def recurrence_sentence(stage: GruStage | LstmStage) -> str:
    cell, formula, words = CELLS[type(stage)], FORMULAS[type(stage)], listed(stage.tokens)
    if stage.path.startswith("decoder"):
        return f"Read {words} with {cell}; its state s is {formula}"
    way = "right to left" if stage.is_backward else "left to right"
    return f"Read {words} with {cell}, from {way}; the state after a word is {formula}"


def joined_sentence(stage: JoinedStage) -> str:
    words = listed(stage.tokens)
    if stage.path.startswith("encoder"):
        return f"Put both states of {words} side by side: h = [left to right ; right to left]"
    return f"Concatenate the context vector and the state of {words}: [context ; s]"


def narrowed_sentence(stage: NarrowedStage) -> str:
    return f"Multiply [context ; s] of {listed(stage.tokens)} by the matrix W_O, and take tanh"


def comparison_sentence(stage: AttentionStage) -> str:
    formula = f"{stage.names.score} = {stage.names.query} · {stage.names.key}"
    return (
        f"Compare the state s of {listed(stage.queries)} with the states h of "
        f"{listed(stage.keys)}: {formula}"
    )


def context_sentence(stage: AttentionStage, place: int) -> str:
    return (
        f"Softmax of the scores of {stage.queries[place]} gives α of {listed(stage.keys)}; "
        "the context vector is the sum of α·h"
    )


def tell_recurrence(
    step: int, stage: GruStage | LstmStage, sentence: str, precision: int
) -> Iterator[Block]:
    """A block for the layer, with a table for each word, in the order in which it reads them."""
    tables, words = [], list(enumerate(stage.tokens))
    for place, token in reversed(words) if stage.is_backward else words:
        if not stage.is_read[place]:
            rows = [vector("state, as it was", stage.state[place], token, precision)]
        else:
            rows = [
                vector(name, values[place], token if name == "state before" else "", precision)
                for name, values in rows_of(stage).items()
            ]
            rows.append(vector("= state", stage.state[place], token, precision))
        tables.append(Table(rows))
    yield Block(step, stage.path, sentence, tables)


def rows_of(stage: GruStage | LstmStage) -> dict[str, Tensor]:
    """What leads to a state, in the order of computation."""
    if isinstance(stage, GruStage):
        return {
            "state before": stage.before,
            "reset r": stage.reset,
            "update z": stage.update,
            "candidate n": stage.candidate,
        }
    return {
        "state before": stage.before,
        "cell before": stage.cell_before,
        "input i": stage.input,
        "forget f": stage.forget,
        "candidate g": stage.candidate,
        "output o": stage.output,
        "cell c": stage.cell,
    }


def vector(name: str, values: Tensor, token: str, precision: int) -> Row:
    return Row(name, [shown(value, precision) for value in values.tolist()], token)


def tell_joined(step: int, stage: JoinedStage, sentence: str, precision: int) -> Block:
    rows, whole = [], "h" if stage.path.startswith("encoder") else "[context ; s]"
    for place, token in enumerate(stage.tokens):
        parts = dict(zip(stage.parts, (stage.first, stage.second), strict=True))
        rows += [vector(name, part[place], token, precision) for name, part in parts.items()]
        rows.append(vector(whole, stage.output[place], token, precision))
    return Block(step, stage.path, sentence, [Table(rows)])


def tell_narrowed(step: int, stage: NarrowedStage, sentence: str, precision: int) -> Block:
    rows = vectors("[context ; s]", stage.joined, stage.tokens, precision)
    rows += vectors("output", stage.output, stage.tokens, precision)
    return Block(step, stage.path, sentence, [Table(rows)])


def read_by_head(stages: list[Stage]) -> str:
    """What the dense head is fed, after these stages."""
    match stages[-1]:
        case GruStage() | LstmStage():
            return "the state"
        case JoinedStage():
            return "[context ; s]"
        case NarrowedStage():
            return "the output"
    return "the latest embedding"


def narrate(walk: Walkthrough, precision: int) -> Iterator[Block]:
    """Everything, from the embeddings of the source to the last choice."""
    for stage in walk.encoder:
        yield from tell(0, stage, precision)
    for step in walk.steps:
        for stage in step.stages:
            yield from tell(step.number, stage, precision)
        yield head_block(step, precision)
        yield source_block(walk, step, precision)


def sentence_of(step: int, stage: Stage) -> str:
    """What happens in a stage, in the sheets' words."""
    match stage:
        case EmbeddingStage():
            opening = "Start with embeddings of" if step == 0 else "Take the embedding of"
            return f"{opening} {listed(stage.tokens)}"
        case AttentionStage():
            return attention_sentence(stage)
        case ResidualStage():
            found = "V embedding" if stage.block == "attention" else "output of the network"
            is_first = stage.path.endswith("layers.0.self_attention_residual")
            original = "original" if is_first else "latest"
            whose = "its" if len(stage.tokens) == 1 else "their"
            return f"Add the {found} of {listed(stage.tokens)} to {whose} {original} embedding"
        case NormStage():
            return f"Normalise the embedding of {listed(stage.tokens)}"
        case FeedForwardStage():
            return f"Feed {listed(stage.tokens)} through the feed-forward network"
        case GruStage() | LstmStage():
            return recurrence_sentence(stage)
        case JoinedStage():
            return joined_sentence(stage)
        case NarrowedStage():
            return narrowed_sentence(stage)
    raise ValueError(stage.path)


def attention_sentence(stage: AttentionStage) -> str:
    if stage.names != BY_QUERIES:
        return comparison_sentence(stage)
    whose = {
        "self-attention": "the encoder",
        "masked self-attention": "the decoder",
        "cross-attention": "cross attention",
    }[stage.look]
    words = listed(stage.queries)
    if stage.look == "cross-attention":
        return (
            f"Convert the latest embedding of {words} to a Q embedding with the matrices of "
            f"{whose}; K and V embeddings are those of {listed(stage.keys)}"
        )
    return f"Transform {words} into Q, K and V embedding with the matrices of {whose}"


def tell(step: int, stage: Stage, precision: int) -> Iterator[Block]:
    match stage:
        case EmbeddingStage():
            yield from tell_embedding(step, stage, precision)
        case AttentionStage():
            yield from tell_attention(step, stage, precision)
        case ResidualStage():
            name = "V" if stage.block == "attention" else "output"
            rows = sums(stage.states, stage.update, stage.total, stage.tokens, precision, name)
            yield Block(step, stage.path, sentence_of(step, stage), [Table(rows)])
        case NormStage():
            rows = vectors("before", stage.before, stage.tokens, precision)
            rows += vectors("after", stage.after, stage.tokens, precision)
            yield Block(step, stage.path, sentence_of(step, stage), [Table(rows)])
        case FeedForwardStage():
            rows = vectors("pre_activation", stage.pre_activation, stage.tokens, precision)
            rows += vectors("hidden", stage.hidden, stage.tokens, precision)
            rows += vectors("output", stage.output, stage.tokens, precision)
            yield Block(step, stage.path, sentence_of(step, stage), [Table(rows)])
        case GruStage() | LstmStage():
            yield from tell_recurrence(step, stage, sentence_of(step, stage), precision)
        case JoinedStage():
            yield tell_joined(step, stage, sentence_of(step, stage), precision)
        case NarrowedStage():
            yield tell_narrowed(step, stage, sentence_of(step, stage), precision)


def tell_embedding(step: int, stage: EmbeddingStage, precision: int) -> Iterator[Block]:
    ids = Row("id", [str(id) for id in stage.ids], "")
    table = Table(vectors("embedding", stage.vectors, stage.tokens, precision))
    yield Block(step, stage.path, sentence_of(step, stage), [Table([ids]), table])
    if stage.positions is None:
        return
    sentence = "Add positional encoding to determine the order of the words"
    rows = sums(stage.vectors, stage.positions, stage.output, stage.tokens, precision, "position")
    yield Block(step, f"{stage.path}.positions", sentence, [Table(rows)])


def tell_attention(step: int, stage: AttentionStage, precision: int) -> Iterator[Block]:
    words = listed(stage.queries)
    num_heads = len(stage.query)
    for head in range(num_heads):
        of = f" (head {head} of {num_heads})" if num_heads > 1 else ""
        path = f"{stage.path}.{head}" if num_heads > 1 else stage.path
        names = stage.names
        rows = vectors(names.query, stage.query[head], stage.queries, precision)
        new = 0 if stage.look == "cross-attention" else -len(stage.queries)  # the rest were told
        rows += vectors(names.key, stage.key[head][new:], stage.keys[new:], precision)
        if names.key != names.value:
            rows += vectors(names.value, stage.value[head][new:], stage.keys[new:], precision)
        yield Block(step, path, sentence_of(step, stage) + of, [Table(rows)])
        for place, word in enumerate(stage.queries):
            pairs = listed([f"{word} and {key}" for key in stage.keys])
            told = f"Calculate the attention between {pairs}{of}, and update the V embedding"
            if names != BY_QUERIES:
                told = context_sentence(stage, place)
            yield Block(step, path, told, [attention_table(stage, head, place, precision)])
    merged = merge_heads(stage.context[None])[0]
    if num_heads > 1 or not merged.equal(stage.output):
        rows = vectors("V", stage.output, stage.queries, precision)
        told = f"Put the heads of {words} side by side" if num_heads > 1 else f"Take {words}"
        told += "" if merged.equal(stage.output) else ", and multiply by the matrix W_O"
        yield Block(step, stage.path, told, [Table(rows)])


def attention_table(stage: AttentionStage, head: int, place: int, precision: int) -> Table:
    """Scores, weights and weighted values of one query, a line per key; the columns add up."""
    weights = stage.weights[head, place]  # [S]
    terms = weights[:, None] * stage.value[head]  # [S, K]
    names = stage.names
    columns = {names.score: stage.scores, f"/√{stage.query.shape[-1]}": stage.scaled}
    if stage.scores.equal(stage.scaled):  # a model that does not scale
        columns = {names.score: stage.scores}
    blank = [""] * len(columns)
    order = most_important(weights.tolist())
    rows = []
    for key in order:
        scores = [shown(float(each[head, place, key]), precision) for each in columns.values()]
        if not stage.allowed[place, key]:
            scores[-1] = "-inf"
        numbers = [float(weights[key]), *terms[key].tolist()]
        texts = [shown(number, precision) for number in numbers]
        rows.append(Row("", [*scores, *texts], stage.keys[key]))
    left_out = [key for key in range(len(weights)) if key not in order]
    if left_out:
        numbers = [float(weights[left_out].sum()), *terms[left_out].sum(0).tolist()]
        texts = [shown(number, precision) for number in numbers]
        rows.append(Row("", [*blank, *texts], f"{REST} {len(left_out)} more"))
    total = [1.0, *stage.context[head, place].tolist()]
    texts = [*blank, *(shown(number, precision) for number in total)]
    rows = with_total(rows, Row("=", texts, stage.queries[place]))
    return Table(rows, [*columns, names.weight, f"{names.weight}·{names.value}"])


def head_block(step: DecodingStep, precision: int) -> Block:
    """The dense head's candidates, and the probability of all others together."""
    digits, names = max(precision, 4), {each.id: each.token for each in step.candidates}
    names[step.produced_id] = step.produced  # a forced one may be far from the best
    shares = [float(step.head.probabilities[id]) for id in names]
    rows = [
        Row("", [shown(float(step.head.logits[id]), precision), shown(share, digits)], name)
        for (id, name), share in zip(names.items(), shares, strict=True)
    ]
    rest = len(step.head.probabilities) - len(names)
    rows.append(Row("", ["", shown(1 - sum(shares), digits)], f"{REST} {rest} more together"))
    sentence = head_sentence(step) + (" (forced)" if step.is_forced else "")
    return Block(step.number, "head", sentence, [Table(rows, ["logit", "probability"])])


def head_sentence(step: DecodingStep) -> str:
    fed = f"{read_by_head(step.stages)} of {step.fed}"
    return f"Feed {fed} to a dense network to produce {step.produced}"
