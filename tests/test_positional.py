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


def test_the_sinusoid_table_is_the_papers_formula():
    table = sinusoid_table(5, 6)
    for position in range(5):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            assert table[position, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_first_position_is_zeros_and_ones():
    assert sinusoid_table(1, 4).tolist() == [[0.0, 1.0, 0.0, 1.0]]


def test_sinusoids_grow_when_a_longer_sentence_comes():
    positions = SinusoidalPositions(d_model=8)
    longer = positions(2, 50)
    torch.testing.assert_close(longer, sinusoid_table(50, 8)[2:])


def test_a_learned_table_says_its_limit():
    positions = LearnedPositions(d_model=8, max_length=4)
    assert positions(0, 4).shape == (4, 8)
    with pytest.raises(DataError, match=r"needs 5 positions, .*: learned has 4"):
        positions(0, 5)


def test_rotated_scores_depend_on_distance_alone():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8)

    def score(query_place: int, key_place: int) -> float:
        turned_query = rotate(query, torch.tensor([query_place]))
        turned_key = rotate(key, torch.tensor([key_place]))
        return float((turned_query * turned_key).sum())

    assert score(7, 4) == pytest.approx(score(13, 10), abs=1e-5)
    assert score(7, 4) != pytest.approx(score(7, 5), abs=1e-3)


def test_rotation_keeps_lengths_and_leaves_place_zero_alone():
    torch.manual_seed(0)
    states = torch.randn(1, 2, 3, 8)
    turned = rotate(states, torch.arange(3))
    torch.testing.assert_close(turned.norm(dim=-1), states.norm(dim=-1))
    torch.testing.assert_close(turned[:, :, 0], states[:, :, 0])


def test_a_table_that_grew_while_nobody_learnt_can_be_learnt_with():
    positions = SinusoidalPositions(d_model=8)
    with torch.inference_mode():
        positions(0, 5)
    weight = torch.ones(8, requires_grad=True)
    (positions(0, 5) * weight).sum().backward()
    assert weight.grad is not None


def test_sinusoids_are_computed_when_they_are_needed():
    positions = SinusoidalPositions(d_model=8)
    assert len(positions.table) == 0
    positions(0, 5)
    assert len(positions.table) == 64
