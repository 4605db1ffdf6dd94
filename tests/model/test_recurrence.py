"""GRU and LSTM layers, and models of them, equal torch.nn's with the same weights."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from minitransformer.data.tokenizer import PAD_ID
from minitransformer.model.recurrent import (
    EncoderRecurrence,
    Recurrence,
    Recurrent,
    gru_step,
    lstm_step,
)
from minitransformer.model.trace import record
from minitransformer.settings import ModelConfig
from tests.support.variants import RECURRENTS, TARGET_VOCAB, build, ids, with_weights

WIDTH = 6
LENGTHS = torch.tensor([5, 3, 1])
MASK = torch.arange(5) < LENGTHS[:, None]
TORCH_LAYERS = {"gru": nn.GRU, "lstm": nn.LSTM}
every_cell = pytest.mark.parametrize("cell", TORCH_LAYERS)
every_recurrent = pytest.mark.parametrize("name", RECURRENTS)


def torch_parameters(layers: nn.ModuleList) -> dict[str, Tensor]:
    """Return the weights of our layers by torch's names, in torch's order."""
    found = {}
    for number, layer in enumerate(layers):
        is_encoder = isinstance(layer, EncoderRecurrence)
        directions = [layer.forward_rnn, layer.backward_rnn] if is_encoder else [layer, None]
        for direction, ending in zip(directions, ("", "_reverse"), strict=True):
            if direction is None:
                continue
            for part, shorthand in (("input_proj", "ih"), ("hidden_proj", "hh")):
                for name, value in getattr(direction, part).named_parameters():
                    found[f"{name}_{shorthand}_l{number}{ending}"] = value
    return found


def run_torch_layers(layers: nn.ModuleList, inputs: Tensor, *, cell: str, lengths=None, start=None):
    """Run torch.nn.GRU or LSTM with our weights; return outputs and each layer's last state."""
    weights = torch_parameters(layers)
    is_bidirectional = any(name.endswith("_reverse") for name in weights)
    reference = TORCH_LAYERS[cell](
        inputs.shape[-1], weights["weight_hh_l0"].shape[1], num_layers=len(layers),
        bias="bias_ih_l0" in weights, bidirectional=is_bidirectional, batch_first=True,
    )  # fmt: skip
    assert weights.keys() == dict(reference.named_parameters()).keys()
    if lengths is not None:
        inputs = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    outputs, last = functional_call(reference, weights, (inputs, start))
    if lengths is not None:
        outputs, _ = pad_packed_sequence(outputs, batch_first=True)
    parts = last if isinstance(last, tuple) else (last,)  # each [layers · directions, B, W]
    last_states = [
        [torch.cat(layer.unbind(), dim=-1) for layer in part.split(1 + is_bidirectional)]
        for part in parts
    ]
    return outputs, list(zip(*last_states, strict=True))


def encoder_layers(cell: str, *, layers: int, bidirectional: bool, bias: bool) -> nn.ModuleList:
    config = ModelConfig(
        kind="recurrent", cell=cell, d_model=WIDTH, bias=bias, bidirectional=bidirectional
    )
    stack = nn.ModuleList(EncoderRecurrence(config) for _ in range(layers))
    return with_weights(stack).double()


