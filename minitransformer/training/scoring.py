"""The scores of a run: judged by all of its processes, a row for each."""

import json
import time
from itertools import zip_longest
from typing import Any

from minitransformer.data.corpus import Pair
from minitransformer.data.encoding import EncodedSplit
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.judging import Evaluation, Judged, batches_by_length, judge, summarize
from minitransformer.model.base import EncoderDecoder
from minitransformer.saved_step import State
from minitransformer.settings import Config
from minitransformer.training.distributed import Ranks


def evaluate_splits(
    model: EncoderDecoder,
    texts: dict[str, list[Pair]],
    encoded: dict[str, EncodedSplit],
    tokenizer: PairTokenizer,
    config: Config,
    ranks: Ranks,
) -> dict[str, Evaluation]:
    """The scores of the pairs at the head of each split; only the first process has them."""
    evaluations = {}
    for name, pairs in texts.items():
        if not pairs:
            continue
        began = time.perf_counter()
        ids = encoded[name][: len(pairs)]
        # The batches are those of a single process, and so are the numbers, bit for bit.
        batches = batches_by_length(ids, config.evaluation.batch_size)
        own = batches[ranks.rank :: ranks.world_size]
        judged = judge(model, ids, own, tokenizer.start_id, config.model.max_length, is_capped=True)
        if ranks.world_size > 1:
            judged = in_turns(ranks.gather(json.dumps(judged).encode()))
        if ranks.is_first:
            evaluations[name] = summarize(pairs, ids, judged, tokenizer, config, began)
    return evaluations


def in_turns(parts: list[bytes]) -> list[Judged]:
    """What the processes said of batches that were dealt out to them, in the batches' order."""
    turns = zip_longest(*map(json.loads, parts))  # the last turn may not go all the way round
    return [Judged(*batch) for turn in turns for batch in turn if batch is not None]


def metrics_rows(
    evaluations: dict[str, Evaluation], state: State, *, training_speed: float
) -> list[dict[str, Any]]:
    """A line of metrics.jsonl for each split; a speed is in target tokens a second."""
    speeds = {name: each.loss.count / each.seconds for name, each in evaluations.items()}
    speeds["train"] = training_speed
    return [
        {
            "step": state.step,
            "split": name,
            **evaluation.row(),
            "seconds": state.seconds,
            "tokens_per_second": speeds[name],
        }
        for name, evaluation in evaluations.items()
    ]
