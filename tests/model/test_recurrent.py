"""The recurrent model's attention, states, settings and dropout do what is stated."""

import pytest
import torch

from minitransformer.model.attention import dot_scores, multiplicative_scores
from minitransformer.model.base import Memory
from minitransformer.model.recurrent import SourceAttention
from minitransformer.model.trace import record
from minitransformer.settings import ModelConfig
from minitransformer.worked.engine import check_sheet
from minitransformer.worked.reader import load_shipped
from tests.support.variants import LAYERED, RECURRENTS, build, ids

WITHOUT_ATTENTION = [name for name, each in RECURRENTS.items() if each.attention == "none"]
WITH_ATTENTION = [name for name in RECURRENTS if name not in WITHOUT_ATTENTION]


def source_attention(score: str, d_model: int) -> SourceAttention:
    config = ModelConfig(kind="recurrent", attention=score, d_model=d_model, scale_scores=False)
    return SourceAttention(config).double()


@pytest.mark.parametrize(
    ("name", "weights"), [("dot-attention", "alpha"), ("multiplicative-attention", "a")]
)
def test_recurrent_attention_equals_the_worked_sheets(name, weights):
    checked = check_sheet(load_shipped(name))
    given = checked.sheet.given
    attention = source_attention(name.removesuffix("-attention"), d_model=4)
    if attention.key is not None:
        attention.key.weight.data = given["W"]
    mask = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    with record(attention) as tensors:
        output = attention(given["s"][None], Memory(given["h"][None], mask))
    exact = {each.step.name: each.values["exact"] for each in checked.steps if each.values}
    same = {"atol": 1e-12, "rtol": 0}
    torch.testing.assert_close(tensors["scores"][0, 0], exact["e"], **same)
    torch.testing.assert_close(tensors["weights"][0, 0], exact[weights], **same)
    torch.testing.assert_close(tensors["context"][0, 0], exact["context"], **same)
    torch.testing.assert_close(output[0].detach(), exact["joined"], **same)
    assert torch.equal(tensors["joined"], output)


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_recurrent_attention_and_head_equal_their_formulas(name):
    config, model = RECURRENTS[name], build(RECURRENTS[name])
    with record(model) as tensors:
        model(ids(2, 5), ids(2, 4, seed=2))
    part = {
        path.rpartition(".")[2]: value
        for path, value in tensors.items()
        if path.startswith("decoder.attention.")
    }
    s = tensors[f"decoder.layers.{config.num_decoder_layers - 1}.state"]
    h = tensors["encoder.output"]
    assert torch.equal(part["query"][:, 0], s)
    assert torch.equal(part["value"][:, 0], h)
    if config.attention == "dot":
        scores = dot_scores(s, h)
    else:
        matrix = model.decoder.attention.key.weight
        assert not torch.allclose(matrix, matrix.T)  # so that W h differs from h W
        scores = multiplicative_scores(s, matrix, h)
    torch.testing.assert_close(part["scores"][:, 0], scores)
    width = config.d_model**0.5 if config.scale_scores else 1
    torch.testing.assert_close(part["scaled"], part["scores"] / width)
    torch.testing.assert_close(part["joined"], torch.cat((part["weights"][:, 0] @ h, s), dim=-1))
    head_input = part["joined"]
    if config.output_projection:
        head_input = torch.tanh(head_input @ model.decoder.attention.output.weight.T)
    torch.testing.assert_close(tensors["logits"], model.head(head_input))


@pytest.mark.parametrize("name", RECURRENTS)
def test_decoder_without_attention_uses_only_the_final_states(name):
    model = build(RECURRENTS[name])
    target = ids(2, 4, seed=2)
    memory, other = model.encode(ids(2, 5)), model.encode(ids(2, 5, seed=3))
    logits = model.decode(target, memory)
    other_states = model.decode(target, other._replace(final_states=memory.final_states))
    other_start = model.decode(target, memory._replace(final_states=other.final_states))
    assert torch.equal(logits, other_states) is (name in WITHOUT_ATTENTION)
    assert not torch.allclose(logits, other_start, atol=1e-3)


