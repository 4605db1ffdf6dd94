"""Recording of intermediate tensors: layers offer them with tap(), record() collects them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Recording(NamedTuple):
    """The tensors recorded so far, and the paths of the modules that may offer more."""

    tensors: dict[str, Tensor]
    paths: dict[int, str]  # by the id of the module


current_recording: ContextVar[Recording | None] = ContextVar("current_recording", default=None)


@contextmanager
def record(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the tensors of one call: {"decoder.layers.0.cross_attention.weights": tensor, …}."""
    recording = Recording({}, {id(module): path for path, module in model.named_modules()})
    token = current_recording.set(recording)
    try:
        yield recording.tensors
    finally:
        current_recording.reset(token)
    if not recording.tensors:
        raise RuntimeError("nothing was recorded: call the model inside `with record(model)`")


def tap(module: nn.Module, **tensors: Tensor) -> None:
    """Offer a module's tensors to the current recording, if there is one."""
    if torch.compiler.is_compiling():  # a ContextVar would break the compiled graph
        return
    recording = current_recording.get()
    if recording is None or id(module) not in recording.paths:  # or another model's module
        return
    path = recording.paths[id(module)]
    for name, tensor in tensors.items():
        full_name = f"{path}.{name}" if path else name
        if full_name in recording.tensors:
            raise RuntimeError(f"{full_name} was recorded twice: record one call at a time")
        recording.tensors[full_name] = tensor.detach().clone()


def is_recording() -> bool:
    """Return whether tensors are being recorded, for work that only a recording needs."""
    return not torch.compiler.is_compiling() and current_recording.get() is not None
