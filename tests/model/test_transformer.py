"""The Transformer's parameters, positions, settings, dropout and cache do what is stated."""

import pytest
import torch

from minitransformer.settings import ModelConfig
from tests.support.variants import MODERN, TARGET_VOCAB, VARIANTS, build, ids


def test_minimal_transformer_has_only_its_parameters():
    model = build(VARIANTS["minimal"])
    assert {name for name, _ in model.named_parameters()} == {
        "encoder.embedding.weight",
        "encoder.layers.0.self_attention.query.weight",
        "encoder.layers.0.self_attention.key.weight",
        "encoder.layers.0.self_attention.value.weight",
        "decoder.embedding.weight",
        "decoder.layers.0.self_attention.query.weight",
        "decoder.layers.0.self_attention.key.weight",
        "decoder.layers.0.self_attention.value.weight",
        "decoder.layers.0.cross_attention.query.weight",
        "decoder.layers.0.cross_attention.key.weight",
        "decoder.layers.0.cross_attention.value.weight",
        "head.weight",
        "head.bias",
    }


def test_source_order_matters_only_with_positions():
    source, target = ids(1, 4, vocab=TARGET_VOCAB), ids(1, 1, seed=2)
    backwards = source.flip(1)
    for name, order_matters in [("pre-norm", True), ("learned", True), ("rotary", True),
                          ("no-position", False)]:  # fmt: skip
        model = build(VARIANTS[name])
        same = torch.allclose(model(source, target), model(backwards, target), atol=1e-5)
        assert same is not order_matters, name


@pytest.mark.parametrize(
    "change",
    [
        {"scale_embeddings": True}, {"activation": "gelu"}, {"scale_scores": False},
        {"num_heads": 2}, {"positional_encoding": "rotary"}, {"positional_encoding": "none"},
    ],
)  # fmt: skip
def test_every_setting_without_parameters_changes_the_logits(change):
    source, target = ids(2, 5), ids(2, 4, seed=2)
    plain, changed = build(ModelConfig(**MODERN)), build(ModelConfig(**MODERN | change))
    assert not torch.allclose(plain(source, target), changed(source, target), atol=1e-4)


def test_dropout_applies_to_every_part_only_in_training():
    model = build(
        ModelConfig(
            **MODERN
            | {
                "dropout": 0.5,
                "self_attention_dropout": 0.25,
                "cross_attention_dropout": 0.25,
                "activation_dropout": 0.25,
            }
        )
    )
    rates = [module.dropout for module in model.modules() if hasattr(module, "dropout")]
    assert rates.count(0.5) == 2 + 2 * 2 + 3 * 3  # embeddings and residual connections
    assert rates.count(0.25) == 2 * 2 + 3 * 3  # attentions and feed-forward blocks
    assert len(rates) == 28
    source, target = ids(2, 5), ids(2, 4, seed=2)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


def test_cache_of_many_tokens_can_be_reordered_midway():
    model = build(ModelConfig(**MODERN))
    source, target = ids(3, 5), ids(3, 40, seed=2)
    with torch.no_grad():
        memory = model.encode(source)
        whole = model.decode(target, memory)
        cache = model.new_cache(memory)
        rows = torch.tensor([2, 0, 0])
        for position in range(40):
            if position == 20:
                memory, target, whole = memory.select(rows), target[rows], whole[rows]
                cache.select(rows)
            step = model.decode(target[:, position : position + 1], memory, cache)
            torch.testing.assert_close(step[:, 0], whole[:, position], rtol=1e-5, atol=1e-5)
