"""Measure what tap() costs while nothing is recorded: python -m benchmarks.recording

Trains and decodes with the layers' calls of tap() and without them, in alternating order, and
prints the ratios of paired times.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from unittest import mock

import torch

from minitransformer.data.tokenizer import EOS_ID, PAD_ID
from minitransformer.model import base, transformer
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.model.loss import cross_entropy
from minitransformer.search import greedy
from minitransformer.settings import ModelConfig

REPEATS = 41
SHAPES = {
    "tiny": ModelConfig(),
    "4 layers": ModelConfig(
        d_model=128, num_heads=4, num_encoder_layers=4, num_decoder_layers=4, d_ff=256, norm="pre"
    ),
}


def no_tap(*_: object, **__: object) -> None:
    """Replace tap()."""


def measure_seconds(work: Callable[[], object], *, with_taps: bool) -> float:
    """Return the seconds that a function takes, with or without taps."""
    modules = (base, transformer)
    patches = [mock.patch.object(module, "tap", no_tap) for module in modules]
    for patch in patches if not with_taps else []:
        patch.start()
    try:
        start_time = time.perf_counter()
        work()
        return time.perf_counter() - start_time
    finally:
        mock.patch.stopall()


def overhead(work: Callable[[], object]) -> tuple[float, float, float]:
    """Return the quartiles of the ratio of the time with taps to that without."""
    for _ in range(3):  # a warm-up
        work()
    ratios = []
    for number in range(REPEATS):
        order = (True, False) if number % 2 else (False, True)
        seconds = {with_taps: measure_seconds(work, with_taps=with_taps) for with_taps in order}
        ratios.append(seconds[True] / seconds[False])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return low, middle, high


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    print("| shape | work | with taps / without | quartiles |\n|---|---|---|---|")
    for name, config in SHAPES.items():
        torch.manual_seed(0)
        model = build_model(config, 200, 200, PAD_ID)
        source, target = torch.randint(4, 200, (16, 10)), torch.randint(4, 200, (16, 10))

        def train(
            model: EncoderDecoder = model,
            source: torch.Tensor = source,
            target: torch.Tensor = target,
        ) -> None:
            for _ in range(3):
                logits = model(source, target)
                cross_entropy(logits, target, ignore_index=PAD_ID).backward()
            model.zero_grad()

        def decode(model: EncoderDecoder = model, source: torch.Tensor = source) -> None:
            greedy(model, source[:4], start_id=EOS_ID, max_lengths=[12] * 4)

        for task, work in (("training", train), ("decoding", decode)):
            low, middle, high = overhead(work)
            print(f"| {name} | {task} | {middle:.3f} | {low:.3f} to {high:.3f} |", flush=True)


if __name__ == "__main__":
    main()
