"""What happens in a recurrent model, told as on the sheets: h, s, e, α, context, [context ; s]."""

from collections.abc import Iterator

from torch import Tensor

from minitransformer.explain.blocks import Block, Row, Table, listed, vectors
from minitransformer.explain.figures import shown
from minitransformer.explain.stages import (
    AttentionStage,
    GruStage,
    JoinedStage,
    LstmStage,
    NarrowedStage,
    Stage,
)

CELLS = {GruStage: "a GRU", LstmStage: "an LSTM"}
FORMULAS = {
    GruStage: "(1-z)·n + z·(state before)",
    LstmStage: "o·tanh(c), where c is f·(cell before) + i·g",
}


def recurrence_sentence(stage: GruStage | LstmStage) -> str:
    cell, formula, words = CELLS[type(stage)], FORMULAS[type(stage)], listed(stage.tokens)
    if stage.path.startswith("decoder"):
        return f"Read {words} with {cell}; its state s is {formula}"
    way = "right to left" if stage.is_leftward else "left to right"
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
    for place, token in reversed(words) if stage.is_leftward else words:
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
