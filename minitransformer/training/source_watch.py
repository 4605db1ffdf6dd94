"""Does the translation still depend on what is translated?

A decoder that has become a language model of its own may have a fair loss, and says the same of
every sentence. It shows when each is given another one's source: that should cost something.
"""

import math

from minitransformer.data.batching import make_batch
from minitransformer.data.encoding import EncodedPair, EncodedSplit
from minitransformer.judging import teacher_forced
from minitransformer.model.base import EncoderDecoder
from minitransformer.saved_step import State

PAIRS = 64
LITTLE = 0.05  # of the loss of a token
SHARE = 0.1  # of what it once was
EARLIEST = 100  # steps; before, a run is still finding out


class SourceWatch:
    """Warns, once in a sitting, when the source has no say in what comes out."""

    def __init__(
        self, model: EncoderDecoder, splits: dict[str, EncodedSplit], start_id: int
    ) -> None:
        self.model = model
        self.pairs = splits.get("valid", splits["train"])
        self.start_id = start_id
        self.has_warned = False

    def warning(self, state: State, steps: int) -> str:
        """What to say after an evaluation; the state notes how much the source was once worth."""
        gain = source_gain(self.model, self.pairs, self.start_id)
        if gain is None or not math.isfinite(gain):
            return ""
        before = state.most_source_gain
        state.most_source_gain = max(before, gain)
        has_lost = gain < LITTLE and before > LITTLE / SHARE
        has_never = gain < LITTLE and state.step >= max(EARLIEST, steps / 2)
        if self.has_warned or not (has_lost or has_never):
            return ""
        self.has_warned = True
        told = "no higher" if gain <= 0 else f"only {gain:.3f} higher"
        told = f"with another sentence's source, the loss is {told}"
        if has_lost:
            return (
                f"after step {state.step} translations no longer depend on the source: {told} "
                f"(it was {before:.3f}); a lower training.learning_rate may prevent that"
            )
        return (
            f"after step {state.step} the source does not help to translate: {told}; "
            "does each line stand beside its own translation?"
        )


def source_gain(model: EncoderDecoder, encoded: EncodedSplit, start_id: int) -> float | None:
    """How much higher a token's loss is with another sentence's source; None: too few pairs."""
    by_source: dict[tuple[int, ...], EncodedPair] = {}
    for pair in encoded[:PAIRS]:
        by_source.setdefault(tuple(pair.source), pair)
    if len(by_source) < 2:
        return None
    pairs = sorted(by_source.values(), key=lambda pair: len(pair.source))
    batch = make_batch(pairs, start_id).to(model.head.weight.device)
    right, _ = teacher_forced(model, batch)
    wrong, _ = teacher_forced(model, batch._replace(source=batch.source.roll(1, dims=0)))
    return (wrong - right) / batch.num_target_tokens
