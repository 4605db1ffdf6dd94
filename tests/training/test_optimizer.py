"""AdamW equals torch's without its imports; the learning rate follows its schedule."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from minitransformer.settings import TrainingConfig
from minitransformer.training.optimizer import AdamW, learning_rate
from tests.support.processes import ROOT


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


@pytest.mark.parametrize("stops_after", [None, 2])
def test_adamw_equals_torch_bit_for_bit(stops_after):
    config = TrainingConfig(weight_decay=0.3, beta1=0.8, beta2=0.95)
    ours, theirs = small_model(), small_model()
    optimizer = AdamW(ours, config)
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() >= 2], "weight_decay": 0.3},
        {"params": [p for p in theirs.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, betas=(0.8, 0.95), fused=True)
    for step in range(5):
        rate = 0.1 / (step + 1)
        for group in reference.param_groups:
            group["lr"] = rate
        values = torch.randn(4, 5)
        for model in (ours, theirs):
            model(values).square().sum().backward()
        optimizer.step(rate)
        reference.step()
        reference.zero_grad()
        if step == stops_after:
            state = {name: value.clone() for name, value in optimizer.state.items()}
            optimizer = AdamW(ours, config)
            optimizer.load(state)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other)
            assert mine.grad is None


def test_adamw_leaves_frozen_parameters_unchanged():
    model = small_model()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = AdamW(model, TrainingConfig(weight_decay=0.5))
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step(0.1)
    assert torch.equal(model[0].weight, before)
    assert {name.split(".")[0] for name in optimizer.state} == {"1", "2"}


def test_training_does_not_load_torch_dynamo(tmp_path):
    code = (
        "import runpy, sys\n"
        "sys.argv = ['train.py', '--config', 'tiny.yaml', '--set', 'training.steps=2']\n"
        f"try: runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')\n"
        "except SystemExit as end: print(end.code, 'torch._dynamo' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "0 False"


def rate(step: int, schedule: str, warmup_steps: int = 10, total_steps: int = 100) -> float:
    config = TrainingConfig(
        schedule=schedule, learning_rate=0.5, warmup_steps=warmup_steps, steps=total_steps
    )
    return learning_rate(step, config)


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "cosine"])
def test_learning_rate_rises_linearly_to_its_peak(schedule):
    assert [rate(step, schedule) for step in (1, 5, 10)] == pytest.approx([0.05, 0.25, 0.5])


def test_constant_schedule_stays_at_the_peak():
    assert [rate(step, "constant", warmup_steps=0) for step in (1, 50, 1000)] == [0.5] * 3


def test_inverse_sqrt_schedule_halves_at_four_times_the_warmup():
    assert rate(40, "inverse_sqrt") == pytest.approx(0.25)
    assert rate(90, "inverse_sqrt") == pytest.approx(0.5 / 3)


def test_cosine_schedule_ends_at_zero_and_is_half_in_the_middle():
    assert rate(55, "cosine") == pytest.approx(0.25)
    assert rate(100, "cosine") == pytest.approx(0)
    assert rate(32, "cosine") == pytest.approx(0.25 * (1 + math.cos(math.pi * 22 / 90)))
    assert rate(1, "cosine", warmup_steps=0) < 0.5
