"""The chunked loss equals the plain formula, with label smoothing and R-Drop."""

import copy
import math

import pytest
import torch
from torch import nn

from minitransformer.model import loss as loss_module
from minitransformer.model.loss import chunked_head_loss, cross_entropy, head_loss

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


def test_cross_entropy_equals_the_formula_and_ignores_padding():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, 3], [4, PAD, PAD]])
    expected = 0.0
    for row, column in [(0, 0), (0, 1), (0, 2), (1, 0)]:
        values = [math.exp(value) for value in logits[row, column].tolist()]
        expected -= math.log(values[labels[row, column]] / sum(values))
    assert float(cross_entropy(logits, labels, ignore_index=PAD)) == pytest.approx(
        expected, rel=1e-5
    )
    changed = logits.clone()
    changed[1, 1:] = 1e4
    assert torch.equal(
        cross_entropy(changed, labels, ignore_index=PAD),
        cross_entropy(logits, labels, ignore_index=PAD),
    )


def test_label_smoothing_equals_the_formula_and_ignores_padding():
    logits = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, PAD]])
    smoothing, expected = 0.1, 0.0
    log_probabilities = logits.log_softmax(-1)
    for column in (0, 1):
        row = log_probabilities[0, column]
        expected -= (1 - smoothing) * float(row[labels[0, column]]) + smoothing * float(row.mean())
    assert float(cross_entropy(logits, labels, smoothing, ignore_index=PAD)) == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("logits_per_chunk", [1, 31 * 5, 31 * 23, 10**6])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rdrop_alpha", [0.0, 2.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunked_loss_equals_plain_loss(
    monkeypatch, logits_per_chunk, bias, rdrop_alpha, smoothing
):
    monkeypatch.setitem(loss_module.LOGITS_PER_CHUNK, "cpu", logits_per_chunk)
    states, head, labels = case(rows=46 if rdrop_alpha else 23, bias=bias)
    losses, found = [], []
    for compute in (chunked_head_loss, head_loss):
        losses.append(compute(states, head, labels[:23], smoothing, rdrop_alpha))
        (losses[-1].objective / 7).backward()
        found.append(gradients(states, head))
    chunked, plain = losses
    torch.testing.assert_close(chunked.objective, plain.objective, rtol=1e-13, atol=0)
    torch.testing.assert_close(chunked.loss, plain.loss, rtol=1e-13, atol=0)
    assert int(chunked.num_right) == int(plain.num_right)
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-13


def test_plain_rdrop_is_two_cross_entropies_and_their_divergence():
    states, head, labels = case(rows=46)
    labels = labels[:23]
    one, other = head(states).chunk(2)
    p, q = one.log_softmax(1), other.log_softmax(1)
    kl = nn.functional.kl_div(p, q, reduction="sum", log_target=True)
    kl = kl + nn.functional.kl_div(q, p, reduction="sum", log_target=True)
    expected = sum(cross_entropy(each, labels, 0.1) for each in (one, other)) / 2 + 2.5 * kl / 4
    result = head_loss(states, head, labels, 0.1, rdrop_alpha=2.5)
    torch.testing.assert_close(result.objective, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(result.loss, cross_entropy(one, labels), rtol=1e-13, atol=0)
    assert int(result.num_right) == int((one.argmax(1) == labels).sum())


def test_rdrop_gradients_of_distant_passes_and_of_no_labels():
    states, head, labels = case(rows=46, dtype=torch.float32)
    with torch.no_grad():
        head.weight.mul_(1000)
    chunked_head_loss(states, head, labels[:23], 0.1, rdrop_alpha=5.0).objective.backward()
    found = gradients(states, head)
    exact_states, exact_head = (
        states.detach().double().requires_grad_(),
        copy.deepcopy(head).double(),
    )
    chunked_head_loss(
        exact_states, exact_head, labels[:23], 0.1, rdrop_alpha=5.0
    ).objective.backward()
    for one, exact in zip(found, gradients(exact_states, exact_head), strict=True):
        assert float((one - exact).norm() / exact.norm()) < 1e-4
    empty = chunked_head_loss(states[:0], head, labels[:0], 0.1, rdrop_alpha=5.0)
    empty.objective.backward()
    assert float(empty.objective.detach()) == 0
    assert all(not each.any() for each in gradients(states, head))


def test_rdrop_loss_of_equal_passes_is_the_plain_loss():
    states, head, labels = case()
    twice = torch.cat((states, states))
    one = chunked_head_loss(states, head, labels, 0.1)
    two = chunked_head_loss(twice, head, labels, 0.1, rdrop_alpha=5.0)
    torch.testing.assert_close(two.objective, one.objective, rtol=1e-13, atol=0)
    parts = (states, *head.parameters())
    expected = torch.autograd.grad(one.objective, parts)
    found = torch.autograd.grad(two.objective, parts)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_extreme_logits_give_a_finite_loss_and_gradient():
    states, head, labels = case(dtype=torch.float32)
    with torch.no_grad():
        head.weight.mul_(1000)
    result = chunked_head_loss(states, head, labels)
    result.objective.backward()
    assert float(result.loss) == pytest.approx(
        float(cross_entropy(head(states), labels).detach()), rel=1e-5
    )
    assert float(result.loss) > 1000  # the softmax of some label is 0 in float32
    assert states.grad.isfinite().all()


def test_no_labels_give_zero_loss_and_gradient():
    states, head, labels = case(rows=0)
    result = chunked_head_loss(states, head, labels, 0.1)
    result.objective.backward()
    assert (float(result.objective.detach()), float(result.loss), int(result.num_right)) == (
        0,
        0,
        0,
    )
    assert all(not each.any() for each in gradients(states, head)[1:])


@pytest.mark.parametrize("frozen", ["states", "weight", "bias"])
def test_frozen_parameters_do_not_change_other_gradients(frozen):
    states, head, labels = case()
    parts = {"states": states, "weight": head.weight, "bias": head.bias}
    parts.pop(frozen).requires_grad_(False)
    fast = torch.autograd.grad(
        chunked_head_loss(states, head, labels, 0.1).objective, parts.values()
    )
    formula = torch.autograd.grad(cross_entropy(head(states), labels, 0.1), parts.values())
    torch.testing.assert_close(fast, formula, rtol=1e-12, atol=1e-13)


def test_loss_near_zero_is_accurate():
    head = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[20.0], [9.0], [8.0]]))
    result = chunked_head_loss(torch.ones(1, 1), head, torch.tensor([0]))
    exact = math.log1p(math.exp(-11) + math.exp(-12))
    assert float(result.loss) == pytest.approx(exact, rel=0.01)


def test_chunked_loss_never_makes_a_tensor_of_all_logits(monkeypatch):
    monkeypatch.setitem(loss_module.LOGITS_PER_CHUNK, "cpu", 31 * 5)
    states, head, labels = case()
    with torch.profiler.profile(record_shapes=True) as profile:
        chunked_head_loss(states, head, labels, 0.1).objective.backward()
    shapes = [shape for event in profile.events() for shape in event.input_shapes]
    assert [5, 31] in shapes
    assert [23, 31] not in shapes
