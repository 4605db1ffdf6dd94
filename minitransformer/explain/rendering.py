"""A walk-through as text for terminals, as Markdown, and as JSON with every number.

The JSON is one object:
  format         "minitransformer-walkthrough"
  version        2; grows when a key changes its meaning or is removed
  vocabulary     the target's tokens; a token's index is its id, and its index in logits
  parameters     the model's weights by name, or null beyond 100,000 numbers
  walkthroughs   one object per sentence:
    text, translation, is_finished, changed (what an experiment changed, or "")
    source       {"tokens", "ids", "hidden"}, a list each
    expected     the tokens of the reference, if one was given
    encoder      stages
    steps        one object per produced token:
      number     from 1
      fed        {"id", "token"}: the decoder input
      produced   {"id", "token", "probability"}
      is_forced, expected (a token or null)
      candidates [{"id", "token", "probability"}], best first
      why        per source token, the change of the log-probability (natural) without it, or null
      stages     stages, the last of them the head
    words        with --merge-subwords: {"source": words, "produced": one object per word}, the
                 latter with text, fed (the word before), steps, probability, and per source word
                 attention (null in a model without) and why, merged over the subwords of both
                 sides
A stage is an object with "kind" and "path" (the module's name in the model), and by kind, with T
tokens, S keys, H heads, D d_model, K d_head, F d_ff, V vocabulary:
  embedding      tokens, ids, vectors [T, D], positions [T, D] or null, output [T, D]
  norm           tokens, before [T, D], after [T, D]
  attention      attention_type (self-attention, masked self-attention or cross-attention), names
                 (what the sheets call query, key, value, score and weight), queries and keys
                 (words), query [H, T, K], key [H, S, K], value [H, S, K], scores, scaled [H, T, S],
                 allowed [T, S] (the mask), weights [H, T, S], context [H, T, K], output [T, D];
                 from step 2 on, key and value of a cross-attention are null: those of step 1
  feed_forward   tokens, pre_activation [T, F], hidden [T, F], output [T, D]
  residual       block, tokens, states [T, D] + update [T, D] = total [T, D]
  gru, lstm      a recurrent layer, W its width: tokens, is_backward, mask [T] (false: hidden),
                 before [T, W], candidate [T, W], state [T, W]; of a GRU also reset and update, of
                 an LSTM input, forget, output, cell_before and cell
  joined         tokens, parts (names of the two), first [T, W], second [T, W], output [T, 2W]
  output_projection  tokens, joined [T, 2D], output [T, D]: tanh(W_O joined)
  head           state [D], logits [V], probabilities [V]
"""

import dataclasses
import json
import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Iterator
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor

from minitransformer.checkpoint import model_tensors
from minitransformer.data.tokenizer import UNK_ID
from minitransformer.errors import escape_controls, printable_word
from minitransformer.explain.attention_maps import (
    attention_views,
    produced_words,
    views_by_words,
    words_of_walk,
)
from minitransformer.explain.interventions import log_probabilities
from minitransformer.explain.narration import (
    MAX_WORDS,
    REST,
    ROUNDING,
    Block,
    Table,
    TableRow,
    format_number,
    head_block,
    narrate,
    source_block,
    word_blocks,
)
from minitransformer.explain.stages import AttentionStage, HeadStage, Stage
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough
from minitransformer.model.base import EncoderDecoder
from minitransformer.storage import write_output

WIDTH = 80
MAX_LABEL = 30  # columns kept free for the word of a table's row
MIN_NUMBERS = 30  # columns for a table's numbers, however long the words are
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
FORMAT, VERSION = "minitransformer-walkthrough", 2
MAX_PARAMETERS = 100_000  # of a model whose weights are written, too


