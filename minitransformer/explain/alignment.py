"""How well each head's attention matches the gold alignment of a toy task.

python -m minitransformer.explain.alignment runs/substitute
"""

if __name__ == "__main__":
    from minitransformer.command_line import end_on_interrupt

    end_on_interrupt()

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from minitransformer.command_line import (
    add_weights_options,
    check_weights_options,
    raise_on_interrupt,
    run_command,
)
from minitransformer.config import Mistake, build_section
from minitransformer.data.batching import make_batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import PairTokenizer, Word
from minitransformer.data.toy_tasks import TASKS, task_pairs
from minitransformer.errors import CheckpointError, DataError, UsageError
from minitransformer.explain.attention_maps import AttentionView
from minitransformer.explain.occlusion import device_of
from minitransformer.explain.subwords import means, pieces_of
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.trace import record
from minitransformer.run import RunFolder
from minitransformer.search import eval_mode
from minitransformer.storage import (
    MAX_JSON_BYTES,
    json_with_checksum,
    read_json_with_checksum,
    read_own_file,
    replace_file,
)
from minitransformer.translator import Translator

FILE_NAME = "alignment.json"
FED, PRODUCED = LABELLINGS = ("fed in", "produced")  # which token a row is taken for


@dataclass(frozen=True)
class HeadAlignment:
    """How well one head, or the mean of a layer's, looks at what its target tokens come of."""

    layer: int = 0
    head: int | None = None  # None: the mean of all heads
    labelling: str = ""
    right: float = 0.0  # share of tokens whose highest weight is where it should be
    weight: float = 0.0  # the mean weight there

    @property
    def name(self) -> str:
        head = "mean of all heads" if self.head is None else f"head {self.head}"
        return f"layer {self.layer}, {head}, rows = token {self.labelling}"

    @property
    def caption(self) -> str:
        return f"aligns best: {self.name} ({self.right:.1%} right)"

    def view_of(self, views: Iterable[AttentionView]) -> AttentionView | None:
        """That head's map alone."""
        for view in views:
            if (view.where, view.layer) != ("cross", self.layer):
                continue
            if self.head is None:
                return replace(view, weights=view.weights.mean(dim=0, keepdim=True))
            if self.head < len(view.weights):
                return replace(view, weights=view.weights[self.head : self.head + 1])
        return None


def best_of(table: Iterable[HeadAlignment]) -> HeadAlignment:
    """The one that is right most often; of equals, the one that is surest."""
    return max(table, key=lambda each: (each.right, each.weight))


def as_json(checkpoint: str, task: str, pairs: int, table: list[HeadAlignment]) -> dict[str, Any]:
    """A table of heads as data; a head of null is the mean of its layer's."""
    return {
        "checkpoint": checkpoint,
        "task": task,
        "pairs": pairs,
        "best": asdict(best_of(table)),
        "table": [asdict(each) for each in table],
    }


def remember(run: Path, data: dict[str, Any]) -> Path:
    path = run / FILE_NAME
    replace_file(path, json_with_checksum(data))
    return path


def remembered(run: Path, checkpoint: str) -> HeadAlignment | None:
    """The best head of a checkpoint, if it was measured; what is of no use is said to be so."""
    path = run / FILE_NAME
    if not path.exists():
        return None
    try:
        data = read_json_with_checksum(read_own_file(path, MAX_JSON_BYTES), str(path))
        mistakes: list[Mistake] = []
        best: HeadAlignment = build_section(HeadAlignment, data.get("best"), "best", mistakes)
        if mistakes:
            raise CheckpointError(f"{path}: {mistakes[0].message}")
        if data.get("checkpoint") == checkpoint:
            return best
        trouble = f"{path} is about {data.get('checkpoint')}, this is {checkpoint}"
    except CheckpointError as error:
        trouble = str(error)
    again = f"python -m minitransformer.explain.alignment {run}"
    print(f"note: {trouble}; measure it with: {again} "
          "(and the same --checkpoint or --average)", file=sys.stderr)  # fmt: skip
    return None


BATCH_SIZE = 64


class AlignedPair(NamedTuple):
    """Ids of a pair, the words of both sides without an end marker, and what comes of what."""

    ids: EncodedPair
    source: list[Word]
    target: list[Word]
    alignment: list[int]  # the source word of each target word


class Tally(NamedTuple):
    """Over some target words, for each head: where the highest weight was right, weight there."""

    right: Float[Tensor, " heads"]
    weight: Float[Tensor, " heads"]

    def plus(self, other: "Tally") -> "Tally":
        return Tally(self.right + other.right, self.weight + other.weight)


def aligned_pairs(
    name: str, count: int, tokenizer: PairTokenizer, max_length: int
) -> list[AlignedPair]:
    """The first held-out pairs of a generated task that the model takes."""
    found: list[AlignedPair] = []
    for source_text, target_text in task_pairs(name, "test"):
        source, target = tokenizer.encode_source(source_text), tokenizer.encode_target(target_text)
        if max(len(source.ids), len(target.ids)) <= max_length:
            alignment = TASKS[name].alignment(len(source_text.split()))
            source_words, target_words = (
                side.words_of(encoded.ids, encoded.tokens)[: len(alignment)]
                for side, encoded in ((tokenizer.source, source), (tokenizer.target, target))
            )
            ids = EncodedPair(source.ids, target.ids)
            found.append(AlignedPair(ids, source_words, target_words, alignment))
        if len(found) == count:
            break
    return found


