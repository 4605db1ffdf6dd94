"""Facts that hold for a model of every kind and shape."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from minitransformer.config import validate
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.model.trace import record
from minitransformer.settings import Config, DataConfig, ModelConfig, TokenizerConfig
from tests.variants import TARGET_VOCAB, VARIANTS, build, ids

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
def test_a_memory_can_drop_repeat_and_reorder_its_rows(name):
    model = build(VARIANTS[name])
    source, target = ids(3, 5), ids(3, 4, seed=2)
    source[2, 3:] = PAD_ID
    rows = torch.tensor([2, 0, 2])
    picked = model.decode(target[rows], model.encode(source).select(rows))
    torch.testing.assert_close(picked, model(source, target)[rows])


@every_variant
def test_attention_rows_sum_to_one_and_are_zero_on_padding(name):
    model = build(VARIANTS[name])
    source, target = ids(2, 5), ids(2, 4, seed=2)
    source[1, 2:] = PAD_ID
    target[1, 3:] = PAD_ID
    with record(model) as tensors:
        model(source, target)
    weights = {path: value for path, value in tensors.items() if path.endswith(".weights")}
    assert len(weights) == num_attentions(VARIANTS[name])
    for path, value in weights.items():
        torch.testing.assert_close(value.sum(-1), torch.ones(value.shape[:-1]))
        if path.startswith("decoder") and "self_attention" in path:
            assert value[1, :, :, 3:].eq(0).all()
            assert value.triu(1).eq(0).all()
        else:
            assert value[1, :, :, 2:].eq(0).all()


def num_attentions(config: ModelConfig) -> int:
    """A Transformer's layers have one or two each; a recurrent model has one in all, or none."""
    if config.kind == "transformer":
        return config.num_encoder_layers + 2 * config.num_decoder_layers
    return int(config.attention != "none")


@every_variant
def test_a_single_token_and_an_unknown_token_stay_finite_forward_and_backward(name):
    model = build(VARIANTS[name])
    logits = model(torch.tensor([[1], [1]]), torch.tensor([[3], [3]]))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@every_variant
def test_a_model_on_the_meta_device_has_the_same_shapes_and_no_values(name):
    model = build(VARIANTS[name])
    shapes = {key: each.shape for key, each in model.named_parameters()}
    assert shapes == {key: each.shape for key, each in on_meta(model, VARIANTS[name])}


