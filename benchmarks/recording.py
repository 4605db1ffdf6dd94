"""What looking inside costs when nobody looks: python -m benchmarks.recording

Trains and decodes with the model as it is, whose layers offer their tensors to whoever records, and
with the same model whose layers do not; interleaved, as ratios of medians.
"""

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


def offer_nothing(*_: object, **__: object) -> None:
    """Stands where tap() would."""


def seconds(work: Callable[[], object], *, with_taps: bool) -> float:
    modules = (base, transformer)
    patches = [mock.patch.object(module, "tap", offer_nothing) for module in modules]
    for patch in patches if not with_taps else []:
        patch.start()
    try:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    finally:
        mock.patch.stopall()


def measured(work: Callable[[], object]) -> tuple[float, float, float]:
    """How long it takes with the taps against without: quartiles of the ratio."""
    for _ in range(3):
        work()
    ratios = []
    for number in range(REPEATS):
        order = (True, False) if number % 2 else (False, True)
        took = {with_taps: seconds(work, with_taps=with_taps) for with_taps in order}
        ratios.append(took[True] / took[False])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return low, middle, high


def main() -> None:
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
            low, middle, high = measured(work)
            print(f"| {name} | {task} | {middle:.3f} | {low:.3f} to {high:.3f} |", flush=True)


if __name__ == "__main__":
    main()