def judged_heads(
    weights: Float[Tensor, "heads target source"], pair: AlignedPair
) -> dict[str, Tally]:
    """How often each head, and their mean, looks most at the aligned word, by labelling.

    The end marker's column does not count: where nothing is to be looked for, heads look there.
    """
    heads = torch.cat((weights, weights.mean(dim=0, keepdim=True)))  # [H + 1, T, S]
    keys = pieces_of(pair.source, weights.shape[2])  # [W, S]
    produced = pieces_of(pair.target, weights.shape[1])  # [W, T]
    rows = {FED: produced.roll(1, dims=1), PRODUCED: produced}  # a token is fed one row later
    aligned = torch.tensor(pair.alignment)
    tallies = {}
    for labelling in LABELLINGS:
        looks = means(rows[labelling]) @ heads @ keys.T  # [H + 1, W, W]
        right = (looks.argmax(dim=-1) == aligned).sum(dim=-1)
        weight = looks[:, range(len(aligned)), aligned].sum(dim=-1)
        tallies[labelling] = Tally(right.float(), weight)
    return tallies


@torch.no_grad()
def measure(
    model: EncoderDecoder, pairs: Sequence[AlignedPair], start_id: int
) -> list[HeadAlignment]:
    """Every head that looks at the source, and the mean of each layer's, by labelling."""
    totals: dict[tuple[int, str], Tally] = {}
    by_length = sorted(pairs, key=lambda pair: len(pair.ids.source))
    for start in range(0, len(by_length), BATCH_SIZE):
        chosen = by_length[start : start + BATCH_SIZE]
        batch = make_batch([pair.ids for pair in chosen], start_id).to(device_of(model))
        with eval_mode(model), record(model) as tensors:
            model.decode_states(batch.target_input, model.encode(batch.source))
        for layer, path in enumerate(model.source_attentions()):
            weights = tensors[f"{path}.weights"].cpu().float()
            for own, pair in zip(weights, chosen, strict=True):  # [H, T, S]
                for labelling, tally in judged_heads(own, pair).items():
                    key = layer, labelling
                    totals[key] = totals[key].plus(tally) if key in totals else tally
    count = sum(len(pair.alignment) for pair in pairs)
    return [
        HeadAlignment(layer, None if head == len(tally.right) - 1 else head, labelling,
                      float(right) / count, float(weight) / count)
        for (layer, labelling), tally in totals.items()
        for head, (right, weight) in enumerate(zip(*tally, strict=True))
    ]  # fmt: skip


def table_lines(table: list[HeadAlignment]) -> list[str]:
    """A line per head; under each labelling, the share that is right and the weight there."""
    lines = [
        f"{'':20}" + "".join(f"rows = token {labelling}".rjust(26) for labelling in LABELLINGS),
        f"{'layer  head':20}" + f"{'right':>17}{'weight':>9}" * len(LABELLINGS),
    ]
    cells = {(each.layer, each.head, each.labelling): each for each in table}
    for layer, head in dict.fromkeys((each.layer, each.head) for each in table):
        line = f"{layer:<7}{'mean' if head is None else head:<13}"
        for labelling in LABELLINGS:
            each = cells[layer, head, labelling]
            line += f"{each.right:>17.1%}{each.weight:>9.3f}"
        lines.append(line)
    return lines


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m minitransformer.explain.alignment",
        description="Count which heads look where they should, in a run on a generated task; the "
        "run's pictures then begin with the best.",
    )
    parser.add_argument("run", type=Path, help="a run's folder, such as runs/substitute")
    parser.add_argument("--pairs", type=int, default=200, help="held-out pairs (default: 200)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table there")
    add_weights_options(parser)
    options = parser.parse_args(arguments)
    if options.pairs < 1:
        raise UsageError(f"--pairs {options.pairs}: at least 1")
    if options.json and not options.json.absolute().parent.is_dir():
        raise UsageError(f"--json {options.json}: there is no such folder")
    check_weights_options(options)
    return options


def main(arguments: list[str]) -> int:
    raise_on_interrupt()
    options = parse(arguments)
    config = RunFolder(options.run).load_config()
    task = config.data.train
    if not isinstance(task, str) or task not in TASKS:
        raise DataError(
            f"{options.run} was trained on {config.data.train}: what comes of what is known only "
            f"for the generated tasks ({', '.join(TASKS)})"
        )
    if config.model.attention == "none":
        raise UsageError(
            f"{options.run} has no attention (model.attention is none): nothing in it looks"
        )
    translator = Translator.load(
        options.run, checkpoint=options.checkpoint, average=options.average
    )
    tokenizer = translator.tokenizer
    pairs = aligned_pairs(task, options.pairs, tokenizer, translator.max_length)
    if not pairs:
        raise DataError(f"no pair of {task} has at most {translator.max_length} tokens on a side")
    table = measure(translator.model, pairs, tokenizer.start_id)
    words = sum(len(pair.alignment) for pair in pairs)
    print(f"{options.run} ({translator.checkpoint}) on {task} (test): {len(pairs):,} pairs, "
          f"{words:,} words", *table_lines(table), best_of(table).caption, sep="\n")  # fmt: skip
    data = as_json(translator.checkpoint, task, len(pairs), table)
    if options.json:
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {remember(options.run, data)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:])))
