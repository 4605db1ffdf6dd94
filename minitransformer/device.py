"""Where the arithmetic happens."""

import torch

from minitransformer.errors import UsageError

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str) -> torch.device:
    """The named device, or for "auto" the fastest one that this machine has."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(device for device, is_there in available.items() if is_there)
    if not available[name]:
        raise UsageError(f"--device {name}: this machine has none; use auto or cpu")
    return torch.device(name)
