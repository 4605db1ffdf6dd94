"""Attention scores, masks, weights and heads equal torch's or hand-computed values."""

import math

import pytest
import torch
from torch.nn import functional

from minitransformer.model.attention import (
    attend,
    causal_mask,
    dot_scores,
    merge_heads,
    multiplicative_scores,
    padding_mask,
    split_heads,
)


def test_attend_equals_a_hand_calculation():
    query = torch.tensor([[1.0, 0.0]])
    key = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    value = torch.tensor([[10.0], [20.0]])
    attended = attend(query, key, value)
    assert attended.scores.tolist() == [[1.0, 0.0]]
    first = math.exp(1 / math.sqrt(2)) / (math.exp(1 / math.sqrt(2)) + 1)
    torch.testing.assert_close(attended.scaled, torch.tensor([[1 / math.sqrt(2), 0.0]]))
    torch.testing.assert_close(attended.weights, torch.tensor([[first, 1 - first]]))
    torch.testing.assert_close(attended.context, torch.tensor([[10 * first + 20 * (1 - first)]]))


def test_attend_without_scaling_takes_the_softmax_of_raw_scores():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 5, 4)
    attended = attend(query, key, value, scale_scores=False)
    torch.testing.assert_close(attended.weights, (query @ key.mT).softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attend_equals_torchs_fused_attention(dtype):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 6, 8, dtype=dtype)
    mask = causal_mask(6, 6)
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(attend(query, key, value, mask).context, expected)


def test_masked_keys_get_zero_weight_and_rows_sum_to_one():
    torch.manual_seed(0)
    query, key, value = 50 * torch.randn(3, 2, 1, 4, 8)
    mask = padding_mask(torch.tensor([[5, 6, 0, 0], [5, 6, 7, 8]]), 0)
    weights = attend(query, key, value, mask).weights
    assert weights[0, :, :, 2:].eq(0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 4))


def test_attend_returns_scores_and_weights_before_mask_and_dropout():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, 4, 8)
    plain = attend(query, key, value, causal_mask(4, 4))
    dropped = attend(query, key, value, causal_mask(4, 4), dropout=0.9)
    assert plain.scores.isfinite().all()
    assert torch.equal(plain.scores, query @ key.mT)
    assert torch.equal(plain.weights, dropped.weights)
    assert not torch.equal(plain.context, dropped.context)


def test_causal_mask_allows_own_and_earlier_positions():
    assert causal_mask(3, 3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_attend_refuses_a_transposed_mask():
    states = torch.randn(2, 1, 3, 4)
    keys = torch.randn(2, 1, 5, 4)
    wrong = torch.ones(2, 1, 5, 3, dtype=torch.bool)
    with pytest.raises(Exception, match="mask"):
        attend(states, keys, keys, wrong)


def test_merge_heads_inverts_split_heads():
    states = torch.arange(12.0).reshape(1, 2, 6)
    heads = split_heads(states, 3)
    assert heads.shape == (1, 3, 2, 2)
    assert heads[0, 1].tolist() == [[2.0, 3.0], [8.0, 9.0]]
    assert torch.equal(merge_heads(heads), states)


def test_multiplicative_scores_equal_the_bilinear_form():
    torch.manual_seed(0)
    query, key, weight = torch.randn(2, 4), torch.randn(3, 5), torch.randn(4, 5)
    expected = [[float(q @ weight @ k) for k in key] for q in query]
    torch.testing.assert_close(multiplicative_scores(query, weight, key), torch.tensor(expected))
    same = torch.eye(4)
    other = torch.randn(3, 4)
    torch.testing.assert_close(multiplicative_scores(query, same, other), dot_scores(query, other))
