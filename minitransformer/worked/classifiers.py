"""The lecture's text classifiers: shapes and parameter counts, as torch-summary prints them."""

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

VOCAB_SIZE, LENGTH, D_EMBEDDING, CLASSES = 20_000, 500, 128, 2
FLOAT_BYTES, MEGABYTE = 4, 2**20
Weighted = nn.Embedding | nn.Linear | nn.Conv1d


class RecurrentClassifier(nn.Module):
    """Embedding, an RNN or a bidirectional LSTM, and a dense layer on the last hidden state."""

    def __init__(self, rnn: nn.RNN | nn.LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, D_EMBEDDING)
        self.rnn = rnn
        self.fc = nn.Linear(rnn.hidden_size, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.rnn(self.embedding(ids))[1]
        last = hidden[0] if isinstance(hidden, tuple) else hidden  # an LSTM has a cell state too
        output: Tensor = self.fc(last[-1])
        return output


class Transpose(nn.Module):
    """Turn [B, L, D] into the [B, D, L] that a convolution expects."""

    def forward(self, states: Tensor) -> Tensor:
        return states.transpose(1, 2)


def perceptron() -> nn.Module:
    return nn.Sequential(OrderedDict(
        embedding=nn.Embedding(VOCAB_SIZE, D_EMBEDDING),
        flatten=nn.Flatten(),
        fc1=nn.Linear(LENGTH * D_EMBEDDING, 1024),
        relu1=nn.ReLU(),
        fc2=nn.Linear(1024, 128),
        relu2=nn.ReLU(),
        fc3=nn.Linear(128, CLASSES),
    ))  # fmt: skip


def convolutional(channels: int, *, pooled: bool) -> nn.Module:
    """Build two convolutions, then a dense layer on all outputs or on each channel's maximum."""
    pool = {"pool": nn.AdaptiveMaxPool1d(1)} if pooled else {}
    return nn.Sequential(OrderedDict[str, nn.Module](
        embedding=nn.Embedding(VOCAB_SIZE, D_EMBEDDING),
        transpose=Transpose(),
        conv1=nn.Conv1d(D_EMBEDDING, 128, kernel_size=7, stride=3),
        relu1=nn.ReLU(),
        conv2=nn.Conv1d(128, channels, kernel_size=7, stride=3),
        relu2=nn.ReLU(),
        **pool,
        flatten=nn.Flatten(),
        fc1=nn.Linear(channels if pooled else channels * 53, 128),
        relu3=nn.ReLU(),
        fc2=nn.Linear(128, CLASSES),
    ))  # fmt: skip


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: RecurrentClassifier(nn.RNN(D_EMBEDDING, 64, batch_first=True)),
    "bilstm": lambda: RecurrentClassifier(
        nn.LSTM(D_EMBEDDING, 64, num_layers=2, bidirectional=True, batch_first=True)
    ),
    "mlp": perceptron,
    "conv": lambda: convolutional(256, pooled=False),
    "conv_gmp": lambda: convolutional(128, pooled=True),
}


@lru_cache
def built(name: str) -> tuple[nn.Module, dict[str, torch.Size]]:
    """Return a classifier and the output shape of each of its layers for one text."""
    if not isinstance(name, str):
        raise ValueError(f"name a classifier in quotes (available: {', '.join(BUILDERS)})")
    if name not in BUILDERS:
        raise ValueError(f"there is no classifier '{name}' (available: {', '.join(BUILDERS)})")
    shapes: dict[str, torch.Size] = {}

    def keep_shape(layer: str, _module: nn.Module, _inputs: object, output: Any) -> None:
        shapes[layer] = (output[0] if isinstance(output, tuple) else output).shape[1:]

    # A recurrent network on the meta device runs token by token, which takes seconds.
    with torch.device("cpu" if name in ("rnn", "bilstm") else "meta"), torch.no_grad():
        model = BUILDERS[name]()
        for layer, module in model.named_children():
            module.register_forward_hook(partial(keep_shape, layer))
        model(torch.zeros(1, LENGTH, dtype=torch.long))
    return model, shapes


def output_shape(name: str, layer: str) -> list[int]:
    """Return the shape of a layer's output for one text."""
    shapes = built(name)[1]
    if layer not in shapes:
        raise ValueError(f"'{name}' has no layer '{layer}' (available: {', '.join(shapes)})")
    return list(shapes[layer])


def parameter_counts(name: str) -> list[int]:
    """Count all parameters, those that are trained, and those that are not."""
    parameters = list(built(name)[0].parameters())
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    total = sum(each.numel() for each in parameters)
    return [total, trained, total - trained]


def widths(name: str) -> list[int]:
    """Return hidden width, embedding width and classes of a recurrent classifier."""
    model = built(name)[0]
    if not isinstance(model, RecurrentClassifier):
        raise ValueError(f"'{name}' is not recurrent")
    return [model.rnn.hidden_size, model.embedding.embedding_dim, model.fc.out_features]


def layers_with_weights(name: str) -> list[tuple[Weighted, torch.Size]]:
    """Return a classifier's embedding, dense and convolutional layers with their output shapes."""
    model, shapes = built(name)
    return [
        (module, shapes[layer])
        for layer, module in model.named_children()
        if isinstance(module, Weighted)
    ]


def mult_adds(name: str) -> int:
    """Count each weight once, a convolution's once per position, as torch-summary does."""
    return sum(
        module.weight.numel() * (shape[-1] if isinstance(module, nn.Conv1d) else 1)
        for module, shape in layers_with_weights(name)
    )


def megabytes(name: str, batch: int) -> list[float]:
    """Return the size of input, both passes, parameters and all, as torch-summary does."""
    outputs = sum(shape.numel() for _, shape in layers_with_weights(name))
    numbers = [batch * LENGTH, 2 * outputs, parameter_counts(name)[0]]
    sizes = [number * FLOAT_BYTES / MEGABYTE for number in numbers]
    return [*sizes, sum(sizes)]
