"""The learning rate as a function of the step."""

import math


def learning_rate(
    step: int, *, schedule: str, peak: float, warmup_steps: int, total_steps: int
) -> float:
    """The rate of optimizer step 1, 2, …: a linear rise to `peak`, then as the schedule says."""
    if step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "inverse_sqrt":
        return peak * math.sqrt(warmup_steps / step)
    if schedule == "cosine":
        done = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
        return peak * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return peak
