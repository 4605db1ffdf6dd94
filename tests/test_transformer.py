"""Facts that hold for a Transformer of every shape."""

import pytest
import torch

from minitransformer.data.tokens import PAD_ID
from minitransformer.model.building import parameter_count
from minitransformer.model.trace import record
from minitransformer.model.transformer import Transformer
from minitransformer.settings import ModelConfig
from tests.variants import MODERN, TARGET_VOCAB, VARIANTS, build, ids

every_variant = pytest.mark.parametrize("name", VARIANTS)


@every_variant
def test_future_tokens_never_change_earlier_logits(name):
    model = build(VARIANTS[name])
    source, target = ids(2, 5), ids(2, 6, seed=2)
    before = model(source, target)
    for place in range(1, 6):
        changed = target.clone()
        changed[:, place] = changed[:, place] % (TARGET_VOCAB - 1) + 1
        after = model(source, changed)
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.allclose(before[:, place], after[:, place])


@every_variant
def test_padding_and_neighbours_change_nothing(name):
    model = build(VARIANTS[name]).double()
    source, target = ids(1, 4), ids(1, 3, seed=2)
    alone = model(source, target)
    padded_source = torch.full((3, 9), PAD_ID)
    padded_target = torch.full((3, 7), PAD_ID)
    padded_source[0, :4], padded_target[0, :3] = source[0], target[0]
    padded_source[1:], padded_target[1:] = ids(2, 9, seed=3), ids(2, 7, seed=4)
    together = model(padded_source, padded_target)
    torch.testing.assert_close(together[:1, :3], alone, atol=1e-12, rtol=0)


@every_variant
def test_cached_equals_teacher_forced(name):
    model = build(VARIANTS[name]).double()
    source, target = ids(3, 5), ids(3, 6, seed=2)
    source[0, 3:] = PAD_ID
    forced = model(source, target).log_softmax(-1)
    memory = model.encode(source)
    cache = model.new_cache(memory)
    one_by_one = [model.decode(target[:, place : place + 1], memory, cache) for place in range(6)]
    stepped = torch.cat(one_by_one, dim=1).log_softmax(-1)
    torch.testing.assert_close(stepped, forced, atol=1e-12, rtol=0)
    cache = model.new_cache(memory)
    in_chunks = [model.decode(part, memory, cache) for part in target.split([2, 1, 3], dim=1)]
    torch.testing.assert_close(
        torch.cat(in_chunks, dim=1).log_softmax(-1), forced, atol=1e-12, rtol=0
    )


@every_variant
def test_a_cache_can_drop_repeat_and_reorder_its_rows(name):
    model = build(VARIANTS[name])
    source, target = ids(3, 5), ids(3, 4, seed=2)
    rows = torch.tensor([2, 0, 2])
    memory = model.encode(source)
    cache = model.new_cache(memory)
    model.decode(target[:, :3], memory, cache)
    cache.select(rows)
    continued = model.decode(target[rows, 3:], memory.select(rows), cache)
    torch.testing.assert_close(continued[:, 0], model(source, target)[rows, 3])


@every_variant
def test_attention_rows_sum_to_one_and_are_zero_on_padding(name):
    model = build(VARIANTS[name])
    source, target = ids(2, 5), ids(2, 4, seed=2)
    source[1, 2:] = PAD_ID
    target[1, 3:] = PAD_ID
    with record(model) as tensors:
        model(source, target)
    weights = {path: value for path, value in tensors.items() if path.endswith(".weights")}
    config = VARIANTS[name]
    assert len(weights) == config.num_encoder_layers + 2 * config.num_decoder_layers
    for path, value in weights.items():
        torch.testing.assert_close(value.sum(-1), torch.ones(value.shape[:-1]))
        if "cross" in path or path.startswith("encoder"):
            assert value[1, :, :, 2:].eq(0).all()
        else:
            assert value[1, :, :, 3:].eq(0).all()
            assert value.triu(1).eq(0).all()


@every_variant
def test_a_single_token_and_an_unknown_token_stay_finite_forward_and_backward(name):
    model = build(VARIANTS[name])
    logits = model(torch.tensor([[1], [1]]), torch.tensor([[3], [3]]))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_seed_shape_has_only_the_seeds_parameters():
    model = build(VARIANTS["seed"])
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


