"""Measure the time that TensorBoard's images take: python -m benchmarks.drawing

Compares the time that a run spends on TensorBoard at an evaluation with that of the evaluation
itself: for tiny.yaml, and for a model of 4+4 layers, 128 wide, with 4 heads, on sequences of up to
20 letters or on the corpus that --set names.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from minitransformer.config import load_config
from minitransformer.explain.tensorboard import TensorBoard
from minitransformer.run import RunFolder
from minitransformer.training.trainer import Trainer

CONFIGS = Path(__file__).parent.parent / "configs"
REPEATS = 7
DEEP = (
    "model.num_encoder_layers=4", "model.num_decoder_layers=4", "model.d_model=128",
    "model.num_heads=4",
)  # fmt: skip


def measure(config: str, changes: tuple[str, ...]) -> tuple[float, float, int, int]:
    """Return the median seconds of evaluation and of TensorBoard, and how many pairs and images."""
    with tempfile.TemporaryDirectory() as folder:
        board = TensorBoard()
        trainer = Trainer(
            load_config(CONFIGS / config, changes), RunFolder(Path(folder) / "run"),
            torch.device("cpu"), [board],
        )  # fmt: skip
        board.on_start(trainer)
        evaluating, writing = [], []
        for repeat in range(REPEATS + 1):
            start_time = time.perf_counter()
            evaluations = trainer.evaluate_splits()
            evaluated = time.perf_counter()
            trainer.state.step = repeat
            board.on_evaluation(trainer, evaluations)
            if repeat:  # the first one is a warm-up
                evaluating.append(evaluated - start_time)
                writing.append(time.perf_counter() - evaluated)
        board.events.close()
        model = trainer.config.model
        layers = model.num_encoder_layers + 2 * model.num_decoder_layers
        pairs = sum(map(len, trainer.texts.values()))
    return (
        statistics.median(evaluating),
        statistics.median(writing),
        pairs,
        layers * len(board.examples),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drawing")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="settings of the larger model, such as its corpus")  # fmt: skip
    changes = tuple(parser.parse_args().set)
    print("| model | pairs | pictures | evaluation | TensorBoard | share |")
    print("|---|---|---|---|---|---|")
    for name, config, settings in (
        ("`tiny.yaml`", "tiny.yaml", ()),
        ("4+4 layers × 128", "copy.yaml", DEEP + changes),
    ):
        evaluating, writing, pairs, images = measure(config, settings)
        share = writing / evaluating
        print(f"| {name} | {pairs:,} | {images} | {evaluating:.2f} s | {writing:.3f} s "
              f"| {share:.1%} |")  # fmt: skip


if __name__ == "__main__":
    main()
