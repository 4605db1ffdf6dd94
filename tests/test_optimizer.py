"""The optimizer is torch's, without what torch's class brings along."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from minitransformer.settings import TrainingConfig
from minitransformer.training.optimizer import AdamW
from tests.processes import ROOT


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


@pytest.mark.parametrize("stops_after", [None, 2])
def test_every_bit_is_that_of_torch(stops_after):
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
            memory = {name: value.clone() for name, value in optimizer.state.items()}
            optimizer = AdamW(ours, config)
            optimizer.load(memory)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other)
            assert mine.grad is None


def test_what_is_not_trained_is_left_alone():
    model = small_model()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = AdamW(model, TrainingConfig(weight_decay=0.5))
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step(0.1)
    assert torch.equal(model[0].weight, before)
    assert {name.split(".")[0] for name in optimizer.state} == {"1", "2"}


def test_training_does_not_load_the_compiler_of_torch(tmp_path):
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