@every_variant
def test_the_parameter_count_is_known_before_a_model_is_built(name):
    model = build(VARIANTS[name])
    counted = parameter_count(
        VARIANTS[name],
        source_vocab_size=len(model.encoder.embedding.weight),
        target_vocab_size=TARGET_VOCAB,
    )
    assert counted == sum(parameter.numel() for parameter in model.parameters())


def test_shared_embeddings_are_one_tensor_that_gathers_all_gradients():
    target = build(VARIANTS["shared-target"])
    assert target.head.weight is target.decoder.embedding.weight
    assert target.encoder.embedding.weight is not target.decoder.embedding.weight
    everything = build(VARIANTS["shared-all"])
    assert everything.head.weight is everything.encoder.embedding.weight
    assert everything.head.weight is everything.decoder.embedding.weight


def test_order_matters_with_positions_and_not_without():
    source, target = ids(1, 4, vocab=TARGET_VOCAB), ids(1, 1, seed=2)
    backwards = source.flip(1)
    for name, notices in [("pre-norm", True), ("learned", True), ("rotary", True),
                          ("no-position", False)]:  # fmt: skip
        model = build(VARIANTS[name])
        same = torch.allclose(model(source, target), model(backwards, target), atol=1e-5)
        assert same is not notices, name


@pytest.mark.parametrize(
    "change",
    [
        {"scale_embeddings": True}, {"activation": "gelu"}, {"scale_scores": False},
        {"num_heads": 2}, {"position": "rotary"}, {"position": "none"},
    ],
)  # fmt: skip
def test_every_setting_without_parameters_reaches_the_arithmetic(change):
    source, target = ids(2, 5), ids(2, 4, seed=2)
    plain, changed = build(ModelConfig(**MODERN)), build(ModelConfig(**MODERN | change))
    assert not torch.allclose(plain(source, target), changed(source, target), atol=1e-4)


def test_dropout_reaches_every_part_and_only_in_training():
    model = build(ModelConfig(**MODERN | {"dropout": 0.5, "inner_dropout": 0.25}))
    rates = [module.dropout for module in model.modules() if hasattr(module, "dropout")]
    assert rates.count(0.5) == 2 + 2 * 2 + 3 * 3  # embeddings, and what each block adds
    assert rates.count(0.25) == 2 * 2 + 3 * 3  # attentions and feed-forward blocks
    assert len(rates) == 28
    source, target = ids(2, 5), ids(2, 4, seed=2)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


def test_the_embeddings_start_with_the_spread_that_the_config_names():
    torch.manual_seed(0)
    for std in (0.1, 1.0):
        model = Transformer.from_config(
            ModelConfig(embedding_std=std, d_model=64),
            source_vocab_size=500,
            target_vocab_size=500,
            pad_id=PAD_ID,
        )
        spread = model.encoder.embedding.weight.detach().std()
        assert float(spread) == pytest.approx(std, rel=0.05)


def test_a_cache_grows_beyond_its_first_room_and_is_reordered_there():
    model = build(ModelConfig(**MODERN))
    source, target = ids(3, 5), ids(3, 40, seed=2)
    with torch.no_grad():
        memory = model.encode(source)
        whole = model.decode(target, memory)
        cache = model.new_cache(memory)
        rows = torch.tensor([2, 0, 0])
        for place in range(40):
            if place == 20:
                memory, target, whole = memory.select(rows), target[rows], whole[rows]
                cache.select(rows)
            step = model.decode(target[:, place : place + 1], memory, cache)
            torch.testing.assert_close(step[:, 0], whole[:, place], rtol=1e-5, atol=1e-5)
    room = cache.layers[0].self_attention.room[0]
    assert room.shape[2] == 64


def test_gradients_reach_earlier_tokens_through_a_cache():
    model = build(ModelConfig(**MODERN))
    memory = model.encode(ids(2, 5))
    cache, target = model.new_cache(memory), ids(2, 4, seed=2)
    steps = [model.decode(target[:, place : place + 1], memory, cache) for place in range(4)]
    weight = model.decoder.layers[0].self_attention.value.weight
    parts = torch.autograd.grad(torch.cat(steps, dim=1)[:, -1].square().sum(), weight)
    logits = model.decode(target, model.encode(ids(2, 5)))
    whole = torch.autograd.grad(logits[:, -1].square().sum(), weight)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