class TextRenderer:
    """Renders walk-throughs as lines of text."""

    def __init__(self, *, precision: int = 3, colour: bool = False) -> None:
        self.precision = precision
        self.colour = colour

    def bold(self, text: str) -> str:
        return f"{BOLD}{text}{PLAIN}" if self.colour else text

    def dim(self, text: str) -> str:
        return f"{DIM}{text}{PLAIN}" if self.colour else text

    def compact(self, walk: Walkthrough, step: int | None = None) -> Iterator[str]:
        """Yield one block per produced token, or only that of one step."""
        yield from self.opening(walk)
        for each in walk.steps:
            if step not in (None, each.number):
                continue
            yield ""
            yield self.bold(f"Step {each.number}")
            yield f"  decoder input  {printable_word(each.fed)}"
            if each.expected:
                yield f"  expected       {printable_word(each.expected)}"
            forced = "(forced) " if each.is_forced else ""
            yield f"  produced       {forced}{self.bold(printable_word(each.produced))}"
            yield from self.block(source_block(walk, each, self.precision), indent="  ")
            yield from self.block(head_block(each, self.precision), indent="  ")
        yield ""
        yield from self.shift(walk)

    def full(
        self, walk: Walkthrough, step: int | None = None, path: str | None = None
    ) -> Iterator[str]:
        """Yield every block, or only those of one step or of one part of the model."""
        yield from self.opening(walk)
        last_step = None
        for block in narrate(walk, self.precision):
            if step not in (None, block.step) or not is_within(block.path, path):
                continue
            if block.step != last_step:
                last_step = block.step
                yield ""
                yield self.bold(step_title(block.step))
            yield ""
            yield from self.block(block)
        yield ""
        yield from self.shift(walk)

    def attention(self, walk: Walkthrough, *, by_words: bool = False) -> Iterator[str]:
        """Yield every attention as a matrix with a row per query; columns are numbered."""
        for view in views_by_words(walk) if by_words else attention_views(walk):
            labels = view.queries
            if view.produced and (view.where == "cross" or not by_words):
                labels = [f"{fed} → {new}" for fed, new in zip(labels, view.produced, strict=True)]
            for head, weights in enumerate(view.weights.tolist()):
                of_heads = f", head {head} of {len(view.weights)}" if len(view.weights) > 1 else ""
                yield self.bold(f"{view.kind}{of_heads}") + self.dim(f"  [{view.name}]")
                rows = list(zip(labels, weights, view.allowed.tolist(), strict=True))
                if len(view.keys) > MAX_WORDS:
                    for label, row, allowed in rows:
                        largest = self.largest_weights(row, view.keys, allowed)
                        yield wrap_safely(f"{label}: {largest}", "    ", "      ")
                    continue
                columns = ", ".join(f"{n} {key}" for n, key in enumerate(view.keys, start=1))
                yield wrap_safely(f"over {columns}", "  ", "    ")
                table_rows = []
                for label, row, allowed in rows:
                    cells = zip(row, allowed, strict=True)
                    numbers = [format_number(weight, self.precision) if is_allowed else "-"
                               for weight, is_allowed in cells]  # fmt: skip
                    table_rows.append(TableRow("", numbers, label))
                headings = [str(n) for n in range(1, len(view.keys) + 1)]
                yield from self.table(Table(table_rows, headings))

    def largest_weights(self, row: list[float], keys: list[str], allowed: list[bool]) -> str:
        """Return the largest weights of a row with their words and positions, and their rest."""
        indices = [index for index, is_allowed in enumerate(allowed) if is_allowed]
        best = sorted(indices, key=lambda index: row[index], reverse=True)[:4]
        parts = [f"{format_number(row[n], self.precision)} {keys[n]}[{n + 1}]" for n in best]
        if len(indices) > len(best):
            rest = format_number(1 - sum(row[n] for n in best), self.precision)
            parts.append(f"{rest} {REST} {len(indices) - len(best)} more")
        return ", ".join(parts)

    def checked(self, count: int) -> str:
        return self.dim(f"checked: {count:,} values, each recomputed from those before it")

    def why(self, walk: Walkthrough) -> Iterator[str]:
        """Yield each token's attention to the source, and its change without each source token."""
        for step in walk.steps:
            yield from self.block(source_block(walk, step, self.precision))

    def words(self, walk: Walkthrough, step: int | None = None) -> Iterator[str]:
        """Yield attention and changes for whole words, or for the word that a step belongs to."""
        for block in word_blocks(walk, self.precision, step):
            yield from self.block(block)

    def change(self, before: Walkthrough, now: Walkthrough) -> Iterator[str]:
        """Yield both translations and a table of probabilities.

        They are those of the former translation's tokens, before and now; if the beginning is
        forced, those of the current translation's tokens.
        """
        yield wrap_safely(f"before  {before.translation}", "  ", "    ")
        yield wrap_safely(f"now     {now.translation}", "  ", "    ")
        if now.experiment.forced:
            yield "  probability of each token that is produced now"
            headings, steps = ["now"], now.steps
            columns = [[step.probability for step in steps]]
        else:
            yield "  probability of each token of the former translation, before and now"
            headings, steps = ["before", "now"], before.steps
            fed, produced = [step.fed_id for step in steps], [step.produced_id for step in steps]
            columns = [
                log_probabilities(walk.model, [walk.source_ids], fed, produced)[0].exp().tolist()
                for walk in (before, now)
            ]
        rows = [
            TableRow("", [format_number(each, 4) for each in probabilities], step.produced)
            for step, *probabilities in zip(steps, *columns, strict=True)
        ]
        yield from self.table(Table(rows, headings))

    def opening(self, walk: Walkthrough) -> Iterator[str]:
        """Yield the sentence, its tokens, and what an experiment changed."""
        yield self.bold(wrap_safely(walk.text, "", ""))
        tokens = zip(walk.source_ids, walk.source, strict=True)
        words = [
            f"{number} {token} (id {'<UNK>' if id == UNK_ID else id})"
            for number, (id, token) in enumerate(tokens, start=1)
        ]
        yield wrap_safely(", ".join(words), "  ", "    ")
        if str(walk.experiment):
            yield wrap_safely(f"changed: {walk.experiment}", "  ", "    ")

    def shift(self, walk: Walkthrough) -> Iterator[str]:
        """Yield decoder input, expected and produced tokens: the same, shifted by one position."""
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
                for line, (name, word) in enumerate(zip(lines, column, strict=True)):
                    yield f"{'' if line else number:<4}{name:15}{printable_word(word)}".rstrip()
        if not walk.is_finished:
            yield self.dim(f"no <EOS> within {len(walk.steps)} tokens; truncated")

    def block(self, block: Block, indent: str = "") -> Iterator[str]:
        is_module = block.path not in ("why", "head")
        text = f"{block.sentence}  [{block.path}]" if is_module else block.sentence
        yield wrap_safely(text, indent, f"{indent}  ")
        for table in block.tables:
            for line in self.table(table):
                yield f"{indent}{line}"

    def table(self, table: Table) -> Iterator[str]:
        """Yield rows of aligned numbers, words last, with as many columns as fit."""
        lines = [row.numbers for row in table.rows]
        count = max(map(len, lines))
        if table.headings:
            lines = [table.headings, *lines]
        widths = [max((len(row[n]) for row in lines if n < len(row)), default=0)
                  for n in range(count)]  # fmt: skip
        name_width = max(len(row.name) for row in table.rows)
        word_width = min(max(len(row.word) for row in table.rows), MAX_LABEL)
        columns = columns_that_fit(widths, max(WIDTH - 8 - name_width - word_width, MIN_NUMBERS))

        def cells(texts: list[str]) -> list[str]:
            pairs = zip(texts[:columns], widths, strict=False)
            return [text.rjust(width) for text, width in pairs]

        if table.headings:
            yield self.dim(f"    {'':{name_width}}  {'  '.join(cells(table.headings))}")
        for row in table.rows:
            numbers = cells(row.numbers)
            if row.name == ROUNDING and not any(each.strip() not in ("", "0") for each in numbers):
                continue  # the rounding is in columns that are cut off
            num_more = len(row.numbers) - columns
            rest = self.dim(f"  {REST} {num_more} more") if num_more > 0 else ""
            line = f"    {row.name:{name_width}}  {'  '.join(numbers)}{rest}"
            yield f"{line}  {printable_word(row.word)}".rstrip()


