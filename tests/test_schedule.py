import math

import pytest

from minitransformer.settings import TrainingConfig
from minitransformer.training.optimizer import learning_rate


def rate(step: int, schedule: str, warmup_steps: int = 10, total_steps: int = 100) -> float:
    config = TrainingConfig(
        schedule=schedule, learning_rate=0.5, warmup_steps=warmup_steps, steps=total_steps
    )
    return learning_rate(step, config)


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "cosine"])
def test_the_rate_rises_linearly_to_its_peak(schedule):
    assert [rate(step, schedule) for step in (1, 5, 10)] == pytest.approx([0.05, 0.25, 0.5])


def test_constant_stays_at_the_peak_from_the_first_step():
    assert [rate(step, "constant", warmup_steps=0) for step in (1, 50, 1000)] == [0.5] * 3


def test_inverse_square_root_halves_when_the_step_is_four_times_the_warmup():
    assert rate(40, "inverse_sqrt") == pytest.approx(0.25)
    assert rate(90, "inverse_sqrt") == pytest.approx(0.5 / 3)


def test_cosine_ends_at_zero_and_passes_half_in_the_middle():
    assert rate(55, "cosine") == pytest.approx(0.25)
    assert rate(100, "cosine") == pytest.approx(0)
    assert rate(32, "cosine") == pytest.approx(0.25 * (1 + math.cos(math.pi * 22 / 90)))
    assert rate(1, "cosine", warmup_steps=0) < 0.5
