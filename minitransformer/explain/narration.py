"""A walk-through in the order and the words of the hand-worked sheets, as sentences and tables."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from torch import Tensor

from minitransformer.explain.attention_maps import produced_words, words_of_walk
from minitransformer.explain.stages import (
    TRANSFORMER_NAMES,
    AttentionStage,
    EmbeddingStage,
    FeedForwardStage,
    GruStage,
    JoinedStage,
    LstmStage,
    NormStage,
    OutputProjectionStage,
    ResidualStage,
    Stage,
)
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough
from minitransformer.model.attention import merge_heads

MAX_WORDS = 8  # of a table, with the sum of the rest, or of a sentence, which drops its middle
REST = "…"
ROUNDING = "rounding"  # a row that makes displayed terms add up to their displayed total


@dataclass(frozen=True)
class TableRow:
    """One line of a table: its name, its numbers, and the word that they belong to."""

    name: str
    numbers: list[str]
    word: str


@dataclass(frozen=True)
class Table:
    rows: list[TableRow]
    headings: list[str] = field(default_factory=list)  # of the numbers, where they differ in kind


@dataclass(frozen=True)
class Block:
    """One thing that the model does: a sentence, and tables of its numbers."""

    step: int  # 0 is the encoder
    path: str
    sentence: str
    tables: list[Table]


def narrate(walk: Walkthrough, precision: int) -> Iterator[Block]:
    """Yield every block, from the embeddings of the source to the last choice."""
    for stage in walk.encoder:
        yield from stage_blocks(0, stage, precision)
    for step in walk.steps:
        for stage in step.stages:
            yield from stage_blocks(step.number, stage, precision)
        yield head_block(step, precision)
        yield source_block(walk, step, precision)


def stage_blocks(step: int, stage: Stage, precision: int) -> Iterator[Block]:
    """Yield the blocks of one stage: several of an attention, one or two of an embedding."""
    if isinstance(stage, AttentionStage):
        yield from attention_blocks(step, stage, precision)
        return
    tables = stage_tables(stage, precision)
    if not isinstance(stage, EmbeddingStage):
        yield Block(step, stage.path, sentence_of(step, stage), tables)
        return
    ids = Table([TableRow("id", [str(id) for id in stage.ids], "")])
    yield Block(step, stage.path, sentence_of(step, stage), [ids, *tables])
    if stage.positions is not None:
        sentence = "Add positional encoding to determine the order of the words"
        values = (stage.vectors, stage.positions, stage.output)
        table = Table(sums(*values, stage.tokens, precision, "position"))
        yield Block(step, f"{stage.path}.positions", sentence, [table])


def stage_tables(stage: Stage, precision: int) -> list[Table]:
    """Return the vectors of every token at every point of a stage."""
    assert not isinstance(stage, AttentionStage)
    match stage:
        case GruStage() | LstmStage():
            return recurrence_tables(stage, precision)
        case ResidualStage():
            name = "V" if stage.block == "attention" else "output"
            values = (stage.states, stage.update, stage.total)
            return [Table(sums(*values, stage.tokens, precision, name))]
        case JoinedStage():
            joined = "h" if stage.path.startswith("encoder") else "[context ; s]"
            tensors = dict(zip((*stage.parts, joined), (stage.first, stage.second, stage.output),
                               strict=True))  # fmt: skip
            parts = [vectors(name, each, stage.tokens, precision) for name, each in tensors.items()]
            return [Table([row for of_token in zip(*parts, strict=True) for row in of_token])]
        case EmbeddingStage():
            tensors = {"embedding": stage.vectors}
        case NormStage():
            tensors = {"before": stage.before, "after": stage.after}
        case FeedForwardStage():
            tensors = {"fc1": stage.pre_activation, "hidden": stage.hidden,
                       "output": stage.output}  # fmt: skip
        case OutputProjectionStage():
            tensors = {"[context ; s]": stage.joined, "output": stage.output}
    parts = [vectors(name, each, stage.tokens, precision) for name, each in tensors.items()]
    return [Table([row for part in parts for row in part])]


def attention_blocks(step: int, stage: AttentionStage, precision: int) -> Iterator[Block]:
    """Yield, for each head, its projections and a table for each query; then the output."""
    names, num_heads = stage.names, len(stage.query)
    for head in range(num_heads):
        of_head = f" (head {head} of {num_heads})" if num_heads > 1 else ""
        path = f"{stage.path}.{head}" if num_heads > 1 else stage.path
        rows = vectors(names.query, stage.query[head], stage.queries, precision)
        new = 0 if stage.is_cross else -len(stage.queries)  # earlier keys were listed before
        rows += vectors(names.key, stage.key[head][new:], stage.keys[new:], precision)
        if names.key != names.value:
            rows += vectors(names.value, stage.value[head][new:], stage.keys[new:], precision)
        yield Block(step, path, sentence_of(step, stage) + of_head, [Table(rows)])
        for index, word in enumerate(stage.queries):
            if names == TRANSFORMER_NAMES:
                pairs = listed([f"{word} and {key}" for key in stage.keys])
                sentence = f"Calculate the attention between {pairs}{of_head}, "
                sentence += "and update the V embedding"
            else:
                sentence = f"Softmax of the scores of {word} gives α of {listed(stage.keys)}; "
                sentence += "the context vector is the sum of α·h"
            yield Block(step, path, sentence, [attention_table(stage, head, index, precision)])
    has_projection = not merge_heads(stage.context[None])[0].equal(stage.output)
    if num_heads > 1 or has_projection:
        words = listed(stage.queries)
        sentence = f"Put the heads of {words} side by side" if num_heads > 1 else f"Take {words}"
        sentence += ", and multiply by the matrix W_O" if has_projection else ""
        rows = vectors("V", stage.output, stage.queries, precision)
        yield Block(step, stage.path, sentence, [Table(rows)])


def attention_table(stage: AttentionStage, head: int, index: int, precision: int) -> Table:
    """Return scores, weights and weighted values of one query, a row per key; columns add up."""
    weights = stage.weights[head, index]  # [S]
    terms = weights[:, None] * stage.value[head]  # [S, K]
    names = stage.names
    columns = {names.score: stage.scores}
    if not stage.scores.equal(stage.scaled):
        columns[f"/√{stage.query.shape[-1]}"] = stage.scaled
    blank = [""] * len(columns)
    listed_keys = most_important(weights.tolist())
    rows = []
    for key in listed_keys:
        scores = [format_number(float(each[head, index, key]), precision)
                  for each in columns.values()]  # fmt: skip
        if not stage.allowed[index, key]:
            scores[-1] = "-inf"
        numbers = format_all([float(weights[key]), *terms[key].tolist()], precision)
        rows.append(TableRow("", [*scores, *numbers], stage.keys[key]))
    if rest := [key for key in range(len(weights)) if key not in listed_keys]:
        numbers = format_all([float(weights[rest].sum()), *terms[rest].sum(0).tolist()], precision)
        rows.append(TableRow("", [*blank, *numbers], f"{REST} {len(rest)} more"))
    total = format_all([1.0, *stage.context[head, index].tolist()], precision)
    rows = with_total(rows, TableRow("=", [*blank, *total], stage.queries[index]))
    return Table(rows, [*columns, names.weight, f"{names.weight}·{names.value}"])


def recurrence_tables(stage: GruStage | LstmStage, precision: int) -> list[Table]:
    """Return a table for each token, in the order in which the layer reads them."""
    if isinstance(stage, GruStage):
        values = {
            "state before": stage.before,
            "reset r": stage.reset,
            "update z": stage.update,
            "candidate n": stage.candidate,
        }
    else:
        values = {
            "state before": stage.before,
            "cell before": stage.cell_before,
            "input i": stage.input,
            "forget f": stage.forget,
            "candidate g": stage.candidate,
            "output o": stage.output,
            "cell c": stage.cell,
        }
    tables, tokens = [], list(enumerate(stage.tokens))
    for index, token in reversed(tokens) if stage.is_backward else tokens:
        state = format_all(stage.state[index].tolist(), precision)
        if stage.mask[index]:
            rows = []
            for name, each in values.items():
                word = token if each is stage.before else ""
                rows.append(TableRow(name, format_all(each[index].tolist(), precision), word))
            rows.append(TableRow("= state", state, token))
        else:
            rows = [TableRow("state, unchanged", state, token)]
        tables.append(Table(rows))
    return tables


def head_block(step: DecodingStep, precision: int) -> Block:
    """Return the candidates of the dense head, and the probability of all other tokens."""
    digits, names = max(precision, 4), {each.id: each.token for each in step.candidates}
    names[step.produced_id] = step.produced  # a forced one may be far from the best
    probabilities = [float(step.head.probabilities[id]) for id in names]
    rows = []
    for (id, name), probability in zip(names.items(), probabilities, strict=True):
        logit = format_number(float(step.head.logits[id]), precision)
        rows.append(TableRow("", [logit, format_number(probability, digits)], name))
    num_others = len(step.head.probabilities) - len(names)
    others = format_number(1 - sum(probabilities), digits)
    rows.append(TableRow("", ["", others], f"{REST} {num_others} more together"))
    sentence = head_sentence(step) + (" (forced)" if step.is_forced else "")
    return Block(step.number, "head", sentence, [Table(rows, ["logit", "probability"])])


def source_block(walk: Walkthrough, step: DecodingStep, precision: int) -> Block:
    """Return a token's attention to each source word, and its change without that word."""
    attention = step.cross_attention
    weights = None if attention is None else attention.weights.mean(dim=0)[0].tolist()  # [S]
    sentence = f"Why {step.produced}? {source_columns(step)} without a word"
    table = source_table(weights, step.why, walk.source, precision)
    return Block(step.number, "why", sentence, [table])


