"""Compare training speed with other implementations: python -m benchmarks.training [--rounds 7]

All train on the same sentences and the same cores, in interleaved rounds; a speedup compares rates
of the same round. The peers use a thread for each core, as is usual, ours a process for each.
Dropout is that of the paper and of MarianMT: on embeddings and on the output of each block. Two
peers always apply it inside the blocks as well; one row shows what that costs ours.
"""

import argparse
import functools
import os
from collections import Counter
from collections.abc import Callable

import torch

from benchmarks.measuring import (
    format_quartiles,
    interleaved_rates,
    print_table,
    speedups,
    write_json,
)
from benchmarks.ours import Worker, WorkerPool
from benchmarks.peers import PeerTrainer, installed_peers, tutorial_trainer
from benchmarks.workload import SIZES, Size, bucketed_batches, fixed_batches
from minitransformer.data.batching import Batch
from minitransformer.training.distributed import Ranks

CORES = os.cpu_count() or 1
FIXED = "torch.nn.Transformer, 128 random sentences a batch"


class RoundBatches:
    """Batches of an epoch, of which each trainer takes the same `count` in the same round."""

    def __init__(self, batches: list[Batch], count: int) -> None:
        self.batches, self.count = batches, count
        self.rounds: Counter[str] = Counter()

    def next_start(self, name: str) -> int:
        """Return the index of the first batch of a trainer's next round."""
        start = self.rounds[name] * self.count % len(self.batches)
        self.rounds[name] += 1
        return start


def train_peer(trainer: PeerTrainer, data: RoundBatches, name: str) -> int:
    """Train a peer for a round, and return its number of target tokens."""
    torch.set_num_threads(CORES)
    start = data.next_start(name)
    batches = data.batches[start : start + data.count]
    for batch in batches:
        trainer.step(batch)
    return sum(batch.num_target_tokens for batch in batches)


def train_our_model(
    trainer: Worker | WorkerPool, threads: int, data: RoundBatches, name: str
) -> int:
    """Train ours for a round, and return its number of target tokens."""
    torch.set_num_threads(threads)
    return trainer.train(data.next_start(name), data.count)


def build_workloads(size: Size, count: int, rounds: int) -> dict[str, Callable[[], int]]:
    """Return functions that train a model for one round of `count` batches."""
    num_batches = min(200 // count, rounds + 1) * count
    bucketed = RoundBatches(bucketed_batches(num_batches), count)
    fixed = RoundBatches(fixed_batches(num_batches), count)
    single = Worker(size, Ranks())
    workloads: dict[str, Callable[[], int]] = {}

    def add(name: str, train: Callable[..., int], *arguments: object) -> None:
        workloads[name] = functools.partial(train, *arguments, name)

    add(f"ours, {CORES} processes", train_our_model, WorkerPool(size, CORES), CORES, bucketed)
    with_inner_dropout = WorkerPool(size, CORES, inner_dropout=0.1)
    add(
        "the same, dropout inside the blocks, too",
        train_our_model,
        with_inner_dropout,
        CORES,
        bucketed,
    )
    add(f"ours, 1 process of {CORES} threads", train_our_model, single, CORES, bucketed)
    add("ours, 1 thread", train_our_model, single, 1, bucketed)
    for name, build in installed_peers()[0].items():
        add(name, train_peer, build(size), bucketed)
    add(FIXED, train_peer, tutorial_trainer(size), fixed)
    return workloads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=5, help="batches of 2,000 tokens in a round")
    parser.add_argument("--json", help="write all numbers to this file")
    options = parser.parse_args()
    for name, error in installed_peers()[1].items():
        print(f"skipped: {name} ({error})")
    results = {}
    for size in SIZES.values():
        workloads = build_workloads(size, options.batches, options.rounds)
        for workload in workloads.values():
            workload()  # a warm-up
        rates = results[size.name] = interleaved_rates(workloads, options.rounds)
        ours = next(iter(workloads))
        print(f"\n{size.name}, target tokens a second, median (quartiles) of {options.rounds}:\n")
        print_table(
            ("", "tokens a second", f"{ours}: times as fast"),
            (
                (
                    name,
                    format_quartiles(rates[name], 0),
                    format_quartiles(speedups(rates, ours, name), 2),
                )
                for name in workloads
            ),
        )
    if options.json:
        write_json(options.json, {"tokens per second": results})


if __name__ == "__main__":
    main()
