"""What a sheet's formulas may call: our model's own functions, and torch's for the rest."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitransformer.model.attention import (
    AttentionOutput,
    apply_mask,
    attend,
    causal_mask,
    dot_scores,
    multiplicative_scores,
)
from minitransformer.model.positional import position_angles, sinusoid_table
from minitransformer.model.transformer import MultiHeadAttention
from minitransformer.settings import ModelConfig
from minitransformer.worked import matrices
from minitransformer.worked.matrices import Value, expect, matrix, size, whole


def similarity(query: Value, key: Value) -> Tensor:
    query, key = matrix(query), matrix(key)
    fits = query.shape[1] == key.shape[1]
    expect(fits, f"queries {size(query)} and keys {size(key)} differ in width")
    return dot_scores(query, key)


def multiplicative(query: Value, weight: Value, key: Value) -> Tensor:
    query, weight, key = matrix(query), matrix(weight), matrix(key)
    fits = weight.shape == (query.shape[1], key.shape[1])
    expect(fits, f"{size(query)}, W {size(weight)} and keys {size(key)} cannot be multiplied")
    return multiplicative_scores(query, weight, key)


def scaled(scores: Value, width: Value) -> Tensor:
    number = matrix(width)
    is_width = number.numel() == 1 and float(number) > 0
    expect(is_width, "the width, whose root divides, must be a positive number")
    return matrix(scores) / number.sqrt()


def masked(scores: Value) -> Tensor:
    scores = matrix(scores)
    is_square = scores.shape[0] == scores.shape[1]
    expect(is_square, f"scores of all tokens are square; these are {size(scores)}")
    return apply_mask(scores, causal_mask(*scores.shape))


def attended(
    query: Value, key: Value, value: Value, *, scaled: bool, masked: bool
) -> AttentionOutput:
    query, key, value = matrix(query), matrix(key), matrix(value)
    similarity(query, key)
    fits = key.shape[0] == value.shape[0]
    expect(fits, f"keys {size(key)} and values {size(value)} differ in number")
    mask = causal_mask(len(query), len(key)) if masked else None
    return attend(query, key, value, mask, scale_scores=scaled)


def attention(
    query: Value, key: Value, value: Value, scaled: bool = True, masked: bool = False
) -> Tensor:
    return attended(query, key, value, scaled=scaled, masked=masked).context


def attention_weights(
    query: Value, key: Value, scaled: bool = True, masked: bool = False
) -> Tensor:
    return attended(query, key, key, scaled=scaled, masked=masked).weights


def our_layer(
    queries: Value,
    looked_at: Value,
    w_query: Value,
    w_key: Value,
    w_value: Value,
    w_output: Value,
    masked: bool = False,
) -> Tensor:
    """Our MultiHeadAttention with one head and a sheet's matrices."""
    queries, looked_at = matrix(queries), matrix(looked_at)
    config = ModelConfig(d_model=queries.shape[1], output_projection=True)
    layer = MultiHeadAttention(config).double()
    assert layer.output is not None
    for linear, weight in (
        (layer.query, w_query), (layer.key, w_key), (layer.value, w_value),
        (layer.output, w_output),
    ):  # fmt: skip
        linear.weight.copy_(matrix(weight).T)
    mask = mask_of(queries, looked_at, masked)
    output: Tensor = layer(queries[None], looked_at[None], mask[None, None])
    return output[0]


def torch_layer(
    queries: Value,
    looked_at: Value,
    w_query: Value,
    w_key: Value,
    w_value: Value,
    w_output: Value,
    masked: bool = False,
) -> Tensor:
    """torch.nn.MultiheadAttention with one head and a sheet's matrices."""
    queries, looked_at = matrix(queries), matrix(looked_at)
    layer = nn.MultiheadAttention(
        queries.shape[1], 1, bias=False, batch_first=True, dtype=torch.float64
    )
    projections = [matrix(weight).T for weight in (w_query, w_key, w_value)]
    layer.in_proj_weight.copy_(torch.cat(projections))
    layer.out_proj.weight.copy_(matrix(w_output).T)
    hidden = ~mask_of(queries, looked_at, masked)
    output: Any = layer(queries[None], looked_at[None], looked_at[None], attn_mask=hidden)
    return matrix(output[0][0])


