"""Does the translation still depend on what is translated?

A decoder that has become a language model of its own may have a fair loss, and says the same of
every sentence. It shows when each is given another one's source: that should cost something.
"""

from minitransformer.data.batching import make_batch
from minitransformer.data.encoding import EncodedPair, EncodedSplit
from minitransformer.judging import teacher_forced
from minitransformer.model.transformer import Transformer
from minitransformer.saved_step import State

PAIRS = 64
LITTLE = 0.05  # nats a token
SHARE = 0.1  # of what it once was


def source_gain(model: Transformer, encoded: EncodedSplit, start_id: int) -> float | None:
    """How many nats a token costs more with another sentence's source; None: too few pairs."""
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


def collapse_warning(
    model: Transformer, splits: dict[str, EncodedSplit], start_id: int, state: State, steps: int
) -> str:
    """What to say if the source has no say any more; the state notes how much it once had."""
    held_out = splits.get("valid", splits["train"])
    gain = source_gain(model, held_out, start_id)
    if gain is None:
        return ""
    before = state.most_source_gain
    state.most_source_gain = max(before, gain)
    told = f"another sentence's source costs only {gain:.3f} nats a token more"
    if gain < LITTLE and before > LITTLE / SHARE:
        return (
            f"after step {state.step} the outputs no longer depend on the source: {told}, it was "
            f"{before:.3f}; a lower training.learning_rate may keep it from collapsing"
        )
    if gain < LITTLE and state.step >= steps / 2:
        return (
            f"after step {state.step} the outputs do not depend on the source: {told}; "
            "is each line beside its own translation? (python -m minitransformer.doctor)"
        )
    return ""
