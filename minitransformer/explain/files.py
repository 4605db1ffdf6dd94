"""Walk-throughs as files: JSON with every number, Markdown to read.

The JSON is one object:
  format         "minitransformer-walkthrough"
  version        1; grows when a key changes its meaning or goes away
  vocabulary     the target's tokens; a token's place is its id, and its place in logits
  parameters     the model's weights by name, or null beyond 100,000 numbers
  walkthroughs   one object per sentence:
    text, translation, is_finished, changed (what an experiment changed, or "")
    source       {"tokens", "ids", "hidden"}, a list each
    expected     the tokens of the right answer, if one was given
    encoder      stages
    steps        one object per produced token:
      number     from 1
      fed        {"id", "token"}
      produced   {"id", "token", "probability"}
      is_forced, expected (a token or null)
      candidates [{"id", "token", "probability"}], best first
      why        per source token, the change of the log-probability (natural) without it, or null
      stages     stages, the last of them the head
    words        with --merge-subwords: {"source": words, "produced": one object per word}, the
                 latter with text, fed (the word before), steps, probability, and per source word
                 attention (null in a model without) and why, as the pieces of both sides make
                 them up
A stage is an object with "kind" and "path" (the module's name in the model), and by kind, with T
tokens, S tokens that are looked at, H heads, D d_model, K d_head, F d_ff, V vocabulary:
  embedding      tokens, ids, vectors [T, D], positions [T, D] or null, output [T, D]
  norm           tokens, before [T, D], after [T, D]
  attention      look (self-attention, masked self-attention or cross-attention), names (what the
                 sheets call query, key, value, score and weight), queries and keys (words),
                 query [H, T, K], key [H, S, K], value [H, S, K], scores, scaled [H, T, S],
                 allowed [T, S] (the mask), weights [H, T, S], context [H, T, K], output [T, D];
                 from step 2 on, key and value of a cross-attention are null: those of step 1
  feed_forward   tokens, pre_activation [T, F], hidden [T, F], output [T, D]
  residual       block, tokens, states [T, D] + update [T, D] = total [T, D]
  gru, lstm      a recurrent layer, W its width: tokens, is_backward, is_read [T] (false: skipped),
                 before [T, W], candidate [T, W], state [T, W]; of a GRU also reset and update, of
                 an LSTM input, forget, output, cell_before and cell
  joined         tokens, parts (names of the two), first [T, W], second [T, W], output [T, 2W]
  narrowed       tokens, joined [T, 2D], output [T, D]: tanh(W_O joined)
  head           state [D], logits [V], probabilities [V]
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from minitransformer.checkpoint import model_tensors
from minitransformer.explain.attention_maps import produced_words, words_of_walk
from minitransformer.explain.narration import Block, Table, narrate, word_blocks
from minitransformer.explain.stages import AttentionStage, Stage
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough
from minitransformer.model.base import EncoderDecoder

MOST_PARAMETERS = 100_000
FORMAT, VERSION = "minitransformer-walkthrough", 1


def write_walkthroughs(
    path: Path, walks: list[Walkthrough], precision: int, *, words: bool = False
) -> None:
    """Write walk-throughs as JSON or Markdown, as the file's ending says; `words` adds those."""
    if path.suffix == ".json":
        data = as_json(walks)
        for walk, told in zip(walks, data["walkthroughs"], strict=True):
            told |= {"words": words_json(walk)} if words else {}
        content = json.dumps(data, ensure_ascii=False, allow_nan=False)
    else:
        content = "\n\n".join(as_markdown(walk, precision, words=words) for walk in walks)
    path.write_text(content + "\n", encoding="utf-8", newline="\n")


def as_json(walks: list[Walkthrough]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "vocabulary": list(walks[0].tokenizer.target.tokens),
        "parameters": parameters_json(walks[0].model),
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
            }
            for walk in walks
        ],
    }


def parameters_json(model: EncoderDecoder) -> dict[str, Any] | None:
    parameters = model_tensors(model)
    if sum(each.numel() for each in parameters.values()) > MOST_PARAMETERS:
        return None
    return {name: tensor.tolist() for name, tensor in parameters.items()}


def step_json(step: DecodingStep) -> dict[str, Any]:
    stages = [stage_json(stage) for stage in (*step.stages, step.head)]
    for stage, data in zip(step.stages, stages[:-1], strict=True):
        if step.number > 1 and isinstance(stage, AttentionStage) and "cross" in stage.look:
            data["key"] = data["value"] = None
    return {
        "number": step.number,
        "fed": {"id": step.fed_id, "token": step.fed},
        "produced": {
            "id": step.produced_id,
            "token": step.produced,
            "probability": step.probability,
        },
        "is_forced": step.is_forced,
        "expected": step.expected or None,
        "candidates": [candidate._asdict() for candidate in step.candidates],
        "why": step.why,
        "stages": stages,
    }


def words_json(walk: Walkthrough) -> dict[str, Any]:
    return {
        "source": [word.text for word in words_of_walk(walk).source],
        "produced": [dataclasses.asdict(word) for word in produced_words(walk)],
    }


def stage_json(stage: Stage) -> dict[str, Any]:
    fields = {each.name: getattr(stage, each.name) for each in dataclasses.fields(stage)}
    values = {
        name: value.tolist() if isinstance(value, Tensor) else value
        for name, value in fields.items()
    }
    if isinstance(stage, AttentionStage):
        values["names"] = stage.names._asdict()
    return {"kind": stage_kind(stage), **values}


def stage_kind(stage: Stage) -> str:
    """embedding, norm, attention, feed_forward, residual, gru, lstm, joined, narrowed or head."""
    name = type(stage).__name__.removesuffix("Stage")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def as_markdown(walk: Walkthrough, precision: int, *, words: bool = False) -> str:
    """Everything that the terminal shows in full, as headings and tables."""
    lines = [f"# {escaped(walk.text)} → {escaped(walk.translation)}"]
    step = -1
    for block in narrate(walk, precision):
        if block.step != step:
            step = block.step
            lines += ["", "## Encoder" if step == 0 else f"## Decoder, step {step}"]
        lines += ["", *block_markdown(block)]
    if words:
        lines += ["", "## By words"]
        for block in word_blocks(walk, precision):
            lines += ["", *block_markdown(block)]
    lines += [
        "",
        "| step | decoder input | expected | produced | probability |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.number} | {escaped(each.fed)} | {escaped(each.expected)} "
        f"| {escaped(each.produced)} | {each.probability:.4f} |"
        for each in walk.steps
    ]
    return "\n".join(lines)


def block_markdown(block: Block) -> list[str]:
    lines = [f"**{escaped(block.sentence)}** `{block.path}`"]
    for table in block.tables:
        lines += ["", *table_markdown(table)]
    return lines


def table_markdown(table: Table) -> list[str]:
    count = max(len(row.numbers) for row in table.rows)
    headings = [*table.headings, *[""] * count][:count]
    lines = [f"| | {' | '.join(headings)} | |", "|---" + "|---:" * count + "|---|"]
    for row in table.rows:
        numbers = [*row.numbers, *[""] * count][:count]
        lines.append(f"| {row.name} | {' | '.join(numbers)} | {escaped(row.word)} |")
    return lines


def escaped(text: str) -> str:
    """A text whose <EOS> is no tag, and whose | is no column."""
    return re.sub(r"([\\`*_<>|#\[\]])", r"\\\1", text)
