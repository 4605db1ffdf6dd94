"""Walk-throughs as files: JSON with every number, Markdown to read.

The JSON is one object:
  format         "minitransformer-walkthrough"
  version        1; grows when a key changes its meaning or goes away
  walkthroughs   one object per sentence:
    text, translation, is_finished
    source       {"tokens", "ids", "hidden"}
    encoder      stages
    steps        one object per produced token:
      number, fed {"id", "token"}, produced {"id", "token", "probability"}, is_forced, expected
      candidates [{"id", "token", "probability"}], best first
      why        per source token, the change of the log-probability without it, or null
      stages     stages, the last of them the head
A stage is an object with "kind" (embedding, norm, attention, feed_forward, residual, head), "path"
(the module's name in the model) and the fields of its class in stages.py: matrices are lists of
rows, heads come first, and the mask is in "allowed", not in "scaled". From step 2 on, the key and
value of a cross-attention are null: they are those of step 1.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from minitransformer.errors import UsageError
from minitransformer.explain.narration import Block, Table, narrate
from minitransformer.explain.stages import AttentionStage, Stage
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough

FORMAT, VERSION = "minitransformer-walkthrough", 1
ENDINGS = (".json", ".md")


def write_walkthroughs(path: Path, walks: list[Walkthrough], precision: int) -> None:
    """Write walk-throughs in the format that a file's ending names."""
    if path.suffix == ".json":
        content = json.dumps(as_json(walks), ensure_ascii=False, allow_nan=False)
    elif path.suffix == ".md":
        content = "\n\n".join(as_markdown(walk, precision) for walk in walks)
    else:
        raise UsageError(f"{path}: a walk-through is written as {' or '.join(ENDINGS)}")
    path.write_text(content + "\n", encoding="utf-8", newline="\n")


def as_json(walks: list[Walkthrough]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "walkthroughs": [
            {
                "text": walk.text,
                "translation": walk.translation,
                "is_finished": walk.is_finished,
                "source": {"tokens": walk.source, "ids": walk.source_ids, "hidden": walk.hidden},
                "encoder": [stage_json(stage) for stage in walk.encoder],
                "steps": [step_json(step) for step in walk.steps],
            }
            for walk in walks
        ],
    }


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


def stage_json(stage: Stage) -> dict[str, Any]:
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(stage).__name__.removesuffix("Stage")).lower()
    fields = {each.name: getattr(stage, each.name) for each in dataclasses.fields(stage)}
    values = {
        name: value.tolist() if isinstance(value, Tensor) else value
        for name, value in fields.items()
    }
    return {"kind": kind, **values}


def as_markdown(walk: Walkthrough, precision: int) -> str:
    """Everything that the terminal shows in full, as headings and tables."""
    lines = [f"# {escaped(walk.text)} → {escaped(walk.translation)}"]
    step = -1
    for block in narrate(walk, precision):
        if block.step != step:
            step = block.step
            lines += ["", "## Encoder" if step == 0 else f"## Decoder, step {step}"]
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