def mask_of(queries: Tensor, looked_at: Tensor, masked: bool) -> Tensor:
    lengths = len(queries), len(looked_at)
    return causal_mask(*lengths) if masked else torch.ones(*lengths, dtype=torch.bool)


def even(width: Value) -> int:
    number = whole(width, "width", low=2)
    expect(number % 2 == 0, f"width: expected an even number, got {number}")
    return number


def angles(position: Value, width: int) -> Tensor:
    place = whole(position, "position", low=0)
    return position_angles(torch.tensor([place]), width, torch.float64)


def sinusoid(position: Value, width: Value) -> Tensor:
    """One row of the sinusoid table, as the paper has it."""
    return sinusoid_table(whole(position, "position", low=0) + 1, even(width), torch.float64)[-1:]


def boxed_sinusoid(position: Value, width: Value) -> Tensor:
    """The row that the exponent (2i+1)/d of a printed cosine formula gives."""
    # Twice the width halves the exponents' distance: 0/d, 1/d, 2/d, ... for the dimensions in turn.
    both = angles(position, 2 * even(width))
    return torch.stack((both[:, 0::2].sin(), both[:, 1::2].cos()), dim=-1).flatten(-2)


def sinusoid_in_degrees(position: Value, width: Value) -> Tensor:
    """The row of the sinusoid table on a calculator that was set to degrees."""
    turned = angles(position, even(width)).deg2rad()
    return torch.stack((turned.sin(), turned.cos()), dim=-1).flatten(-2)


VOCAB_SIZE, LENGTH, D_EMBEDDING, CLASSES = 20_000, 500, 128, 2
FLOAT_BYTES, MEGABYTE = 4, 2**20


class Recurrent(nn.Module):
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


class WordsLast(nn.Module):
    """Turn [B, L, D] into the [B, D, L] that a convolution wants."""

    def forward(self, states: Tensor) -> Tensor:
        return states.transpose(1, 2)


def perceptron() -> nn.Module:
    model = nn.Sequential()
    model.add_module("embedding", nn.Embedding(VOCAB_SIZE, D_EMBEDDING))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc1", nn.Linear(LENGTH * D_EMBEDDING, 1024))
    model.add_module("relu1", nn.ReLU())
    model.add_module("fc2", nn.Linear(1024, 128))
    model.add_module("relu2", nn.ReLU())
    model.add_module("fc3", nn.Linear(128, CLASSES))
    return model


def convolutional(channels: int, *, pooled: bool) -> nn.Module:
    """Two convolutions, then all of their outputs or the largest of each channel."""
    model = nn.Sequential()
    model.add_module("embedding", nn.Embedding(VOCAB_SIZE, D_EMBEDDING))
    model.add_module("words_last", WordsLast())
    model.add_module("conv1", nn.Conv1d(D_EMBEDDING, 128, kernel_size=7, stride=3))
    model.add_module("relu1", nn.ReLU())
    model.add_module("conv2", nn.Conv1d(128, channels, kernel_size=7, stride=3))
    model.add_module("relu2", nn.ReLU())
    if pooled:
        model.add_module("pool", nn.AdaptiveMaxPool1d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc1", nn.Linear(channels if pooled else channels * 53, 128))
    model.add_module("relu3", nn.ReLU())
    model.add_module("fc2", nn.Linear(128, CLASSES))
    return model


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: Recurrent(nn.RNN(D_EMBEDDING, 64, batch_first=True)),
    "bilstm": lambda: Recurrent(
        nn.LSTM(D_EMBEDDING, 64, num_layers=2, bidirectional=True, batch_first=True)
    ),
    "mlp": perceptron,
    "conv": lambda: convolutional(256, pooled=False),
    "conv_gmp": lambda: convolutional(128, pooled=True),
}


