"""Fast dropout, softmax and argmax equal torch's."""

import pytest
import torch

from minitransformer.model.fast import dropout, fast_argmax, softmax


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_zeroes_its_rate_and_scales_the_rest(rate, dtype):
    torch.manual_seed(1)
    values = torch.ones(1000, 997, dtype=dtype)
    dropped = dropout(values, rate, training=True)
    assert dropped.dtype == dtype
    is_zero = dropped == 0
    assert float(is_zero.double().mean()) == pytest.approx(rate, abs=5 * (rate / 997_000) ** 0.5)
    kept = dropped[~is_zero]
    assert kept.unique().numel() == 1
    # The rate is rounded to a multiple of 1/65,536; the scale follows the rounded rate.
    assert float(kept[0]) == pytest.approx(
        1 / (1 - round(rate * 65536) / 65536), rel=0.004 if dtype == torch.bfloat16 else 1e-6
    )


def test_dropout_is_independent_between_neighbouring_values():
    torch.manual_seed(1)
    zero = (dropout(torch.ones(400, 401), 0.5, training=True) == 0).double()
    for columns in range(1, 9):  # four values share a random number
        both = (zero[:, :-columns] * zero[:, columns:]).mean()
        assert float(both) == pytest.approx(0.25, abs=0.01)
    assert float((zero[:-1] * zero[1:]).mean()) == pytest.approx(0.25, abs=0.01)


def test_dropout_applies_the_same_mask_to_gradients():
    values = torch.randn(7, 5, requires_grad=True)
    dropped = dropout(values, 0.3, training=True)
    dropped.sum().backward()
    assert torch.equal(values.grad * values.detach(), dropped.detach())


def test_dropout_is_determined_by_the_seed():
    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return dropout(torch.ones(50), 0.5, training=True)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (0.5, False)])
def test_disabled_dropout_returns_its_input(rate, training):
    values = torch.randn(3)
    assert dropout(values, rate, training=training) is values


def test_dropout_with_a_rate_near_one_gives_no_nan():
    assert not dropout(torch.ones(100), 1 - 1e-9, training=True).isnan().any()


@pytest.mark.parametrize("keys", [1, 5, 15, 16, 40])
@pytest.mark.parametrize("rows", [2, 400])
def test_softmax_equals_torch_for_every_shape(rows, keys):
    torch.manual_seed(keys)
    scores = (30 * torch.randn(rows, 2, 3, keys, dtype=torch.float64)).requires_grad_()
    if keys > 1:
        with torch.no_grad():
            scores[0, :, :, 1:] = float("-inf")
    factors = torch.randn(rows, 2, 3, keys, dtype=torch.float64)
    found = []
    for function in (softmax, lambda values: values.softmax(dim=-1)):
        weights = function(scores)
        (gradient,) = torch.autograd.grad((weights * factors).sum(), scores)
        found.append((weights.detach(), gradient))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("columns", [1, 128, 300, 5000, 5120, 5121])
def test_fast_argmax_equals_torch_even_with_ties(columns):
    torch.manual_seed(columns)
    values = torch.randn(20, columns)
    assert torch.equal(fast_argmax(values), values.argmax(dim=1, keepdim=True))
    equal = torch.randint(0, 3, (20, columns)).float()
    assert torch.equal(fast_argmax(equal), equal.argmax(dim=1, keepdim=True))
