"""A warning during training when translations do not depend on the source, or no longer do.

A decoder that has become a language model may have a fair loss, and yet produce the same for every
source. Giving each target the source of another sentence reveals that: the loss should rise.
"""

import math
import sys
from collections.abc import Sequence

from tqdm import tqdm

from minitransformer.checkpoint import TrainerState
from minitransformer.data.batching import make_batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.errors import output_errors
from minitransformer.evaluation import Evaluation, teacher_forced
from minitransformer.model.base import EncoderDecoder
from minitransformer.training.trainer import Callback, Trainer

NUM_PAIRS = 64  # with which the dependence is measured
MIN_GAIN = 0.05  # nats per token; with less, the output does not depend on the source
HIGH_GAIN = 0.5  # once a run has exceeded it, less than MIN_GAIN means that the dependence is lost
MIN_STEPS = 100  # earlier, a model may not have learned to use the source yet


class WatchSource(Callback):
    """Measure at each evaluation how much the source helps; warn once if it does not."""

    def __init__(self) -> None:
        self.has_warned = False

    @output_errors()
    def on_evaluation(self, trainer: Trainer, evaluations: dict[str, Evaluation]) -> None:
        pairs = trainer.encoded.get("valid", trainer.encoded["train"])[:NUM_PAIRS]
        gain = source_gain(trainer.model, pairs, trainer.tokenizer.start_id)
        if gain is None or not math.isfinite(gain):
            return
        warning = source_warning(gain, trainer.state, trainer.config.training.steps)
        trainer.state.most_source_gain = max(trainer.state.most_source_gain, gain)
        if warning and not self.has_warned:
            self.has_warned = True
            tqdm.write(f"warning: {warning}", file=sys.stderr)  # above a progress bar


def source_warning(gain: float, state: TrainerState, steps: int) -> str:
    """Return what is wrong with a gain, given the step and the highest gain so far, or nothing."""
    if gain >= MIN_GAIN:
        return ""
    highest = state.most_source_gain
    higher = "no higher" if gain <= 0 else f"only {gain:.3f} higher"
    measured = f"with another sentence's source, the loss is {higher}"
    if highest > HIGH_GAIN:
        return (
            f"after step {state.step} translations no longer depend on the source: {measured} "
            f"(it was {highest:.3f}); a lower training.learning_rate may prevent that"
        )
    if state.step >= max(MIN_STEPS, steps / 2):
        return (
            f"after step {state.step} the source does not help to translate: {measured}; "
            "is each source paired with its own translation?"
        )
    return ""


def source_gain(model: EncoderDecoder, pairs: Sequence[EncodedPair], start_id: int) -> float | None:
    """Return how much another source raises the loss per token; None for too few pairs."""
    by_source: dict[tuple[int, ...], EncodedPair] = {}
    for pair in pairs:
        by_source.setdefault(tuple(pair.source), pair)
    if len(by_source) < 2:
        return None
    by_length = sorted(by_source.values(), key=lambda pair: len(pair.source))
    batch = make_batch(by_length, start_id).to(model.head.weight.device)
    own, _ = teacher_forced(model, batch)
    others, _ = teacher_forced(model, batch._replace(source=batch.source.roll(1, dims=0)))
    return (others - own) / batch.num_target_tokens
