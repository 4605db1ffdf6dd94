"""How often each head attends most to the source word that the toy task aligns.

B batch, H heads, T target, S source, W words.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from minitransformer.config import Mistake, build_section
from minitransformer.data.batching import make_batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import PairTokenizer, Word
from minitransformer.data.toy_tasks import TASKS, task_pairs
from minitransformer.errors import CheckpointError
from minitransformer.explain.attention_maps import AttentionView, membership, merge_weights
from minitransformer.explain.interventions import device_of
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.trace import record
from minitransformer.search import eval_mode
from minitransformer.storage import (
    MAX_JSON_BYTES,
    json_with_checksum,
    read_json_with_checksum,
    read_own_file,
    replace_file,
)

FILE_NAME = "alignment.json"
FED, PRODUCED = LABELLINGS = ("fed in", "produced")  # the token that a row is taken for
BATCH_SIZE = 64


@dataclass(frozen=True)
class HeadAlignment:
    """How well one head, or the mean of a layer's heads, matches the gold alignment."""

    layer: int = 0
    head: int | None = None  # None: the mean of all heads
    labelling: str = ""
    right: float = 0.0  # fraction of target words whose highest weight is on the aligned word
    weight: float = 0.0  # mean weight there

    @property
    def name(self) -> str:
        head = "mean of all heads" if self.head is None else f"head {self.head}"
        return f"layer {self.layer}, {head}, rows = token {self.labelling}"

    @property
    def caption(self) -> str:
        return f"aligns best: {self.name} ({self.right:.1%} right)"

    def view_of(self, views: Iterable[AttentionView]) -> AttentionView | None:
        """Return the attention of this head alone, or None if no view has it."""
        for view in views:
            if (view.where, view.layer) != ("cross", self.layer):
                continue
            if self.head is None:
                return replace(view, weights=view.weights.mean(dim=0, keepdim=True))
            if self.head < len(view.weights):
                return replace(view, weights=view.weights[self.head : self.head + 1])
        return None


class AlignedPair(NamedTuple):
    """The ids of a pair, the words of both sides without end markers, and their alignment."""

    ids: EncodedPair
    source: list[Word]
    target: list[Word]
    alignment: list[int]  # by target word, the index of its source word


def aligned_pairs(
    task: str, count: int, tokenizer: PairTokenizer, max_length: int
) -> list[AlignedPair]:
    """Return the first `count` held-out pairs of a generated task that fit the model."""
    found: list[AlignedPair] = []
    for source_text, target_text in task_pairs(task, "test"):
        source, target = tokenizer.encode_source(source_text), tokenizer.encode_target(target_text)
        if max(len(source.ids), len(target.ids)) <= max_length:
            alignment = TASKS[task].alignment(len(source_text.split()))
            source_words, target_words = (
                side.words_of(encoded.ids, encoded.tokens)[: len(alignment)]
                for side, encoded in ((tokenizer.source, source), (tokenizer.target, target))
            )
            ids = EncodedPair(source.ids, target.ids)
            found.append(AlignedPair(ids, source_words, target_words, alignment))
        if len(found) == count:
            break
    return found


@torch.no_grad()
def measure_heads(
    model: EncoderDecoder, pairs: Sequence[AlignedPair], start_id: int
) -> list[HeadAlignment]:
    """Measure every cross-attention head and the mean of each layer's, by labelling."""
    totals: dict[tuple[int, str], Tensor] = {}
    by_length = sorted(pairs, key=lambda pair: len(pair.ids.source))
    for start in range(0, len(by_length), BATCH_SIZE):
        chosen = by_length[start : start + BATCH_SIZE]
        batch = make_batch([pair.ids for pair in chosen], start_id).to(device_of(model))
        with eval_mode(model), record(model) as tensors:
            model.decode_states(batch.target_input, model.encode(batch.source))
        for layer, path in enumerate(model.source_attentions()):
            weights = tensors[f"{path}.weights"].cpu().float()  # [B, H, T, S]
            for pair_weights, pair in zip(weights, chosen, strict=True):
                for labelling, sums in score_heads(pair_weights, pair).items():
                    key = layer, labelling
                    totals[key] = totals[key] + sums if key in totals else sums
    count = sum(len(pair.alignment) for pair in pairs)
    return [
        HeadAlignment(
            layer, None if head == sums.shape[1] - 1 else head, labelling, right / count,
            weight / count,
        )
        for (layer, labelling), sums in totals.items()
        for head, (right, weight) in enumerate(sums.T.tolist())
    ]  # fmt: skip


def score_heads(
    weights: Float[Tensor, "heads target source"], pair: AlignedPair
) -> dict[str, Float[Tensor, "2 heads_and_mean"]]:
    """Return by labelling, for each head and their mean, how many words are right and the weight.

    The end marker's column does not count: heads attend to it where they have nothing to look for.
    """
    heads = torch.cat((weights, weights.mean(dim=0, keepdim=True)))  # [H + 1, T, S]
    keys = membership(pair.source, weights.shape[2])  # [W, S]
    produced = membership(pair.target, weights.shape[1])  # [W, T]
    rows = {FED: produced.roll(1, dims=1), PRODUCED: produced}  # a token is fed in one row later
    aligned = torch.tensor(pair.alignment)
    sums = {}
    for labelling in LABELLINGS:
        by_words = merge_weights(heads, rows[labelling], keys)  # [H + 1, W, W]
        right = (by_words.argmax(dim=-1) == aligned).sum(dim=-1)
        weight = by_words[:, range(len(aligned)), aligned].sum(dim=-1)
        sums[labelling] = torch.stack((right, weight))
    return sums


def best_of(table: Iterable[HeadAlignment]) -> HeadAlignment:
    """Return the head that is right most often; of equals, the one with the highest weight."""
    return max(table, key=lambda each: (each.right, each.weight))


def table_json(
    checkpoint: str, task: str, pairs: int, table: list[HeadAlignment]
) -> dict[str, Any]:
    """Return a table as data; a head of null is the mean of its layer's."""
    return {
        "checkpoint": checkpoint,
        "task": task,
        "pairs": pairs,
        "best": asdict(best_of(table)),
        "table": [asdict(each) for each in table],
    }


def save_alignment(run: Path, data: dict[str, Any]) -> Path:
    path = run / FILE_NAME
    replace_file(path, json_with_checksum(data))
    return path


def load_best_head(run: Path, checkpoint: str) -> HeadAlignment | None:
    """Return the best head as measured on this checkpoint; print a note if it was on another."""
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
        problem = f"{path} was measured on {data.get('checkpoint')}, this is {checkpoint}"
    except CheckpointError as error:
        problem = str(error)
    command = f"minitransformer evaluate --run {run} --alignment"
    print(f"note: {problem}; measure again with: {command} "
          "(and the same --checkpoint or --average)", file=sys.stderr)  # fmt: skip
    return None


def table_lines(table: list[HeadAlignment]) -> list[str]:
    """Return a line per head with accuracy and weight under each labelling."""
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
