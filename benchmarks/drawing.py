"""What TensorBoard's pictures cost: python -m benchmarks.drawing

The time that a run spends on TensorBoard at an evaluation, beside that of the evaluation itself:
for tiny.yaml, and for a model of 4+4 layers, 128 wide, with 4 heads, on sequences of up to 20
letters, or on the corpus that --set names.
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
    """Median seconds of an evaluation and of what TensorBoard does then; pairs and pictures."""
    with tempfile.TemporaryDirectory() as folder:
        board = TensorBoard()
        trainer = Trainer(
            load_config(CONFIGS / config, changes), RunFolder(Path(folder) / "run"),
            torch.device("cpu"), [board],
        )  # fmt: skip
        board.on_start(trainer)
        eval_mode, writing = [], []
        for repeat in range(REPEATS + 1):
            began = time.perf_counter()
            evaluations = trainer.evaluate_splits()
            middle = time.perf_counter()
            trainer.state.step = repeat
            board.on_evaluation(trainer, evaluations)
            if repeat:  # the first one warms up
                eval_mode.append(middle - began)
                writing.append(time.perf_counter() - middle)
        board.events.close()
        model = trainer.config.model
        layers = model.num_encoder_layers + 2 * model.num_decoder_layers
        pairs = sum(map(len, trainer.texts.values()))
    return (
        statistics.median(eval_mode),
        statistics.median(writing),
        pairs,
        layers * len(board.examples),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drawing")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="another corpus for the larger model")  # fmt: skip
    changes = tuple(parser.parse_args().set)
    print("| model | pairs | pictures | evaluation | TensorBoard | share |")
    print("|---|---|---|---|---|---|")
    for name, config, settings in (
        ("`tiny.yaml`", "tiny.yaml", ()),
        ("4+4 layers × 128", "copy.yaml", DEEP + changes),
    ):
        eval_mode, writing, pairs, pictures = measure(config, settings)
        share = writing / eval_mode
        print(f"| {name} | {pairs:,} | {pictures} | {eval_mode:.2f} s | {writing:.3f} s "
              f"| {share:.1%} |")  # fmt: skip


if __name__ == "__main__":
    main()