@lru_cache
def built(name: str) -> tuple[nn.Module, dict[str, torch.Size]]:
    """A classifier and the shape that each of its layers put out for one text."""
    if name not in BUILDERS:
        raise ValueError(f"there is no classifier '{name}' (there: {', '.join(BUILDERS)})")
    shapes: dict[str, torch.Size] = {}

    def keep(layer: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: Any) -> None:
            shapes[layer] = (output[0] if isinstance(output, tuple) else output).shape[1:]

        return hook

    # Recurrence on the meta device goes word by word, which takes seconds.
    with torch.device("cpu" if name in ("rnn", "bilstm") else "meta"), torch.no_grad():
        model = BUILDERS[name]()
        for layer, module in model.named_children():
            module.register_forward_hook(keep(layer))
        model(torch.zeros(1, LENGTH, dtype=torch.long))
    return model, shapes


def output_shape(name: str, layer: str) -> list[int]:
    """What a layer puts out for one text."""
    shapes = built(name)[1]
    if layer not in shapes:
        raise ValueError(f"'{name}' has no layer '{layer}' (there: {', '.join(shapes)})")
    return list(shapes[layer])


def parameter_counts(name: str) -> list[int]:
    """All parameters, those that are trained, and those that are not."""
    parameters = list(built(name)[0].parameters())
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    total = sum(each.numel() for each in parameters)
    return [total, trained, total - trained]


def widths(name: str) -> list[int]:
    """Hidden width, embedding width and classes of a recurrent classifier."""
    model = built(name)[0]
    if not isinstance(model, Recurrent):
        raise ValueError(f"'{name}' is not recurrent")
    return [model.rnn.hidden_size, model.embedding.embedding_dim, model.fc.out_features]


def mult_adds(name: str) -> int:
    """Each weight once, a convolution's once per place: the rule of torch-summary."""
    model, shapes = built(name)
    return sum(
        module.weight.numel() * (shapes[layer][-1] if isinstance(module, nn.Conv1d) else 1)
        for layer, module in model.named_children()
        if isinstance(module, nn.Embedding | nn.Linear | nn.Conv1d)
    )


def megabytes(name: str, batch: int) -> list[float]:
    """Input, forward and backward pass, parameters and their sum, as torch-summary counts them."""
    model, shapes = built(name)
    outputs = sum(
        shapes[layer].numel()
        for layer, module in model.named_children()
        if isinstance(module, nn.Embedding | nn.Linear | nn.Conv1d)
    )
    numbers = [batch * LENGTH, 2 * outputs, parameter_counts(name)[0]]
    sizes = [number * FLOAT_BYTES / MEGABYTE for number in numbers]
    return [*sizes, sum(sizes)]


class Operation(NamedTuple):
    """A function with how it is written and what it is."""

    function: Callable[..., Any]
    usage: str
    meaning: str


