"""Which checkpoint is the best, by the metric that the config names."""

from minitransformer.errors import DataError
from minitransformer.judging import Evaluation
from minitransformer.saved_step import State


def note_best(state: State, evaluations: dict[str, Evaluation], metric: str) -> None:
    """Remember this step if the metric has never been better on held-out pairs."""
    if metric == "none" or state.step == 0:
        return  # step 0 has no checkpoint to go back to
    value = evaluations["valid"].row()[metric]
    if value is None:
        raise DataError(
            "evaluation.best_metric: no held-out sentence has the four words that BLEU counts by; "
            "choose chrf"
        )
    best = state.best_value
    if best is None or (value < best if metric == "loss" else value > best):
        state.best_value, state.best_step = value, state.step
        state.evaluations_since_best = 0
    else:
        state.evaluations_since_best += 1
