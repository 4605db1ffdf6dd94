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
    match config.schedule:
        case "constant":
            return peak
        case "inverse_sqrt":
            return peak * math.sqrt(warmup_steps / step)
        case "cosine":
            done = (step - warmup_steps) / max(config.steps - warmup_steps, 1)
            return peak * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def freeze_all_but(model: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Train only the modules named by `training.trainable`; an empty list trains everything."""
    # A shared tensor goes by each of its names: `head` trains what it shares, too.
    named = list(model.named_parameters(remove_duplicate=False))
    model.requires_grad_(not prefixes)
    for prefix in prefixes:
        chosen = [value for name, value in named if f"{name}.".startswith(f"{prefix}.")]
        for parameter in chosen:
            parameter.requires_grad_(True)
        if not chosen:
            parts = sorted({name.split(".")[0] for name, _ in named})
            raise ConfigError(
                f"training.trainable: the model has no part '{prefix}'; "
                f"parts begin with {', '.join(parts)}"
            )


class AdamW:
    """AdamW (Loshchilov and Hutter, 2019) with named state: {"head.weight.exp_avg": tensor, …}.

    Calls the function behind torch.optim.AdamW, which gives the same bits: the class would load
    torch's compiler, 1.2 s of CPU time, about as much as `import torch`. (DistributedDataParallel
    loads it in any case.)
    """

    def __init__(self, model: nn.Module, config: TrainingConfig) -> None:
        self.config = config
        self.trained: dict[str, Tensor] = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self.state: dict[str, Tensor] = {}  # empty before the first step

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take one AdamW step and clear the gradients."""
        self.state = self.state or self.initial_state()
        matrices = [name for name, parameter in self.trained.items() if parameter.dim() >= 2]
        others = [name for name, parameter in self.trained.items() if parameter.dim() < 2]
        # Biases and norms have no weight decay.
        for names, weight_decay in ((matrices, self.config.weight_decay), (others, 0.0)):
            parameters = [self.trained[name] for name in names]
            adamw(
                parameters,
                [cast(Tensor, parameter.grad) for parameter in parameters],
                [self.state[f"{name}.exp_avg"] for name in names],
                [self.state[f"{name}.exp_avg_sq"] for name in names],
                [],
                [self.state[f"{name}.step"] for name in names],
                fused=all(parameter.device.type != "mps" for parameter in parameters),
                amsgrad=False,
                beta1=self.config.beta1,
                beta2=self.config.beta2,
                lr=learning_rate,
                weight_decay=weight_decay,
                eps=1e-8,
                maximize=False,
            )
        for parameter in self.trained.values():
            parameter.grad = None

    def initial_state(self) -> dict[str, Tensor]:
        state = {}
        for name, parameter in self.trained.items():
            # The fused form counts steps where the parameter is, the other form on the CPU.
            device = "cpu" if parameter.device.type == "mps" else parameter.device
            state[f"{name}.step"] = torch.zeros((), device=device)
            state[f"{name}.exp_avg"] = torch.zeros_like(parameter)
            state[f"{name}.exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    def load(self, state: dict[str, Tensor]) -> None:
        """Load a saved state; an empty one is that of a run before its first step."""
        expected = self.initial_state() if state else {}
        if state.keys() != expected.keys() or any(
            (value.shape, value.dtype) != (state[key].shape, state[key].dtype)
            for key, value in expected.items()
        ):
            raise CheckpointError("the optimizer state belongs to other parameters")
        self.state = {key: value.to(expected[key].device) for key, value in state.items()}
