"""How near a training step comes to the processor's limit: python -m benchmarks.limit [--rounds 7]

The limit is the time that a step's matrix products take by themselves, measured in the same shapes
and by as many processes of one thread; all else (softmax, norms, dropout, copying, Python, the
optimizer, the exchange between processes) comes on top.
"""

import argparse
import contextlib
import functools
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from benchmarks.measuring import interleaved, print_table, quartiles, write_json
from benchmarks.ours import Team, ask, start
from benchmarks.workload import SIZES, VOCABULARY, Size, bucketed_batches
from minitransformer.model.loss import LOGITS_PER_CHUNK

CORES = os.cpu_count() or 1
BATCHES = 6


class Product(NamedTuple):
    """`times` products of `batch` matrices [rows, inner] with as many [inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int
    times: int

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.rows * self.inner * self.columns * self.times


def forward_products(size: Size, rows: int, width: int, labels: int) -> list[Product]:
    """The products of a forward pass over `rows` sentences a side of `width` tokens."""
    tokens, d, pieces = rows * width, size.d_model, rows * size.heads
    chunk = max(1, LOGITS_PER_CHUNK["cpu"] // VOCABULARY)
    attentions = 3 * size.layers  # encoder, decoder, cross
    chunks = [Product(1, chunk, d, VOCABULARY, labels // chunk)] if labels >= chunk else []
    return [
        Product(1, tokens, d, d, 4 * attentions),
        Product(1, tokens, d, size.d_ff, 2 * size.layers),
        Product(1, tokens, size.d_ff, d, 2 * size.layers),
        Product(pieces, width, d // size.heads, width, attentions),
        Product(pieces, width, width, d // size.heads, attentions),
        *chunks,
        Product(1, labels % chunk, d, VOCABULARY, 1),
    ]


def step_products(size: Size, rows: int, width: int, labels: int) -> list[Product]:
    """Forward, and for each product the two that make its gradients."""
    forward = forward_products(size, rows, width, labels)
    return [
        *forward,
        *(Product(each.batch, each.rows, each.columns, each.inner, each.times) for each in forward),
        *(Product(each.batch, each.inner, each.rows, each.columns, each.times) for each in forward),
    ]


class Gemms:
    """Does nothing but the products of one process's part of some training steps."""

    def __init__(self, size: Size, processes: int) -> None:
        self.work: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self.tokens, self.flops = 0, 0
        for batch in bucketed_batches(BATCHES):
            rows, width = batch.target_output.shape
            labels = batch.num_target_tokens // processes
            for product in step_products(size, rows // processes, width, labels):
                left = torch.randn(product.batch, product.rows, product.inner)
                right = torch.randn(product.batch, product.inner, product.columns)
                if product.batch == 1:
                    left, right = left[0], right[0]
                self.work.append((left, right, product.times))
                self.flops += product.flops
            self.tokens += batch.num_target_tokens

    def run(self) -> int:
        for left, right, times in self.work:
            for _ in range(times):
                torch.matmul(left, right)
        return self.tokens


def work(line: Connection, size: Size, processes: int) -> None:
    """Multiply whenever asked."""
    torch.set_num_threads(1)
    gemms = Gemms(size, processes)
    line.send("ready")
    with contextlib.suppress(EOFError):
        while line.recv():  # until nobody holds the other end
            line.send(gemms.run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="a file for all numbers")
    options = parser.parse_args()
    rows, found = [], {}
    for size in SIZES.values():
        multiplying = start(CORES, lambda rank, size=size: (work, size, CORES))
        training, flops = Team(size, CORES), CORES * Gemms(size, CORES).flops
        turns: dict[str, Callable[[], int]] = {
            "products alone": functools.partial(ask, multiplying, True),
            "training": functools.partial(training.train, 0, BATCHES),
        }
        for turn in turns.values():
            turn()
        rates = found[size.name] = interleaved(turns, options.rounds)
        shares = [
            ours / limit
            for ours, limit in zip(rates["training"], rates["products alone"], strict=True)
        ]
        tokens = sum(batch.num_target_tokens for batch in bucketed_batches(BATCHES))
        medians = {name: quartiles(values)[1] for name, values in rates.items()}
        first, share, third = quartiles(shares)
        rows.append(
            (
                size.name,
                f"{flops / tokens / 1e6:.1f}",
                f"{flops / tokens * medians['products alone'] / 1e9:.0f}",
                f"{medians['products alone']:,.0f}",
                f"{medians['training']:,.0f}",
                f"{share:.0%} ({first:.0%} to {third:.0%})",
            )
        )
    print_table(
        ("", "million operations a target token", "GFLOP/s", "tokens a second, products alone",
         "tokens a second, training", "share of the limit"),
        rows,
    )  # fmt: skip
    if options.json:
        write_json(options.json, {"tokens per second": found})


if __name__ == "__main__":
    main()