def on_meta(model: EncoderDecoder, config: ModelConfig) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a model that takes no memory."""
    with torch.device("meta"):
        sizes = len(model.encoder.embedding.weight), TARGET_VOCAB
        shell = build_model(config, *sizes, PAD_ID, initialize=False)
    assert all(buffer.is_meta for buffer in shell.buffers())
    parameters = list(shell.named_parameters())
    assert all(each.is_meta for _, each in parameters)
    return parameters


@pytest.mark.parametrize(("name", "source_too"), [("shared-target", False), ("shared-all", True),
                                                  ("lstm-both-ways", True)])  # fmt: skip
def test_shared_embeddings_are_one_tensor_that_gathers_all_gradients(name, source_too):
    model = build(VARIANTS[name])
    assert model.head.weight is model.decoder.embedding.weight
    assert (model.encoder.embedding.weight is model.head.weight) is source_too
    model(ids(1, 4), ids(1, 3, seed=2)).sum().backward()
    assert model.head.weight.grad.ne(0).any(dim=1).all()  # the head reads every row of it


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_the_embeddings_start_with_the_spread_that_the_config_names(kind):
    torch.manual_seed(0)
    for std in (0.1, 1.0):
        model = build_model(ModelConfig(kind=kind, embedding_std=std, d_model=64), 500, 500, PAD_ID)
        for side in (model.encoder, model.decoder):
            spread = side.embedding.weight.detach().std()
            assert float(spread) == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize(
    "name", ["seed", "learned", "shared-target", "shared-all", "gru-both-ways", "lstm-both-ways"]
)
def test_init_weights_draws_layers_then_embeddings_then_the_head(name):
    config = VARIANTS[name]
    torch.manual_seed(3)
    model = build_model(config, TARGET_VOCAB, TARGET_VOCAB, PAD_ID)
    torch.manual_seed(3)
    twins = [
        (module, nn.Linear(module.in_features, module.out_features, module.bias is not None))
        for stack in (model.encoder, model.decoder)
        for module in stack.modules()
        if isinstance(module, nn.Linear)
    ]
    tables = [
        (table, torch.randn(table.shape) * config.embedding_std)
        for stack in (model.encoder, model.decoder)
        for table in stack.embedding.parameters()
    ]
    head = nn.Linear(model.head.in_features, TARGET_VOCAB, config.head_bias)
    # Of a tied table, the target's numbers stay.
    by_table = {id(table): expected for table, expected in tables}
    twins.append((model.head, head))
    for module, twin in twins:
        assert torch.equal(module.weight, by_table.get(id(module.weight), twin.weight))
        assert module.bias is None or torch.equal(module.bias, twin.bias)
    assert all(torch.equal(table, by_table[id(table)]) for table, _ in tables)


@every_variant
def test_gradients_reach_earlier_tokens_and_the_encoder_through_a_cache(name):
    model = build(VARIANTS[name]).double()
    source, target = ids(2, 5), ids(2, 4, seed=2)
    memory = model.encode(source)
    cache = model.new_cache(memory)
    steps = [model.decode(target[:, place : place + 1], memory, cache) for place in range(4)]
    parts, whole = (
        torch.autograd.grad(logits[:, -1].square().sum(), list(model.parameters()))
        for logits in (torch.cat(steps, dim=1), model(source, target))
    )
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-9)
    named = dict(zip(dict(model.named_parameters()), whole, strict=True))
    if VARIANTS[name].tie_embeddings == "none":  # or else the head's gradient is in every row
        for side, tokens in (("encoder", source), ("decoder", target)):
            assert named[f"{side}.embedding.weight"][tokens.unique()].ne(0).any(dim=1).all()


EITHER = st.booleans()
OF_BOTH = {
    "d_model": st.sampled_from([4, 8]), "output_projection": EITHER, "scale_scores": EITHER,
    "bias": EITHER, "head_bias": EITHER, "scale_embeddings": EITHER, "embedding_std": st.just(1.0),
    "max_length": st.just(16), "tie_embeddings": st.sampled_from(["none", "target", "all"]),
}  # fmt: skip
any_transformer = st.builds(
    ModelConfig, **OF_BOTH,
    num_heads=st.sampled_from([1, 2]), d_ff=st.sampled_from([0, 5]),
    num_encoder_layers=st.integers(1, 2), num_decoder_layers=st.integers(1, 2),
    norm=st.sampled_from(["none", "pre", "post"]), activation=st.sampled_from(["relu", "gelu"]),
    positional_encoding=st.sampled_from(["sinusoidal", "learned", "rotary", "none"]),
)  # fmt: skip
any_recurrent = st.integers(1, 2).flatmap(
    lambda layers: st.builds(
        ModelConfig, **OF_BOTH,
        kind=st.just("recurrent"), cell=st.sampled_from(["gru", "lstm"]), bidirectional=EITHER,
        num_encoder_layers=st.just(layers), num_decoder_layers=st.just(layers),
        attention=st.sampled_from(["none", "dot", "multiplicative"]),
        positional_encoding=st.sampled_from(["sinusoidal", "learned", "none"]),
    )
)  # fmt: skip


@settings(max_examples=settings().max_examples // 2)
@given(any_transformer | any_recurrent)
def test_whatever_a_config_may_ask_for_is_built_counted_causal_and_cached(shape):
    config = Config(
        data=DataConfig(train="en-es"), tokenizer=TokenizerConfig(joint=True), model=shape
    )
    assume(not any(validate(config)))
    model = build(shape).double()
    shapes = [each.shape for each in model.parameters()]
    assert shapes == [each.shape for _, each in on_meta(model, shape)]
    source, target = ids(2, 4), ids(2, 3, seed=2)
    source[0, 2:] = PAD_ID
    with torch.no_grad():
        forced = model(source, target)
        memory = model.encode(source)
        cache = model.new_cache(memory)
        steps = [model.decode(token, memory, cache) for token in target.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), forced, atol=1e-12, rtol=1e-12)
        target[:, 2] = target[:, 2] % (TARGET_VOCAB - 1) + 1
        assert torch.equal(model(source, target)[:, :2], forced[:, :2])