def wants_colour() -> bool:
    """Return whether standard output is a terminal, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def wrap(text: str, first: str, later: str) -> str:
    """Wrap a text without breaking words; `first` and `later` are the indents of its lines."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def wrap_safely(text: str, first: str, later: str) -> str:
    """Wrap a text that may have control characters."""
    return wrap(escape_controls(text), first, later)


def columns_that_fit(widths: list[int], room: int) -> int:
    """Return how many columns fit; if not all, with room for the words "… 58 more"."""
    if sum(widths) + 2 * len(widths) <= room:
        return len(widths)
    used = accumulate((width + 2 for width in widths), initial=14)
    return max(sum(each <= room for each in used) - 1, 1)


def step_title(step: int) -> str:
    return f"Decoder, step {step}" if step else "Encoder"


def is_within(path: str, parent: str | None) -> bool:
    """Return whether a path is that of a module, or inside it."""
    return parent is None or path == parent or path.startswith(f"{parent}.")


def is_plain(word: str) -> bool:
    """Return whether every terminal draws each letter of a word one column wide."""
    return all(
        (each.isascii() and each.isprintable())
        or unicodedata.name(each, "").startswith(("LATIN", "GREEK", "CYRILLIC"))
        for each in word
    )


def write_walkthroughs(
    path: Path, walks: list[Walkthrough], precision: int, *, words: bool = False
) -> None:
    """Write walk-throughs to a .json or .md file; `words` adds whole words."""
    if path.suffix.lower() == ".json":
        content = json.dumps(as_json(walks, words=words), ensure_ascii=False, allow_nan=False)
    else:
        content = "\n\n".join(as_markdown(walk, precision, words=words) for walk in walks)
    write_output(path, f"{content}\n".encode())