LAYER = "(queries, looked_at, W_Q, W_K, W_V, W_O, masked=False)"
TABLE: list[tuple[Callable[..., Any], str, str]] = [
    (matrices.times, "times(A, B)", "the matrix product, such as X W or weights times V"),
    (matrices.plus, "plus(A, B, ...)", "the sum of matrices of one size"),
    (matrices.difference, "difference(A, B)", "A minus B"),
    (matrices.product, "product(A, B)", "number by number; product(2, A) doubles A"),
    (similarity, "dot_scores(Q, K)", "Q Kᵀ, a row per query"),
    (multiplicative, "multiplicative_scores(Q, W, K)", "Q W Kᵀ"),
    (scaled, "scaled(S, d)", "S divided by the root of d: scaled(S, 64) divides by 8"),
    (masked, "masked(S)", "square scores with -inf above the diagonal"),
    (lambda scores: matrix(scores).softmax(dim=-1), "softmax(S)", "of every row"),
    (attention, "attend(Q, K, V, scaled=True, masked=False)", "softmax(Q Kᵀ / √d) V"),
    (attention_weights, "attend_weights(Q, K, scaled=True, masked=False)",
     "softmax(Q Kᵀ / √d)"),
    (our_layer, f"our_layer{LAYER}", "our MultiHeadAttention, one head, no bias"),
    (torch_layer, f"torch_layer{LAYER}", "torch.nn.MultiheadAttention, the same"),
    (sinusoid, "sinusoid(position, width)", "a row of the positional encoding"),
    (boxed_sinusoid, "boxed_sinusoid(position, width)",
     "the same with the exponent (2i+1)/d for cosines"),
    (sinusoid_in_degrees, "sinusoid_in_degrees(position, width)",
     "the same on a calculator set to degrees"),
    (matrices.row, "row(A, n)", "row n of A, counted from 1"),
    (matrices.column, "column(A, n)", "column n of A, as a row"),
    (matrices.entry, "entry(A, m, n)", "one number: row m, column n"),
    (matrices.first_rows, "first_rows(A, n)", "the first n rows"),
    (matrices.pick, "pick(A, ids)", "rows of A by their numbers from 0, such as embeddings"),
    (matrices.stack, "stack(A, B, ...)", "one below the other"),
    (matrices.join, "join(A, B, ...)", "side by side"),
    (lambda values: matrix(values).T, "transpose(A)", "rows become columns"),
    (lambda width: torch.eye(whole(width, "width"), dtype=torch.float64), "identity(n)",
     "the n×n matrix with ones on the diagonal"),
    (lambda values: matrix(values).exp(), "exp(A)", "e to each number"),
    (lambda values: matrix(values).sqrt(), "root(A)", "the square root of each number"),
    (lambda values: matrix(values).sin(), "sine(A)", "of each number, in radians"),
    (lambda values: matrix(values).cos(), "cosine(A)", "of each number, in radians"),
    (lambda values: matrix(values).sigmoid(), "sigmoid(A)", "of each number"),
    (lambda values: matrix(matrix(values).sum()), "total(A)", "the sum of all numbers"),
    (lambda values: matrix(values) * 100, "percent(A)", "a hundred times"),
    (lambda values: matrix(matrix(values).abs().max()), "largest(A)", "the largest, without sign"),
    (lambda values: matrix(matrix(values).argmax()), "choice(A)", "where the largest is, from 0"),
    (matrices.max_pool, "max_pool(A, n)", "the largest of each n×n window"),
    (matrices.same, "same(A, B)", "1 if equal, else 0; for check"),
    (matrices.at_most, "at_most(A, n)", "1 if no number is larger than n, else 0; for check"),
    (output_shape, 'output_shape("mlp", "fc1")', "what a classifier's layer puts out"),
    (parameter_counts, 'parameter_counts("mlp")', "all, trained, not trained"),
    (widths, 'widths("rnn")', "hidden, embedding and classes of a recurrent one"),
    (lambda model: mult_adds(model) / 1e6, 'mult_adds_in_millions("mlp")',
     "as torch-summary counts them"),
    (lambda model, batch: megabytes(model, whole(batch, "batch")),
     'megabytes("conv_gmp", batch)', "input, forward and backward, parameters, all"),
]  # fmt: skip
OPERATIONS = {usage.partition("(")[0]: Operation(*each) for each in TABLE for usage in each[1:2]}
MOVES = {"transpose", "row", "column", "entry", "stack", "join"}


def operations_text() -> str:
    """All operations, a line each."""
    lines = []
    for each in OPERATIONS.values():
        is_long = len(each.usage) > 32
        lines.append(each.usage if is_long else f"{each.usage:33} {each.meaning}")
        lines += [f"{'':33} {each.meaning}"] * is_long
    return "\n".join(lines)
