"""How near a training step comes to the processor's limit: python -m benchmarks.limit [--rounds 7]

The limit is the time that a step's matrix products take by themselves, measured in the same shapes
and by as many processes of one thread; all else (softmax, norms, dropout, copying, Python, the
optimizer, the exchange between processes) comes on top.
"""

import argparse
import contextlib
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from benchmarks.measuring import interleaved, print_table, quartiles, write_json
from benchmarks.ours import Team
from benchmarks.workload import SIZES, VOCABULARY, Size, bucketed_batches
from minitransformer.model.head_loss import LOGITS_AT_A_TIME

CORES = os.cpu_count() or 1
BATCHES = 6


class Product(NamedTuple):
    """`count` products of [rows, inner] and [inner, columns]."""

    rows: int
    inner: int
    columns: int
    count: float

    @property
    def flops(self) -> float:
        return 2 * self.rows * self.inner * self.columns * self.count


def forward_products(size: Size, rows: int, width: int) -> list[Product]:
    """The products of a forward pass over `rows` sentences a side of `width` tokens."""
    tokens, d, heads = rows * width, size.d_model, rows * size.heads
    chunk = max(1, LOGITS_AT_A_TIME["cpu"] // VOCABULARY)
    attentions = 3 * size.layers  # encoder, decoder, cross
    return [
        Product(tokens, d, d, 4 * attentions),
        Product(tokens, d, size.d_ff, 2 * size.layers),
        Product(tokens, size.d_ff, d, 2 * size.layers),
        Product(width, d // size.heads, width, heads * attentions),
        Product(width, width, d // size.heads, heads * attentions),
        Product(chunk, d, VOCABULARY, tokens / chunk),
    ]


def step_products(size: Size, rows: int, width: int) -> list[Product]:
    """Forward, and for each product the two that make its gradients."""
    forward = forward_products(size, rows, width)
    by_input = [Product(p.rows, p.columns, p.inner, p.count) for p in forward]
    by_weight = [Product(p.inner, p.rows, p.columns, p.count) for p in forward]
    return [*forward, *by_input, *by_weight]


class Gemms:
    """Does nothing but the products of some training steps."""

    def __init__(self, size: Size, processes: int) -> None:
        random = torch.Generator().manual_seed(1)
        self.work: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self.tokens, self.flops = 0, 0.0
        for batch in bucketed_batches(BATCHES):
            rows, width = batch.target_output.shape
            for product in step_products(size, -(-rows // processes), width):
                self.flops += product.flops
                left, right, times = operands(product, random)
                self.work.append((left, right, times))
            self.tokens += batch.num_target_tokens

    def run(self) -> int:
        for left, right, times in self.work:
            for _ in range(times):
                torch.matmul(left, right)
        return self.tokens


def operands(product: Product, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Small products come as one batch, as attention makes them."""
    shape, other = (product.rows, product.inner), (product.inner, product.columns)
    if product.count > 500:  # one for each head of each sentence
        batch = 256
        return (
            torch.randn(batch, *shape, generator=random),
            torch.randn(batch, *other, generator=random),
            round(product.count / batch),
        )
    return (
        torch.randn(*shape, generator=random),
        torch.randn(*other, generator=random),
        max(1, round(product.count)),
    )


def gemm_worker(line: Connection, size: Size, processes: int) -> None:
    torch.set_num_threads(1)
    gemms = Gemms(size, processes)
    line.send(gemms.flops)
    with contextlib.suppress(EOFError):
        while line.recv():
            line.send(gemms.run())


class GemmTeam:
    """As many processes as train, each with its share of the products."""

    def __init__(self, size: Size, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.lines: list[Connection] = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            context.Process(target=gemm_worker, args=(theirs, size, processes), daemon=True).start()
            self.lines.append(ours)
        self.flops = sum(line.recv() for line in self.lines)

    def run(self) -> int:
        for line in self.lines:
            line.send(True)
        done = [line.recv() for line in self.lines]
        return done[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="a file for all numbers")
    options = parser.parse_args()
    rows, found = [], {}
    for size in SIZES.values():
        gemms, team = GemmTeam(size, CORES), Team(size, CORES)
        turns: dict[str, Callable[[], int]] = {
            "products alone": gemms.run, "training": lambda team=team: team.train(0, BATCHES),
        }  # fmt: skip
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
                f"{gemms.flops / tokens / 1e6:.1f}",
                f"{gemms.flops / tokens * medians['products alone'] / 1e9:.0f}",
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
