"""Sinusoidal, learned and rotary positional encodings follow their formulas."""

import math

import pytest
import torch

from minitransformer.errors import DataError
from minitransformer.model.positional import (
    LearnedPositions,
    SinusoidalPositions,
    rotate,
    sinusoid_table,
)


def test_sinusoid_table_equals_the_papers_formula():
    table = sinusoid_table(5, 6)
    for position in range(5):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            assert table[position, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_sinusoid_of_the_first_position_is_zeros_and_ones():
    assert sinusoid_table(1, 4).tolist() == [[0.0, 1.0, 0.0, 1.0]]


def test_sinusoid_table_grows_for_a_longer_sentence():
    positions = SinusoidalPositions(d_model=8)
    longer = positions(2, 50)
    torch.testing.assert_close(longer, sinusoid_table(50, 8)[2:])


def test_learned_positions_report_their_limit():
    positions = LearnedPositions(d_model=8, max_length=4)
    assert positions(0, 4).shape == (4, 8)
    with pytest.raises(DataError, match=r"needs 5 positions, .*: learned has 4"):
        positions(0, 5)


def test_rotary_scores_depend_only_on_distance():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8)

    def score(query_position: int, key_position: int) -> float:
        rotated_query = rotate(query, torch.tensor([query_position]))
        rotated_key = rotate(key, torch.tensor([key_position]))
        return float((rotated_query * rotated_key).sum())

    assert score(7, 4) == pytest.approx(score(13, 10), abs=1e-5)
    assert score(7, 4) != pytest.approx(score(7, 5), abs=1e-3)


def test_rotate_keeps_norms_and_position_0():
    torch.manual_seed(0)
    states = torch.randn(1, 2, 3, 8)
    rotated = rotate(states, torch.arange(3))
    torch.testing.assert_close(rotated.norm(dim=-1), states.norm(dim=-1))
    torch.testing.assert_close(rotated[:, :, 0], states[:, :, 0])


def test_sinusoid_table_grown_in_inference_mode_can_be_trained_with():
    positions = SinusoidalPositions(d_model=8)
    with torch.inference_mode():
        positions(0, 5)
    weight = torch.ones(8, requires_grad=True)
    (positions(0, 5) * weight).sum().backward()
    assert weight.grad is not None


def test_sinusoid_table_is_computed_on_first_use():
    positions = SinusoidalPositions(d_model=8)
    assert len(positions.table) == 0
    positions(0, 5)
    assert len(positions.table) == 64
