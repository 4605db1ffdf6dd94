"""Which head of a run shows best what comes of what: remembered in its folder, for its pictures."""

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minitransformer.errors import CheckpointError
from minitransformer.explain.attention_view import AttentionView
from minitransformer.schema import Mistake, build_section
from minitransformer.storage import (
    MOST_JSON,
    json_with_checksum,
    read_json_with_checksum,
    read_own_file,
    replace_file,
)

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
        data = read_json_with_checksum(read_own_file(path, MOST_JSON), str(path))
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
