"""The learning rate as a function of the step."""

import math

from minitransformer.settings import TrainingConfig


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Return the rate of optimizer step 1, 2, …: a linear warm-up, then `training.schedule`."""
    peak, warmup_steps = config.learning_rate, config.warmup_steps
    if step < warmup_steps:
        return peak * step / warmup_steps
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(warmup_steps / step)
    if config.schedule == "cosine":
        done = (step - warmup_steps) / max(config.steps - warmup_steps, 1)
        return peak * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return peak