def word_blocks(walk: Walkthrough, precision: int, step: int | None = None) -> Iterator[Block]:
    """Yield `source_block` for whole words instead of subwords, or only that of one step."""
    source = [word.text for word in words_of_walk(walk).source]
    for word in produced_words(walk):
        if step is not None and step not in word.steps:
            continue
        first, last = word.steps[0], word.steps[-1]
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        mean = "" if first == last else ", mean of these steps"
        probability = format_number(word.probability, max(precision, 4))
        sentence = (
            f"Why {word.text} ({steps}, probability {probability})? "
            f"{source_columns(walk.steps[0], mean)} without a whole word"
        )
        table = source_table(word.attention, word.why, source, precision)
        yield Block(last, "why", sentence, [table])


def source_columns(step: DecodingStep, mean: str = "") -> str:
    """Describe the columns of `source_table`."""
    attention, change = step.cross_attention, "the change of log-probability"
    if attention is None:
        return change.capitalize()
    num_heads = len(attention.weights)
    of_heads = "" if num_heads == 1 else f" (mean of {num_heads} heads, last layer)"
    return f"Attention{of_heads}{mean}, and {change}"


def source_table(
    weights: list[float] | None, changes: list[float | None], words: list[str], precision: int
) -> Table:
    """Return a row for each source word that matters, and one for all others together."""
    attention = [0.0] * len(words) if weights is None else weights
    importance = [weight + abs(change or 0.0)
                  for weight, change in zip(attention, changes, strict=True)]  # fmt: skip
    listed_words = most_important(importance)

    def row(weight: float, change: str, word: str) -> TableRow:
        numbers = [change] if weights is None else [format_number(weight, precision), change]
        return TableRow("", numbers, word)

    def signed(change: float | None) -> str:
        if change is None:
            return "-"
        text = format_number(change, precision)
        return text if text.startswith("-") else f"+{text}"

    rows = [row(attention[n], signed(changes[n]), words[n]) for n in listed_words]
    if rest := [n for n in range(len(words)) if n not in listed_words]:
        weight = sum(attention[n] for n in rest)
        rows.append(row(weight, "", f"{REST} {len(rest)} more together"))
    return Table(rows, ["without it"] if weights is None else ["attention", "without it"])