def as_markdown(walk: Walkthrough, precision: int, *, words: bool = False) -> str:
    """Return all that `TextRenderer.full` yields, as headings and tables."""
    lines = [f"# {escape_markdown(walk.text)} → {escape_markdown(walk.translation)}"]
    step = None
    for block in narrate(walk, precision):
        if block.step != step:
            step = block.step
            lines += ["", f"## {step_title(step)}"]
        lines += block_markdown(block)
    if words:
        lines += ["", "## By words"]
        for block in word_blocks(walk, precision):
            lines += block_markdown(block)
    lines += ["", "| step | decoder input | expected | produced | probability |",
              "|---|---|---|---|---|"]  # fmt: skip
    for each in walk.steps:
        tokens = map(escape_markdown, (each.fed, each.expected, each.produced))
        lines.append(f"| {each.number} | {' | '.join(tokens)} | {each.probability:.4f} |")
    return "\n".join(lines)


def block_markdown(block: Block) -> list[str]:
    lines = ["", f"**{escape_markdown(block.sentence)}** `{block.path}`"]
    for table in block.tables:
        count = max(len(row.numbers) for row in table.rows)
        headings = [*table.headings, *[""] * count][:count]
        lines += ["", f"| | {' | '.join(headings)} | |", "|---" + "|---:" * count + "|---|"]
        for row in table.rows:
            numbers = [*row.numbers, *[""] * count][:count]
            lines.append(f"| {row.name} | {' | '.join(numbers)} | {escape_markdown(row.word)} |")
    return lines


def escape_markdown(text: str) -> str:
    """Escape a text, so that <EOS> is no tag and | ends no cell."""
    return re.sub(r"([\\`*_<>|#\[\]])", r"\\\1", text)


def as_json(walks: list[Walkthrough], *, words: bool = False) -> dict[str, Any]:
    model = walks[0].model
    parameters = model_tensors(model) if is_small(model) else None
    return {
        "format": FORMAT,
        "version": VERSION,
        "vocabulary": list(walks[0].tokenizer.target.tokens),
        "parameters": parameters and {name: each.tolist() for name, each in parameters.items()},
        "walkthroughs": [
            {
                "text": walk.text,
                "translation": walk.translation,
                "is_finished": walk.is_finished,
                "changed": str(walk.experiment),
                "source": {"tokens": walk.source, "ids": walk.source_ids, "hidden": walk.hidden},
                "expected": walk.expected,
                "encoder": [stage_json(stage) for stage in walk.encoder],
                "steps": [step_json(step) for step in walk.steps],
                **({"words": words_json(walk)} if words else {}),
            }
            for walk in walks
        ],
    }


def is_small(model: EncoderDecoder) -> bool:
    """Return whether a file may hold the model's weights as well."""
    return sum(each.numel() for each in model_tensors(model).values()) <= MAX_PARAMETERS


def step_json(step: DecodingStep) -> dict[str, Any]:
    stages = [stage_json(stage) for stage in (*step.stages, step.head)]
    for stage, data in zip(step.stages, stages[:-1], strict=True):
        if step.number > 1 and isinstance(stage, AttentionStage) and stage.is_cross:
            data["key"] = data["value"] = None
    produced = {"id": step.produced_id, "token": step.produced, "probability": step.probability}
    return {
        "number": step.number,
        "fed": {"id": step.fed_id, "token": step.fed},
        "produced": produced,
        "is_forced": step.is_forced,
        "expected": step.expected or None,
        "candidates": [candidate._asdict() for candidate in step.candidates],
        "why": step.why,
        "stages": stages,
    }


def stage_json(stage: Stage | HeadStage) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": stage.kind}
    for field in dataclasses.fields(stage):
        value = getattr(stage, field.name)
        data[field.name] = value.tolist() if isinstance(value, Tensor) else value
    if isinstance(stage, AttentionStage):
        data["names"] = stage.names._asdict()
    return data


def words_json(walk: Walkthrough) -> dict[str, Any]:
    return {
        "source": [word.text for word in words_of_walk(walk).source],
        "produced": [dataclasses.asdict(word) for word in produced_words(walk)],
    }