@every_cell
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_encoder_layers_equal_torch_with_the_same_weights(cell, layers, bidirectional, bias):
    ours = encoder_layers(cell, layers=layers, bidirectional=bidirectional, bias=bias)
    inputs = torch.randn(3, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    states, last = inputs, []
    for layer in ours:
        states, last_of_layer = layer(states, MASK)
        last.append(last_of_layer)
    expected, expected_last = run_torch_layers(ours, inputs, cell=cell, lengths=LENGTHS)
    same = {"atol": 1e-12, "rtol": 0}
    torch.testing.assert_close(states[MASK], expected[MASK], **same)
    torch.testing.assert_close(last, expected_last, **same)

    weighting = torch.randn(3, 5, WIDTH, dtype=torch.float64) * MASK[..., None]
    wanted = [inputs, *ours.parameters()]
    gradients, expected_gradients = (
        torch.autograd.grad(
            (outputs * weighting).sum()
            + sum(part.square().sum() for each in ends for part in each),
            wanted,
        )
        for outputs, ends in ((states, last), (expected, expected_last))
    )
    torch.testing.assert_close(gradients, expected_gradients, **same)
    assert all(gradient.ne(0).any() for gradient in gradients)
    assert gradients[0][~MASK].eq(0).all()


@pytest.mark.parametrize("bias", [False, True])
def test_step_equals_torchs_cell(bias):
    torch.manual_seed(0)
    tokens, state, cell_state = torch.randn(3, 4, WIDTH, dtype=torch.float64)
    for kind, before in ((nn.GRUCell, state), (nn.LSTMCell, (state, cell_state))):
        cell = kind(WIDTH, WIDTH, bias=bias).double()
        input_gates, hidden_gates = (
            nn.functional.linear(inputs, *(getattr(cell, f"{each}_{which}") for each in parts))
            for which, inputs in (("ih", tokens), ("hh", state))
            for parts in [("weight", "bias") if bias else ("weight",)]
        )
        expected = cell(tokens, before)
        if kind is nn.GRUCell:
            found = gru_step(input_gates, hidden_gates, state).state
        else:
            step = lstm_step(input_gates, hidden_gates, cell_state)
            found = step.state, step.cell
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def recurrence(cell: str, *, is_backward: bool) -> Recurrence:
    config = ModelConfig(kind="recurrent", cell=cell, d_model=3, bias=True)
    return with_weights(Recurrence(config, WIDTH, is_backward=is_backward)).double()


@every_cell
@pytest.mark.parametrize("is_backward", [False, True])
def test_masked_token_is_skipped(cell, is_backward):
    ours = recurrence(cell, is_backward=is_backward)
    inputs = torch.randn(2, 5, 3, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, False]).expand(2, -1)
    states, last = ours(inputs, ours.initial_state(inputs), mask)
    visible = inputs[:, [0, 2, 3]]
    expected, expected_last = ours(visible, ours.initial_state(visible))
    torch.testing.assert_close(states[:, [0, 2, 3]], expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(last, expected_last, atol=1e-12, rtol=0)
    previous = 2 if is_backward else 0
    assert torch.equal(states[:, 1], states[:, previous])  # the state is carried over


@every_cell
def test_state_carried_across_parts_gives_the_same_states(cell):
    ours = recurrence(cell, is_backward=False)
    inputs = torch.randn(2, 6, 3, dtype=torch.float64)
    whole, last = ours(inputs, ours.initial_state(inputs))
    parts, state = [], ours.initial_state(inputs)
    for part in inputs.split([2, 1, 3], dim=1):
        states, state = ours(part, state)
        parts.append(states)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(state, last, atol=1e-12, rtol=0)


@every_cell
@pytest.mark.parametrize("is_backward", [False, True])
def test_recorded_gates_give_the_recorded_state(cell, is_backward):
    ours = recurrence(cell, is_backward=is_backward)
    inputs = torch.randn(3, 5, 3, dtype=torch.float64)
    with record(ours) as tensors:
        states, _ = ours(inputs, ours.initial_state(inputs), MASK)
    assert torch.equal(tensors["state"], states)
    after = tensors["state"].flip(1) if is_backward else tensors["state"]
    before = tensors["before"].flip(1) if is_backward else tensors["before"]
    assert torch.equal(before[:, 1:], after[:, :-1])
    assert before[:, 0].eq(0).all()
    if cell == "gru":
        update = tensors["update"]
        expected = (1 - update) * tensors["candidate"] + update * tensors["before"]
    else:
        kept = tensors["forget"] * tensors["cell_before"]
        entered = tensors["input"] * tensors["candidate"]
        torch.testing.assert_close(tensors["cell"][MASK], (kept + entered)[MASK])
        expected = tensors["output"] * tensors["cell"].tanh()
    torch.testing.assert_close(tensors["state"][MASK], expected[MASK], atol=1e-12, rtol=0)
    assert torch.equal(tensors["state"][~MASK], tensors["before"][~MASK])


def logits_by_torch(model: Recurrent, config: ModelConfig, source: Tensor, target: Tensor):
    """Compute a model's logits with torch's layers and explicit formulas, from its config."""
    scale = config.d_model**0.5 if config.scale_embeddings else 1.0

    def embedded(side: nn.Module, tokens: Tensor) -> Tensor:
        positions = (
            side.embedding.positions.table[: tokens.shape[1]]
            if config.positional_encoding != "none"
            else 0
        )
        return side.embedding.weight[tokens] * scale + positions

    mask = source != PAD_ID
    h, last = run_torch_layers(
        model.encoder.layers,
        embedded(model.encoder, source),
        cell=config.cell,
        lengths=mask.sum(1),
    )
    parts = tuple(torch.stack(part) for part in zip(*last, strict=True))
    s, _ = run_torch_layers(
        model.decoder.layers, embedded(model.decoder, target),
        start=parts if config.cell == "lstm" else parts[0], cell=config.cell,
    )  # fmt: skip
    if config.attention != "none":
        is_multiplicative = config.attention == "multiplicative"
        matrix = model.decoder.attention.key.weight if is_multiplicative else torch.eye(s.shape[-1])
        e = torch.einsum("btd,dk,bsk->bts", s, matrix.to(s.dtype), h)
        e = e / config.d_model**0.5 if config.scale_scores else e
        alpha = e.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
        s = torch.cat((alpha @ h, s), dim=-1)
        if config.output_projection:
            s = torch.tanh(s @ model.decoder.attention.output.weight.T)
    return s @ model.head.weight.T + model.head.bias


@every_recurrent
def test_recurrent_model_equals_its_torch_counterpart(name):
    config = RECURRENTS[name]
    model = build(config).double()
    source, target = ids(3, 5), ids(3, 4, seed=2)
    source[1, 3:] = PAD_ID
    source[2, 1:] = PAD_ID
    logits, expected = model(source, target), logits_by_torch(model, config, source, target)
    assert expected.shape == (3, 4, TARGET_VOCAB)
    torch.testing.assert_close(logits, expected, atol=1e-11, rtol=0)
    weighting = torch.randn(logits.shape, dtype=torch.float64)
    parameters = dict(model.named_parameters())
    gradients, expected_gradients = (
        dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))
        for loss in ((logits * weighting).sum(), (expected * weighting).sum())
    )
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    "setting",
    ["cell", "bidirectional", "attention", "output_projection", "scale_scores", "bias",
     "positional_encoding",
     "scale_embeddings", "num_encoder_layers"],
)  # fmt: skip
def test_recurrent_variants_differ_in_every_setting(setting):
    assert len({getattr(config, setting) for config in RECURRENTS.values()}) > 1


@every_recurrent
def test_padding_inside_a_source_is_skipped_without_positions(name):
    config = RECURRENTS[name]
    model = build(config).double()
    source, target = ids(2, 5), ids(2, 3, seed=2)
    hidden = torch.cat((source[:, :2], torch.full((2, 2), PAD_ID), source[:, 2:]), dim=1)
    found, expected = model(hidden, target), model(source, target)
    is_same = torch.allclose(found, expected, atol=1e-12, rtol=0)
    assert is_same is (
        config.positional_encoding == "none"
    )  # with positions, padding shifts the words after it
