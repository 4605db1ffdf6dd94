"""AdamW over the parameters that a config trains, and the learning-rate schedule."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from minitransformer.errors import CheckpointError, ConfigError
from minitransformer.settings import TrainingConfig


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Return the rate of optimizer step 1, 2, …: a linear warm-up, then `training.schedule`."""
    peak, warmup_steps = config.learning_rate, config.warmup_steps
    if step < warmup_steps:
        return peak * step / warmup_steps
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(warmup_steps / step)
    if config.schedule == "cosine":
        done = (step - warmup_steps) / max(config.steps - warmup_steps, 1)
        return peak * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return peak


def freeze_all_but(model: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Train only the modules named by `training.trainable`; an empty list trains everything."""
    # A shared tensor goes by each of its names: `head` trains what it shares, too.
    named = list(model.named_parameters(remove_duplicate=False))
    for prefix in prefixes:
        if not any(is_within(name, prefix) for name, _ in named):
            parts = sorted({name.split(".")[0] for name, _ in named})
            raise ConfigError(
                f"training.trainable: the model has no part '{prefix}'; "
                f"parts begin with {', '.join(parts)}"
            )
    model.requires_grad_(not prefixes)
    for name, parameter in named:
        if any(is_within(name, prefix) for prefix in prefixes):
            parameter.requires_grad_(True)


def is_within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


class AdamW:
    """AdamW (Loshchilov and Hutter, 2019) with named state: {"head.weight.exp_avg": tensor, …}.

    Calls torch's function, not its class, which would load torch's compiler: 1.4 s of CPU time, or
    1.6 times what it takes to start a run of one process and train three steps.
    (DistributedDataParallel loads it in any case.)
    """

    def __init__(self, model: nn.Module, config: TrainingConfig) -> None:
        self.config = config
        self.trained = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self.state: dict[str, Tensor] = {}
        self.weights_bytes = sum(parameter.nbytes for parameter in model.parameters())

    def bytes_to_save(self) -> int:
        """How large a checkpoint of the weights and this memory is, but for names and counts."""
        return self.weights_bytes + 2 * sum(each.nbytes for each in self.trained.values())

    def step(self, learning_rate: float) -> None:
        """Move the parameters along their gradients, which are used up."""
        if not self.state:
            self.state = self.new_state()
        # Weight decay goes to matrices; biases and norms are left alone.
        for decay, names in (
            (self.config.weight_decay, [n for n, each in self.trained.items() if each.dim() >= 2]),
            (0.0, [n for n, each in self.trained.items() if each.dim() < 2]),
        ):
            if names:
                self.move(names, learning_rate, decay)
        for parameter in self.trained.values():
            parameter.grad = None

    @torch.no_grad()
    def move(self, names: list[str], learning_rate: float, weight_decay: float) -> None:
        parameters: list[Tensor] = [self.trained[name] for name in names]
        gradients = [parameter.grad for parameter in parameters]
        assert all(gradient is not None for gradient in gradients)
        adamw(
            parameters,
            cast(list[Tensor], gradients),
            [self.state[f"{name}.exp_avg"] for name in names],
            [self.state[f"{name}.exp_avg_sq"] for name in names],
            [],
            [self.state[f"{name}.step"] for name in names],
            fused=parameters[0].device.type != "mps",
            amsgrad=False,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            lr=learning_rate,
            weight_decay=weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def new_state(self) -> dict[str, Tensor]:
        memory = {}
        for name, parameter in self.trained.items():
            memory[f"{name}.step"] = torch.zeros((), device=self.step_device(parameter))
            for key in ("exp_avg", "exp_avg_sq"):
                memory[f"{name}.{key}"] = torch.zeros_like(parameter)
        return memory

    def step_device(self, parameter: Tensor) -> torch.device:
        """The fused form counts where the parameter is, the other one on the CPU."""
        return torch.device("cpu") if parameter.device.type == "mps" else parameter.device

    def load(self, memory: dict[str, Tensor]) -> None:
        """Take up a memory; empty, it is that of a run before its first step."""
        expected = self.new_state() if memory else {}
        if any(
            key not in memory
            or (value.shape, value.dtype) != (memory[key].shape, memory[key].dtype)
            for key, value in expected.items()
        ) or len(memory) != len(expected):
            raise CheckpointError("the optimizer's memory belongs to other parameters")
        self.state = {key: value.to(expected[key].device) for key, value in memory.items()}
