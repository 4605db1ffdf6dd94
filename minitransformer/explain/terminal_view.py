"""A walk-through on a terminal: 80 columns, matrices aligned, a word last on its line."""

import os
import sys
import textwrap
import unicodedata
from collections.abc import Iterator

from minitransformer.explain.attention_view import attention_views
from minitransformer.explain.figures import shown, shown_terms
from minitransformer.explain.narration import (
    MOST_WORDS,
    REST,
    Block,
    Row,
    Table,
    head_block,
    narrate,
    source_block,
)
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough

WIDTH = 80
NARROW = 30  # columns that numbers have at least, however long the words are
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def wants_colour() -> bool:
    """Colour is for terminals, and for people who have not declined it."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


class View:
    """Turns walk-throughs into lines."""

    def __init__(self, *, precision: int = 3, colour: bool = False) -> None:
        self.precision = precision
        self.colour = colour

    def bold(self, text: str) -> str:
        return f"{BOLD}{text}{PLAIN}" if self.colour else text

    def dim(self, text: str) -> str:
        return f"{DIM}{text}{PLAIN}" if self.colour else text

    def compact(self, walk: Walkthrough, step: int | None = None) -> Iterator[str]:
        """One block per produced token."""
        yield from self.opening(walk)
        for each in walk.steps:
            if step in (None, each.number):
                yield ""
                yield from self.decoding_step(walk, each)
        yield ""
        yield from self.shift(walk)

    def full(
        self, walk: Walkthrough, step: int | None = None, only: str | None = None
    ) -> Iterator[str]:
        """Everything, or one step of it, or one part of the model."""
        yield from self.opening(walk)
        shown_step = None
        for block in narrate(walk, self.precision):
            if step not in (None, block.step) or not is_within(block.path, only):
                continue
            if block.step != shown_step:
                shown_step = block.step
                yield ""
                yield self.bold("Encoder" if block.step == 0 else f"Decoder, step {block.step}")
            yield ""
            yield from self.block(block)
        yield ""
        yield from self.shift(walk)

    def attention(self, walk: Walkthrough) -> Iterator[str]:
        """Every attention as a matrix, a row per token that looks; columns are numbered."""
        for view in attention_views(walk):
            labels = view.queries
            if view.produced:
                labels = [f"{fed} → {new}" for fed, new in zip(labels, view.produced, strict=True)]
            for head, weights in enumerate(view.weights.tolist()):
                of = f", head {head + 1} of {len(view.weights)}" if len(view.weights) > 1 else ""
                yield self.bold(f"{view.look}{of}") + self.dim(f"  [{view.name}]")
                if len(view.keys) > MOST_WORDS:
                    for row, label in zip(weights, labels, strict=True):
                        yield self.filled(f"{label}: {self.top(row, view.keys)}", "    ", "      ")
                    continue
                columns = ", ".join(f"{n} {key}" for n, key in enumerate(view.keys, start=1))
                yield self.filled(f"over {columns}", "  ", "    ")
                rows = [
                    Row("", self.weights(row, view.allowed[place].tolist()), labels[place])
                    for place, row in enumerate(weights)
                ]
                numbers = [str(n) for n in range(1, len(view.keys) + 1)]
                yield from self.table(Table(rows, numbers))

    def weights(self, row: list[float], allowed: list[bool]) -> list[str]:
        """Weights that add up to 1; a dash where nobody may look."""
        texts = shown_terms(row, 1.0, self.precision)
        return [text if may else "-" for text, may in zip(texts, allowed, strict=True)]

    def top(self, row: list[float], keys: list[str]) -> str:
        """The largest weights of a row with their words, and what is left of it."""
        best = sorted(range(len(row)), key=lambda place: row[place], reverse=True)[:4]
        shares = [row[place] for place in best]
        texts = shown_terms([*shares, 1 - sum(shares)], 1.0, self.precision)
        told = [f"{text} {keys[place]}" for text, place in zip(texts, best, strict=False)]
        return ", ".join([*told, f"{texts[-1]} {REST} {len(row) - len(best)} more"])

    def why(self, walk: Walkthrough) -> Iterator[str]:
        for step in walk.steps:
            yield from self.block(source_block(walk, step, self.precision))

    def comparison(self, tokens: list[str], before: list[float], now: list[float]) -> Iterator[str]:
        """The probability of each token of a translation, before and after a change."""
        rows = [
            Row("", [shown(value, 4) for value in values], token)
            for *values, token in zip(before, now, tokens, strict=True)
        ]
        yield from self.table(Table(rows, ["before", "now"]))

    def opening(self, walk: Walkthrough) -> Iterator[str]:
        yield self.bold(self.filled(walk.text, "", ""))
        words = [
            f"{id} {token}" if not away else f"({token} is hidden)"
            for id, token, away in zip(walk.source_ids, walk.source, walk.hidden, strict=True)
        ]
        yield self.filled(f"ids: {', '.join(words)}", "  ", "    ")

    def filled(self, text: str, first: str, later: str) -> str:
        return textwrap.fill(
            text, WIDTH, initial_indent=first, subsequent_indent=later,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip

    def decoding_step(self, walk: Walkthrough, step: DecodingStep) -> Iterator[str]:
        yield self.bold(f"Step {step.number}")
        yield f"  decoder input  {step.fed}"
        if step.expected:
            yield f"  expected       {step.expected}"
        forced = " (forced)" if step.is_forced else ""
        yield f"  produced       {self.bold(step.produced)}{forced}"
        yield from self.block(source_block(walk, step, self.precision), indent="  ")
        stage = step.cross_attention
        if len(stage.weights) > 1 or ".layers.0." not in stage.path:
            layer = int(stage.path.split(".")[2]) + 1
            mean = f"mean of {len(stage.weights)} heads" if len(stage.weights) > 1 else "the head"
            yield self.dim(f"    attention: {mean} of layer {layer}, the last")
        yield from self.block(head_block(step, self.precision), indent="  ")

    def shift(self, walk: Walkthrough) -> Iterator[str]:
        """Decoder input, expected and produced, so that the shift by one place is seen."""
        lines = {"decoder input": [step.fed for step in walk.steps]}
        if any(step.expected for step in walk.steps):
            lines["expected"] = [step.expected for step in walk.steps]
        lines["produced"] = [step.produced for step in walk.steps]
        columns = list(zip(*lines.values(), strict=True))
        widths = [max(map(len, column)) for column in columns]
        fits = sum(widths) + 2 * len(widths) + 15 <= WIDTH
        if fits and all(is_plain(word) for words in lines.values() for word in words):
            for name, words in lines.items():
                cells = [f"{word:{width}}" for word, width in zip(words, widths, strict=True)]
                yield f"{name:15}{'  '.join(cells)}".rstrip()
        else:  # terminals disagree about the width of such words, so each ends its line
            for name, words in lines.items():
                for number, word in enumerate(words, start=1):
                    yield f"{name if number == 1 else '':15}{number:3}  {word}"
        if not walk.is_finished:
            yield self.dim(f"no end after {len(walk.steps)} tokens; cut there")

    def block(self, block: Block, indent: str = "") -> Iterator[str]:
        told = (
            block.sentence
            if block.path in ("why", "head")
            else (f"{block.sentence}  [{block.path}]")
        )
        yield self.filled(told, indent, f"{indent}  ")
        for table in block.tables:
            for line in self.table(table):
                yield f"{indent}{line}"

    def table(self, table: Table) -> Iterator[str]:
        """Numbers under each other, words last; as many columns as there is room for."""
        names = max(len(row.name) for row in table.rows)
        count = max(len(row.numbers) for row in table.rows)
        texts = [row.numbers for row in table.rows]
        if table.headings:
            texts = [table.headings, *texts]
        widths = [
            max((len(row[n]) for row in texts if n < len(row)), default=0) for n in range(count)
        ]
        words = max((len(row.word) for row in table.rows), default=0)
        room = max(WIDTH - 8 - names - min(words, 30), NARROW)
        columns = columns_that_fit(widths, room)
        left_out = f"{REST} {count - columns} more" if columns < count else ""
        if table.headings:
            headings = zip(table.headings[:columns], widths, strict=False)
            cells = [text.rjust(width) for text, width in headings]
            yield self.dim(f"    {'':{names}}  {'  '.join(cells)}")
        for row in table.rows:
            cells = [
                text.rjust(width)
                for text, width in zip(row.numbers[:columns], widths, strict=False)
            ]
            numbers = "  ".join(cells)
            rest = self.dim(f"  {left_out}") if left_out and len(row.numbers) > columns else ""
            yield f"    {row.name:{names}}  {numbers}{rest}  {row.word}".rstrip()


def columns_that_fit(widths: list[int], room: int) -> int:
    """How many columns fit, with room for the words "… 58 more" if it is not all of them."""
    if sum(widths) + 2 * len(widths) <= room:
        return len(widths)
    used = 14
    for number, width in enumerate(widths):
        used += width + 2
        if used > room:
            return max(number, 1)
    return len(widths)


def is_within(path: str, only: str | None) -> bool:
    return only is None or path == only or path.startswith(f"{only}.")


def is_plain(word: str) -> bool:
    """Is every character of a word one column wide, from left to right?"""
    return all(
        unicodedata.category(each)[0] != "M"
        and unicodedata.east_asian_width(each) not in "WF"
        and unicodedata.bidirectional(each) not in ("R", "AL")
        for each in word
    )