def sentence_of(step: int, stage: Stage) -> str:
    """Return what happens in a stage, in the words of the sheets."""
    is_encoder = step == 0
    words = listed(stage.queries if isinstance(stage, AttentionStage) else stage.tokens)
    match stage:
        case EmbeddingStage():
            return f"{'Start with embeddings' if is_encoder else 'Take the embedding'} of {words}"
        case AttentionStage(names=names, keys=keys):
            if names != TRANSFORMER_NAMES:
                formula = f"{names.score} = {names.query} · {names.key}"
                return (
                    f"Compare the state s of {words} with the states h of {listed(keys)}: {formula}"
                )
            if stage.is_cross:
                return (
                    f"Convert the latest embedding of {words} to a Q embedding with the matrices "
                    f"of cross attention; K and V embeddings are those of {listed(keys)}"
                )
            side = "encoder" if is_encoder else "decoder"
            return f"Transform {words} into Q, K and V embedding with the matrices of the {side}"
        case ResidualStage():
            update = "V embedding" if stage.block == "attention" else "output of the network"
            is_first = stage.path.endswith("layers.0.self_attention_residual")
            their = "its" if len(stage.tokens) == 1 else "their"
            original = "original" if is_first else "latest"
            return f"Add the {update} of {words} to {their} {original} embedding"
        case NormStage():
            return f"Normalise the embedding of {words}"
        case FeedForwardStage():
            return f"Feed {words} through the feed-forward network"
        case GruStage() | LstmStage():
            if isinstance(stage, GruStage):
                cell, formula = "a GRU", "(1-z)·n + z·(state before)"
            else:
                cell, formula = "an LSTM", "o·tanh(c), where c is f·(cell before) + i·g"
            if not is_encoder:
                return f"Read {words} with {cell}; its state s is {formula}"
            direction = "right to left" if stage.is_backward else "left to right"
            return (
                f"Read {words} with {cell}, from {direction}; the state after a word is {formula}"
            )
        case JoinedStage():
            if is_encoder:
                parts = "h = [left to right ; right to left]"
                return f"Put both states of {words} side by side: {parts}"
            return f"Concatenate the context vector and the state of {words}: [context ; s]"
        case OutputProjectionStage():
            return f"Multiply [context ; s] of {words} by the matrix W_O, and take tanh"


