"""A walk-through told in the order and the words of the sheets that people work through by hand.

What is told is blocks; renderers show them.
"""

from collections.abc import Iterator

from minitransformer.explain.blocks import (
    REST,
    Block,
    Row,
    Table,
    listed,
    most_important,
    sums,
    vectors,
    with_total,
)
from minitransformer.explain.figures import shown
from minitransformer.explain.stages import (
    AttentionStage,
    EmbeddingStage,
    FeedForwardStage,
    NormStage,
    ResidualStage,
    Stage,
)
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough
from minitransformer.explain.word_view import produced_words, words_of_walk
from minitransformer.model.attention import merge_heads


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
    raise ValueError(stage.path)


def attention_sentence(stage: AttentionStage) -> str:
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
            rows = vectors("widened", stage.widened, stage.tokens, precision)
            rows += vectors("hidden", stage.hidden, stage.tokens, precision)
            rows += vectors("output", stage.output, stage.tokens, precision)
            yield Block(step, stage.path, sentence_of(step, stage), [Table(rows)])


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
        rows = vectors("Q", stage.query[head], stage.queries, precision)
        new = 0 if stage.look == "cross-attention" else -len(stage.queries)  # the rest were told
        rows += vectors("K", stage.key[head][new:], stage.keys[new:], precision)
        rows += vectors("V", stage.value[head][new:], stage.keys[new:], precision)
        yield Block(step, path, sentence_of(step, stage) + of, [Table(rows)])
        for place, word in enumerate(stage.queries):
            pairs = listed([f"{word} and {key}" for key in stage.keys])
            told = f"Calculate the attention between {pairs}{of}, and update the V embedding"
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
    columns = {"score": stage.scores, f"/√{stage.query.shape[-1]}": stage.scaled}
    if stage.scores.equal(stage.scaled):  # a model that does not scale
        columns = {"score": stage.scores}
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
    return Table(rows, [*columns, "weight", "weight·V"])


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
    sentence = f"Feed the latest embedding of {step.fed} to a dense network to produce "
    sentence += step.produced + (" (forced)" if step.is_forced else "")
    return Block(step.number, "head", sentence, [Table(rows, ["logit", "probability"])])


def source_block(walk: Walkthrough, step: DecodingStep, precision: int) -> Block:
    """Where a token looked, and what it would have been worth without each word."""
    weights = step.cross_attention.weights.mean(dim=0)[0].tolist()  # [S]
    sentence = (
        f"Why {step.produced}? Attention{of_heads(step)}, and the change of log-probability "
        "without a word"
    )
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
            f"Attention{of_heads(walk.steps[0])}{mean}, and the change of log-probability "
            "without a whole word"
        )
        table = reasons_table(word.attention, word.why, source, precision)
        yield Block(last, "why", sentence, [table])


def of_heads(step: DecodingStep) -> str:
    num_heads = len(step.cross_attention.weights)
    return "" if num_heads == 1 else f" (mean of {num_heads} heads, last layer)"


def reasons_table(
    weights: list[float], why: list[float | None], words: list[str], precision: int
) -> Table:
    """A line for each source word that matters, and one for all others together."""
    changes = [0.0 if change is None else change for change in why]
    importance = [w + abs(change) for w, change in zip(weights, changes, strict=True)]
    order = most_important(importance)
    left_out = [place for place in range(len(weights)) if place not in order]
    rows = [
        Row("", [shown(weights[place], precision), told_change(why[place], precision)],
            words[place])
        for place in order
    ]  # fmt: skip
    if left_out:
        share = shown(sum(weights[place] for place in left_out), precision)
        rows.append(Row("", [share, ""], f"{REST} {len(left_out)} more together"))
    return Table(rows, ["attention", "without it"])


def told_change(change: float | None, precision: int) -> str:
    if change is None:
        return "-"
    text = shown(change, precision)
    return text if text.startswith("-") else f"+{text}"
