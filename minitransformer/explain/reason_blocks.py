"""Why this word? Told as tables: where a token looked, and what it is worth without each word."""

from collections.abc import Iterator

from minitransformer.explain.blocks import REST, Block, Row, Table, most_important
from minitransformer.explain.figures import shown
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough
from minitransformer.explain.word_view import produced_words, words_of_walk


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
