"""AdamW over the parameters that a config trains, with a state of named tensors."""

import torch
from torch import Tensor, nn

from minitransformer.errors import ConfigError
from minitransformer.settings import TrainingConfig


def freeze_all_but(model: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Train only the modules named by `training.train_only`; an empty list trains everything."""
    # A shared tensor goes by each of its names: `head` trains what it shares, too.
    named = list(model.named_parameters(remove_duplicate=False))
    for prefix in prefixes:
        if not any(is_within(name, prefix) for name, _ in named):
            parts = sorted({name.split(".")[0] for name, _ in named})
            raise ConfigError(
                f"training.train_only: the model has no part '{prefix}'; "
                f"parts begin with {', '.join(parts)}"
            )
    model.requires_grad_(not prefixes)
    for name, parameter in named:
        if any(is_within(name, prefix) for prefix in prefixes):
            parameter.requires_grad_(True)


def is_within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def new_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Weight decay goes to matrices; biases and norms are left alone."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [parameter for parameter in trained if parameter.dim() >= 2],
            "weight_decay": config.weight_decay,
        },
        {
            "params": [parameter for parameter in trained if parameter.dim() < 2],
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=all(parameter.device.type != "mps" for parameter in trained),
    )


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """The optimizer's memory by parameter name: {"head.weight.exp_avg": tensor, …}."""
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.AdamW, tensors: dict[str, Tensor]
) -> None:
    """Give the optimizer back its memory."""
    for name, parameter in model.named_parameters():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            if f"{name}.{key}" in tensors:
                optimizer.state[parameter][key] = tensors[f"{name}.{key}"].to(parameter.device)
