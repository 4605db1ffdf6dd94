"""Where the arithmetic happens."""

import torch

from minitransformer.errors import UsageError


def choose_device(name: str) -> torch.device:
    """The named device; "auto" is CUDA where there is one and else the CPU."""
    # Not MPS: its kernels have been silently wrong before, so it must be asked for by name.
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = "cuda" if available["cuda"] else "cpu"
    if name not in available:
        raise UsageError(f"device {name!r}: choose auto, {', '.join(available)}")
    if not available[name]:
        raise UsageError(f"device {name!r}: this machine has none; use auto or cpu")
    return torch.device(name)
