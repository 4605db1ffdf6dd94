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
from minitransformer.explain.reason_blocks import source_block
from minitransformer.explain.recurrent_narration import (
    comparison_sentence,
    context_sentence,
    joined_sentence,
    narrowed_sentence,
    read_by_head,
    recurrence_sentence,
    tell_joined,
    tell_narrowed,
    tell_recurrence,
)
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
            rows = vectors("widened", stage.widened, stage.tokens, precision)
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
