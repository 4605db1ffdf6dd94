"""Training speed beside other implementations: python -m benchmarks.training [--rounds 7]

All learn from the same sentences on the same cores, in turns; a ratio pairs what was measured in
one round. The peers take a thread for each core, as they are used, ours a process for each.
Dropout is that of the paper, and of MarianMT: of embeddings and of what each block adds. Two peers
cannot but drop inside the blocks as well; a row shows what that costs ours.
"""

import argparse
import functools
import os
from collections import Counter
from collections.abc import Callable

import torch

from benchmarks.measuring import interleaved, print_table, ratios, with_quartiles, write_json
from benchmarks.ours import Team, Worker
from benchmarks.peers import Trainee, installed_peers, tutorial
from benchmarks.workload import SIZES, Size, bucketed_batches, fixed_batches
from minitransformer.data.batching import Batch
from minitransformer.training.distributed import Ranks

CORES = os.cpu_count() or 1
FIXED = "torch.nn.Transformer, 128 random sentences a batch"


class Turns:
    """Hands out the same stretch of an epoch to each contestant of a round, and then the next."""

    def __init__(self, batches: list[Batch], count: int) -> None:
        self.batches, self.count = batches, count
        self.taken: Counter[str] = Counter()

    def next(self, name: str) -> int:
        first = self.taken[name] * self.count % len(self.batches)
        self.taken[name] += 1
        return first


def peer_turn(trainee: Trainee, turns: Turns, name: str) -> int:
    torch.set_num_threads(CORES)
    first = turns.next(name)
    batches = turns.batches[first : first + turns.count]
    for batch in batches:
        trainee.step(batch)
    return sum(batch.num_target_tokens for batch in batches)


def our_turn(trained: Worker | Team, threads: int, turns: Turns, name: str) -> int:
    torch.set_num_threads(threads)
    return trained.train(turns.next(name), turns.count)


def contestants(size: Size, count: int, rounds: int) -> dict[str, Callable[[], int]]:
    needed = min(200 // count, rounds + 1) * count
    bucketed = Turns(bucketed_batches(needed), count)
    fixed = Turns(fixed_batches(needed), count)
    alone = Worker(size, Ranks())
    chosen: dict[str, Callable[[], int]] = {}

    def enter(name: str, turn: Callable[..., int], *arguments: object) -> None:
        chosen[name] = functools.partial(turn, *arguments, name)

    enter(f"ours, {CORES} processes", our_turn, Team(size, CORES), CORES, bucketed)
    everywhere = Team(size, CORES, dropout_inside=0.1)
    enter("the same, dropout inside the blocks, too", our_turn, everywhere, CORES, bucketed)
    enter(f"ours, 1 process of {CORES} threads", our_turn, alone, CORES, bucketed)
    enter("ours, 1 thread", our_turn, alone, 1, bucketed)
    for name, build in installed_peers()[0].items():
        enter(name, peer_turn, build(size), bucketed)
    enter(FIXED, peer_turn, tutorial(size), fixed)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=5, help="of 2,000 tokens, in a turn")
    parser.add_argument("--json", help="a file for all numbers")
    options = parser.parse_args()
    for name, why in installed_peers()[1].items():
        print(f"left out: {name} ({why})")
    found = {}
    for size in SIZES.values():
        turns = contestants(size, options.batches, options.rounds)
        for turn in turns.values():
            turn()  # what happens once only is not counted
        rates = found[size.name] = interleaved(turns, options.rounds)
        ours = next(iter(turns))
        print(f"\n{size.name}, target tokens a second, median (quartiles) of {options.rounds}:\n")
        print_table(
            ("", "tokens a second", f"{ours} is so many times as fast"),
            (
                (name, with_quartiles(rates[name], 0), with_quartiles(ratios(rates, ours, name), 2))
                for name in turns
            ),
        )
    if options.json:
        write_json(options.json, {"tokens per second": found})


if __name__ == "__main__":
    main()
