"""Looking inside: a layer offers its tensors with tap(), a caller keeps them with record()."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn


class Recording:
    """The tensors of one call, by the path of the module that offered them."""

    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.tensors: dict[str, Tensor] = {}

    def keep(self, module: nn.Module, tensors: dict[str, Tensor]) -> None:
        path = self.paths.get(id(module))
        if path is None:  # another model runs inside the recording
            return
        for name, tensor in tensors.items():
            full_name = f"{path}.{name}" if path else name
            if full_name in self.tensors:
                raise RuntimeError(f"{full_name} came twice: record one call at a time")
            self.tensors[full_name] = tensor.detach().clone()


current_recording: ContextVar[Recording | None] = ContextVar("current_recording", default=None)


def is_recording() -> bool:
    """Is anybody listening? For what is offered only after some work."""
    return not torch.compiler.is_compiling() and current_recording.get() is not None


def tap(module: nn.Module, **tensors: Tensor) -> None:
    """Offer a module's tensors to whoever records; does nothing when nobody does."""
    if torch.compiler.is_compiling():  # a ContextVar would break the compiled graph
        return
    recording = current_recording.get()
    if recording is not None:
        recording.keep(module, tensors)


@contextmanager
def record(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect what one call offers, as {"decoder.layers.0.cross_attention.weights": tensor, …}."""
    recording = Recording(model)
    token = current_recording.set(recording)
    try:
        yield recording.tensors
    finally:
        current_recording.reset(token)
    if not recording.tensors:
        raise RuntimeError("nothing was recorded: call the model inside `with record(model)`")