@pytest.mark.parametrize(
    "name", [name for name, each in RECURRENTS.items() if each.positional_encoding == "none"]
)
def test_source_order_matters_without_positions(name):
    model = build(RECURRENTS[name])
    source, target = ids(1, 4), ids(1, 2, seed=2)
    assert not torch.allclose(model(source, target), model(source.flip(1), target), atol=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"scale_scores": False}, {"scale_embeddings": True}, {"positional_encoding": "sinusoidal"},
        {"positional_encoding": "learned"}, {"attention": "multiplicative"}, {"attention": "none"},
        {"output_projection": True}, {"bias": False}, {"head_bias": False}, {"cell": "lstm"},
        {"bidirectional": True},
    ],
)  # fmt: skip
def test_every_setting_changes_the_logits(change):
    plain, changed = build(ModelConfig(**LAYERED)), build(ModelConfig(**LAYERED | change))
    plain_state = plain.state_dict()
    shared = {
        name: plain_state[name]
        for name, value in changed.state_dict().items()
        if name in plain_state and plain_state[name].shape == value.shape
    }
    changed.load_state_dict(shared, strict=False)  # so that only the setting differs
    source, target = ids(2, 5), ids(2, 4, seed=2)
    assert not torch.allclose(plain(source, target), changed(source, target), atol=1e-4)


WITH_DROPOUT = ModelConfig(
    **LAYERED
    | {
        "dropout": 0.5,
        "self_attention_dropout": 0.25,
        "cross_attention_dropout": 0.25,
        "activation_dropout": 0.25,
    }
)


def test_dropout_applies_to_every_part_only_in_training():
    model = build(WITH_DROPOUT)
    parts = {name: part for name, part in model.named_modules() if hasattr(part, "dropout")}
    assert {name: part.dropout for name, part in parts.items()} == {
        "encoder": 0.5, "encoder.embedding": 0.5, "decoder": 0.5, "decoder.embedding": 0.5,
        "decoder.attention": 0.25,
    }  # fmt: skip
    source, target = ids(2, 5), ids(2, 4, seed=2)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    for name, part in parts.items():  # one at a time
        for other in parts.values():
            other.dropout = 0.5 if other is part else 0.0
        assert not torch.equal(model(source, target), model(source, target)), name
    for part in parts.values():
        part.dropout = 0.0
    assert torch.equal(model(source, target), model(source, target))


def test_dropout_applies_to_outputs_and_not_to_carried_states():
    torch.manual_seed(0)
    model = build(ModelConfig(**LAYERED | {"num_encoder_layers": 1, "num_decoder_layers": 1}))
    source, target = ids(2, 5), ids(2, 4, seed=2)

    def run():
        with record(model) as tensors:
            memory = model.encode(source)
            cache = model.new_cache(memory)
            model.decode(target, memory, cache)
        return tensors, memory.final_states, cache.states

    _, plain_last, plain_states = run()
    model.train()
    model.encoder.dropout = model.decoder.dropout = 0.5
    tensors, last, states = run()
    torch.testing.assert_close(last, plain_last, atol=0, rtol=0)
    torch.testing.assert_close(states, plain_states, atol=0, rtol=0)
    for path in ("encoder.output", "decoder.attention.query", "decoder.output"):
        assert float(tensors[path].eq(0).double().mean()) == pytest.approx(0.5, abs=0.1), path
    assert torch.equal(
        tensors["decoder.output"][..., 16:], tensors["decoder.attention.query"][:, 0]
    )


@pytest.mark.parametrize("name", RECURRENTS)
def test_decoding_does_not_change_the_memory(name):
    model = build(RECURRENTS[name])
    memory, target = model.encode(ids(3, 5)), ids(3, 4, seed=2)
    cache = model.new_cache(memory)
    first = model.decode(target, memory, cache)
    cache.select(torch.tensor([2, 2, 0]))
    assert torch.equal(model.decode(target, memory), first)
