"""The chunked head and cross-entropy against the formula that it stands for."""

import copy
import math

import pytest
import torch
from torch import nn

from minitransformer.metrics import summed_loss
from minitransformer.model import head_loss as module
from minitransformer.model.head_loss import head_loss

PAD = 0


def case(rows: int = 23, bias: bool = True, dtype: torch.dtype = torch.float64):
    torch.manual_seed(1)
    head = nn.Linear(8, 31, bias=bias, dtype=dtype)
    states = torch.randn(rows, 8, dtype=dtype, requires_grad=True)
    return states, head, torch.randint(1, 31, (rows,))


def gradients(states, head) -> list[torch.Tensor]:
    found = [each.grad.clone() for each in (states, *head.parameters())]
    states.grad = None
    head.zero_grad()
    return found


@pytest.mark.parametrize("logits_at_a_time", [1, 31 * 5, 31 * 23, 10**6])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunks_equal_the_formula(monkeypatch, logits_at_a_time, bias, smoothing):
    monkeypatch.setitem(module.LOGITS_AT_A_TIME, "cpu", logits_at_a_time)
    states, head, labels = case(bias=bias)
    fast = head_loss(states, head, labels, smoothing)
    (fast.objective / 7).backward()
    fast_gradients = gradients(states, head)
    logits = head(states)
    formula = summed_loss(logits, labels, PAD, smoothing)
    (formula / 7).backward()
    torch.testing.assert_close(fast.objective, formula, rtol=1e-13, atol=0)
    torch.testing.assert_close(fast.loss, summed_loss(logits, labels, PAD), rtol=1e-13, atol=0)
    assert int(fast.num_right) == int((logits.argmax(1) == labels).sum())
    for ours, theirs in zip(fast_gradients, gradients(states, head), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-13


@pytest.mark.parametrize("logits_at_a_time", [1, 31 * 5, 10**6])
@pytest.mark.parametrize("bias", [True, False])
def test_two_passes_equal_the_formula_of_their_consistency(monkeypatch, logits_at_a_time, bias):
    monkeypatch.setitem(module.LOGITS_AT_A_TIME, "cpu", logits_at_a_time)
    states, head, labels = case(rows=46, bias=bias)
    labels = labels[:23]
    fast = head_loss(states, head, labels, 0.1, consistency=2.5)
    (fast.objective / 7).backward()
    fast_gradients = gradients(states, head)
    one, other = head(states).chunk(2)
    p, q = one.log_softmax(1), other.log_softmax(1)
    apart = nn.functional.kl_div(p, q, reduction="sum", log_target=True)
    apart = apart + nn.functional.kl_div(q, p, reduction="sum", log_target=True)
    formula = sum(summed_loss(each, labels, PAD, 0.1) for each in (one, other)) / 2
    formula = formula + 2.5 * apart / 2
    (formula / 7).backward()
    torch.testing.assert_close(fast.objective, formula, rtol=1e-13, atol=0)
    torch.testing.assert_close(fast.loss, summed_loss(one, labels, PAD), rtol=1e-13, atol=0)
    assert int(fast.num_right) == int((one.argmax(1) == labels).sum())
    for ours, theirs in zip(fast_gradients, gradients(states, head), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-13


def test_two_passes_far_apart_give_a_finite_gradient_and_none_at_all_gives_zeros():
    states, head, labels = case(rows=46, dtype=torch.float32)
    with torch.no_grad():
        head.weight.mul_(1000)
    head_loss(states, head, labels[:23], 0.1, consistency=5.0).objective.backward()
    found = gradients(states, head)
    exact_states, exact_head = (
        states.detach().double().requires_grad_(),
        copy.deepcopy(head).double(),
    )
    head_loss(exact_states, exact_head, labels[:23], 0.1, consistency=5.0).objective.backward()
    for one, exact in zip(found, gradients(exact_states, exact_head), strict=True):
        assert float((one - exact).norm() / exact.norm()) < 1e-4
    nothing = head_loss(states[:0], head, labels[:0], 0.1, consistency=5.0)
    nothing.objective.backward()
    assert float(nothing.objective.detach()) == 0
    assert all(not each.any() for each in gradients(states, head))


def test_equal_passes_are_as_consistent_as_can_be():
    states, head, labels = case()
    twice = torch.cat((states, states))
    one = head_loss(states, head, labels, 0.1)
    two = head_loss(twice, head, labels, 0.1, consistency=5.0)
    torch.testing.assert_close(two.objective, one.objective, rtol=1e-13, atol=0)
    parts = (states, *head.parameters())
    expected = torch.autograd.grad(one.objective, parts)
    found = torch.autograd.grad(two.objective, parts)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_logits_far_apart_give_a_finite_loss_and_gradient():
    states, head, labels = case(dtype=torch.float32)
    with torch.no_grad():
        head.weight.mul_(1000)
    result = head_loss(states, head, labels)
    result.objective.backward()
    assert float(result.loss) == pytest.approx(
        float(summed_loss(head(states), labels, PAD).detach()), rel=1e-5
    )
    assert float(result.loss) > 1000  # the softmax of some label is 0 in float32
    assert states.grad.isfinite().all()


def test_no_labels_give_no_loss_and_a_gradient_of_zeros():
    states, head, labels = case(rows=0)
    result = head_loss(states, head, labels, 0.1)
    result.objective.backward()
    assert (float(result.objective.detach()), float(result.loss), int(result.num_right)) == (
        0,
        0,
        0,
    )
    assert all(not each.any() for each in gradients(states, head)[1:])


@pytest.mark.parametrize("frozen", ["states", "weight", "bias"])
def test_what_is_frozen_changes_nothing_for_the_others(frozen):
    states, head, labels = case()
    parts = {"states": states, "weight": head.weight, "bias": head.bias}
    parts.pop(frozen).requires_grad_(False)
    fast = torch.autograd.grad(head_loss(states, head, labels, 0.1).objective, parts.values())
    formula = torch.autograd.grad(summed_loss(head(states), labels, PAD, 0.1), parts.values())
    torch.testing.assert_close(fast, formula, rtol=1e-12, atol=1e-13)


def test_a_loss_near_zero_keeps_its_digits():
    head = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[20.0], [9.0], [8.0]]))
    result = head_loss(torch.ones(1, 1), head, torch.tensor([0]))
    exact = math.log1p(math.exp(-11) + math.exp(-12))
    assert float(result.loss) == pytest.approx(exact, rel=0.01)


def test_no_tensor_of_all_logits_is_made(monkeypatch):
    monkeypatch.setitem(module.LOGITS_AT_A_TIME, "cpu", 31 * 5)
    states, head, labels = case()
    with torch.profiler.profile(record_shapes=True) as profile:
        head_loss(states, head, labels, 0.1).objective.backward()
    shapes = [shape for event in profile.events() for shape in event.input_shapes]
    assert [5, 31] in shapes
    assert [23, 31] not in shapes
