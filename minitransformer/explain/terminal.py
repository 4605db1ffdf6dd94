"""A walk-through in the terminal."""

import os
import sys
import textwrap
import unicodedata
from collections.abc import Iterator
from itertools import accumulate, zip_longest

from minitransformer.data.tokenizer import UNK_ID
from minitransformer.errors import escape_controls, printable_word
from minitransformer.explain.attention_maps import attention_views, views_by_words
from minitransformer.explain.interventions import log_probabilities
from minitransformer.explain.narration import (
    MOST_WORDS,
    REST,
    ROUNDING,
    Block,
    Row,
    Table,
    head_block,
    narrate,
    shown,
    source_block,
    word_blocks,
)
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough

WIDTH = 80


def wrapped(text: str, first: str, later: str) -> str:
    """A text in lines, words never broken; `first` and `later` begin them."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


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

    def attention(self, walk: Walkthrough, *, by_words: bool = False) -> Iterator[str]:
        """Every attention as a matrix, a row per token that looks; columns are numbered."""
        for view in views_by_words(walk) if by_words else attention_views(walk):
            labels = view.queries
            if view.produced and (view.where == "cross" or not by_words):
                labels = [f"{fed} → {new}" for fed, new in zip(labels, view.produced, strict=True)]
            for head, weights in enumerate(view.weights.tolist()):
                of = f", head {head} of {len(view.weights)}" if len(view.weights) > 1 else ""
                yield self.bold(f"{view.kind}{of}") + self.dim(f"  [{view.name}]")
                if len(view.keys) > MOST_WORDS:
                    for place, row in enumerate(weights):
                        told = self.top(row, view.keys, view.allowed[place].tolist())
                        yield self.filled(f"{labels[place]}: {told}", "    ", "      ")
                    continue
                columns = ", ".join(f"{n} {key}" for n, key in enumerate(view.keys, start=1))
                yield self.filled(f"over {columns}", "  ", "    ")
                rows = []
                for place, row in enumerate(weights):
                    seen = zip(row, view.allowed[place].tolist(), strict=True)
                    texts = [shown(each, self.precision) if may else "-" for each, may in seen]
                    rows.append(Row("", texts, labels[place]))
                numbers = [str(n) for n in range(1, len(view.keys) + 1)]
                yield from self.table(Table(rows, numbers))

    def top(self, row: list[float], keys: list[str], allowed: list[bool]) -> str:
        """The largest weights of a row with their words and places, and what is left of it."""
        seen = [place for place, may in enumerate(allowed) if may]
        best = sorted(seen, key=lambda place: row[place], reverse=True)[:4]
        told = [f"{shown(row[place], self.precision)} {keys[place]}[{place + 1}]" for place in best]
        if len(seen) > len(best):
            rest = shown(1 - sum(row[place] for place in best), self.precision)
            told.append(f"{rest} {REST} {len(seen) - len(best)} more")
        return ", ".join(told)

    def checked(self, count: int) -> str:
        return self.dim(f"checked: {count:,} values, each recomputed from those before it")

    def why(self, walk: Walkthrough) -> Iterator[str]:
        for step in walk.steps:
            yield from self.block(source_block(walk, step, self.precision))

    def words(self, walk: Walkthrough, step: int | None = None) -> Iterator[str]:
        """The reasons of whole words, or of the one that a step belongs to."""
        for block in word_blocks(walk, self.precision, step):
            yield from self.block(block)

    def change(self, before: Walkthrough, now: Walkthrough) -> Iterator[str]:
        """Two translations, and what the former's tokens are worth now; a forced one's, its own."""
        yield self.filled(f"before  {before.translation}", "  ", "    ")
        yield self.filled(f"now     {now.translation}", "  ", "    ")
        if now.experiment.forced:
            yield "  probability of each token that is produced now"
            columns, tokens = [[step.probability for step in now.steps]], now.steps
        else:
            yield "  probability of each token of the former translation, before and now"
            fed, produced = ([getattr(step, name) for step in before.steps]
                             for name in ("fed_id", "produced_id"))  # fmt: skip
            tokens = before.steps
            columns = [
                log_probabilities(walk.model, [walk.source_ids], fed, produced)[0].exp().tolist()
                for walk in (before, now)
            ]
        rows = [
            Row("", [shown(column[place], 4) for column in columns], step.produced)
            for place, step in enumerate(tokens)
        ]
        yield from self.table(Table(rows, ["before", "now"][-len(columns) :]))

    def opening(self, walk: Walkthrough) -> Iterator[str]:
        yield self.bold(self.filled(walk.text, "", ""))
        words = [
            f"{place} {token} (id {'<UNK>' if id == UNK_ID else id})"
            for place, (id, token) in enumerate(
                zip(walk.source_ids, walk.source, strict=True), start=1
            )
        ]
        yield self.filled(", ".join(words), "  ", "    ")
        if str(walk.experiment):
            yield self.filled(f"changed: {walk.experiment}", "  ", "    ")

    def filled(self, text: str, first: str, later: str) -> str:
        return wrapped(escape_controls(text), first, later)

    def decoding_step(self, walk: Walkthrough, step: DecodingStep) -> Iterator[str]:
        yield self.bold(f"Step {step.number}")
        yield f"  decoder input  {printable_word(step.fed)}"
        if step.expected:
            yield f"  expected       {printable_word(step.expected)}"
        forced = "(forced) " if step.is_forced else ""
        yield f"  produced       {forced}{self.bold(printable_word(step.produced))}"
        yield from self.block(source_block(walk, step, self.precision), indent="  ")
        yield from self.block(head_block(step, self.precision), indent="  ")

    def shift(self, walk: Walkthrough) -> Iterator[str]:
        """Decoder input, expected and produced, so that the shift by one place is seen."""
        lines = {"decoder input": [step.fed for step in walk.steps]}
        if walk.expected:
            lines["expected"] = walk.expected
        lines["produced"] = [step.produced for step in walk.steps]
        columns = list(zip_longest(*lines.values(), fillvalue=""))
        widths = [max(map(len, column)) for column in columns]
        fits = sum(widths) + 2 * len(widths) + 15 <= WIDTH
        if fits and all(is_plain(word) for words in lines.values() for word in words):
            for name, words in lines.items():
                cells = [f"{word:{width}}" for word, width in zip(words, widths, strict=False)]
                yield f"{name:15}{'  '.join(cells)}".rstrip()
        else:  # terminals disagree about the width of such words, so each ends its line
            for number, column in enumerate(columns, start=1):
                for place, (name, word) in enumerate(zip(lines, column, strict=True)):
                    first = number if place == 0 else ""
                    yield f"{first:<4}{name:15}{printable_word(word)}".rstrip()
        if not walk.is_finished:
            yield self.dim(f"no <EOS> within {len(walk.steps)} tokens; truncated")

    def block(self, block: Block, indent: str = "") -> Iterator[str]:
        is_module = block.path not in ("why", "head")
        told = f"{block.sentence}  [{block.path}]" if is_module else block.sentence
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
        if table.headings:
            headings = zip(table.headings[:columns], widths, strict=False)
            cells = [text.rjust(width) for text, width in headings]
            yield self.dim(f"    {'':{names}}  {'  '.join(cells)}")
        for row in table.rows:
            cells = [
                text.rjust(width)
                for text, width in zip(row.numbers[:columns], widths, strict=False)
            ]
            if row.name == ROUNDING and not any(text.strip() not in ("", "0") for text in cells):
                continue  # what is left open lies in what is cut
            numbers = "  ".join(cells)
            more = len(row.numbers) - columns
            rest = self.dim(f"  {REST} {more} more") if more > 0 else ""
            yield f"    {row.name:{names}}  {numbers}{rest}  {printable_word(row.word)}".rstrip()


def columns_that_fit(widths: list[int], room: int) -> int:
    """How many columns fit, with room for the words "… 58 more" if it is not all of them."""
    if sum(widths) + 2 * len(widths) <= room:
        return len(widths)
    used = accumulate((width + 2 for width in widths), initial=14)
    return max(sum(each <= room for each in used) - 1, 1)


def is_within(path: str, only: str | None) -> bool:
    return only is None or path == only or path.startswith(f"{only}.")


def is_plain(word: str) -> bool:
    """Is a word written in letters that every terminal draws one column wide?"""
    return all(
        (each.isascii() and each.isprintable())
        or unicodedata.name(each, "").startswith(("LATIN", "GREEK", "CYRILLIC"))
        for each in word
    )
