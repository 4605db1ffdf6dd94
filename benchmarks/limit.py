"""Compare training steps with the processor's limit: python -m benchmarks.limit [--rounds 7]

The limit is the time that a step's matrix products take alone, in the same shapes and in as many
single-threaded processes. All else (softmax, norms, dropout, copies, Python, the optimizer, the
all-reduce) comes on top.
"""

import argparse
import contextlib
import functools
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from benchmarks.measuring import interleaved_rates, print_table, quartiles, speedups, write_json
from benchmarks.ours import WorkerPool, request, start_processes
from benchmarks.workload import SIZES, VOCAB_SIZE, Size, bucketed_batches
from minitransformer.model.loss import LOGITS_PER_CHUNK

CORES = os.cpu_count() or 1
BATCHES = 6


class Product(NamedTuple):
    """`count` products [batch, rows, inner] @ [batch, inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int
    count: int

    @property
    def flops(self) -> int:
        """Return the floating-point operations of all products."""
        return 2 * self.batch * self.rows * self.inner * self.columns * self.count


def forward_products(size: Size, rows: int, width: int, labels: int) -> list[Product]:
    """Return the products of a forward pass over `rows` pairs of sentences of `width` tokens."""
    tokens, d, heads = rows * width, size.d_model, rows * size.heads
    chunk = max(1, LOGITS_PER_CHUNK["cpu"] // VOCAB_SIZE)
    attentions = 3 * size.layers  # encoder, decoder, cross
    chunks = [Product(1, chunk, d, VOCAB_SIZE, labels // chunk)] if labels >= chunk else []
    return [
        Product(1, tokens, d, d, 4 * attentions),
        Product(1, tokens, d, size.d_ff, 2 * size.layers),
        Product(1, tokens, size.d_ff, d, 2 * size.layers),
        Product(heads, width, d // size.heads, width, attentions),
        Product(heads, width, width, d // size.heads, attentions),
        *chunks,
        Product(1, labels % chunk, d, VOCAB_SIZE, 1),
    ]


def step_products(size: Size, rows: int, width: int, labels: int) -> list[Product]:
    """Return the products of the forward pass, and for each the two that give its gradients."""
    forward = forward_products(size, rows, width, labels)
    return [
        *forward,
        *(Product(each.batch, each.rows, each.columns, each.inner, each.count) for each in forward),
        *(Product(each.batch, each.inner, each.rows, each.columns, each.count) for each in forward),
    ]


class Gemms:
    """The matrix products of one rank's share of some training steps."""

    def __init__(self, size: Size, processes: int) -> None:
        self.products: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self.tokens, self.flops = 0, 0
        for batch in bucketed_batches(BATCHES):
            rows, width = batch.target_output.shape
            labels = batch.num_target_tokens // processes
            for product in step_products(size, rows // processes, width, labels):
                left = torch.randn(product.batch, product.rows, product.inner)
                right = torch.randn(product.batch, product.inner, product.columns)
                if product.batch == 1:
                    left, right = left[0], right[0]
                self.products.append((left, right, product.count))
                self.flops += product.flops
            self.tokens += batch.num_target_tokens

    def run(self) -> int:
        """Compute all products, and return the target tokens of the steps."""
        for left, right, count in self.products:
            for _ in range(count):
                torch.matmul(left, right)
        return self.tokens


def run_gemms(connection: Connection, size: Size, processes: int) -> None:
    """Compute the products whenever a message asks for them."""
    torch.set_num_threads(1)
    gemms = Gemms(size, processes)
    connection.send("ready")
    with contextlib.suppress(EOFError):
        while connection.recv():  # until the parent's end is closed
            connection.send(gemms.run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="write all numbers to this file")
    options = parser.parse_args()
    rows, results = [], {}
    for size in SIZES.values():
        gemm_processes = start_processes(CORES, lambda rank, size=size: (run_gemms, size, CORES))
        trainers, flops = WorkerPool(size, CORES), CORES * Gemms(size, CORES).flops
        workloads: dict[str, Callable[[], int]] = {
            "products alone": functools.partial(request, gemm_processes, True),
            "training": functools.partial(trainers.train, 0, BATCHES),
        }
        for workload in workloads.values():
            workload()  # a warm-up
        rates = results[size.name] = interleaved_rates(workloads, options.rounds)
        shares = speedups(rates, "training", "products alone")
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
        write_json(options.json, {"tokens per second": results})


if __name__ == "__main__":
    main()