def head_input(stages: list[Stage]) -> str:
    """Return what the dense head reads after these stages."""
    match stages[-1]:
        case GruStage() | LstmStage():
            return "the state"
        case JoinedStage():
            return "[context ; s]"
        case OutputProjectionStage():
            return "the output"
    return "the latest embedding"


def head_sentence(step: DecodingStep) -> str:
    state = f"{head_input(step.stages)} of {step.fed}"
    return f"Feed {state} to a dense network to produce {step.produced}"


def listed(words: list[str]) -> str:
    """Join words by commas; leave out the middle of a long list."""
    if len(words) <= MAX_WORDS:
        return ", ".join(words)
    return f"{', '.join(words[:4])}, {REST} {len(words) - 5} more, {words[-1]}"


def most_important(importance: list[float]) -> list[int]:
    """Return the indices of the words that a table has room for, in their own order."""
    if len(importance) <= MAX_WORDS:
        return list(range(len(importance)))
    best = sorted(range(len(importance)), key=lambda index: importance[index], reverse=True)
    return sorted(best[: MAX_WORDS - 2])


def format_number(value: float, precision: int) -> str:
    """Format a number with so many digits after the point, without a minus zero."""
    text = f"{value:.{precision}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def format_all(values: list[float], precision: int) -> list[str]:
    return [format_number(value, precision) for value in values]


def vectors(name: str, values: Tensor, tokens: list[str], precision: int) -> list[TableRow]:
    """Return a row for the vector of each token."""
    return [
        TableRow(name, format_all(row, precision), token)
        for row, token in zip(values.tolist(), tokens, strict=True)
    ]


def sums(
    before: Tensor, update: Tensor, after: Tensor, tokens: list[str], precision: int, name: str
) -> list[TableRow]:
    """Return the rows of before + update = after for each token."""
    rows = []
    values = zip(before.tolist(), update.tolist(), after.tolist(), tokens, strict=True)
    for *terms, token in values:
        first, second, total = (format_all(each, precision) for each in terms)
        rows += with_total(
            [TableRow("", first, token), TableRow(f"+ {name}", second, "")],
            TableRow("=", total, token),
        )
    return rows


def with_total(terms: list[TableRow], total: TableRow) -> list[TableRow]:
    """Return terms and their total, with a row between them for what rounding leaves over."""
    rest = rounding_row([row.numbers for row in terms], total.numbers)
    return [*terms, *([TableRow(ROUNDING, rest, "")] if rest else []), total]


def rounding_row(rows: list[list[str]], totals: list[str]) -> list[str] | None:
    """Return what makes displayed terms add up to their displayed totals; None if they do.

    A number is rounded by itself, so that it is the same wherever it appears; the effect on a sum
    has a row of its own.
    """
    missing = [
        Decimal(total) - sum(Decimal(row[column]) for row in rows) if total else None
        for column, total in enumerate(totals)
    ]
    if not any(missing):
        return None
    return ["" if each is None else str(each) if each else "0" for each in missing]
