"""Every kind of model is causal, ignores padding, and decodes and trains alike with a cache."""

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
from tests.support.variants import TARGET_VOCAB, VARIANTS, build, ids

every_variant = pytest.mark.parametrize("name", VARIANTS)


@every_variant
def test_future_tokens_never_change_earlier_logits(name):
    model = build(VARIANTS[name])
    source, target = ids(2, 5), ids(2, 6, seed=2)
    before = model(source, target)
    for position in range(1, 6):
        changed = target.clone()
        changed[:, position] = changed[:, position] % (TARGET_VOCAB - 1) + 1
        after = model(source, changed)
        assert torch.equal(before[:, :position], after[:, :position])
        assert not torch.allclose(before[:, position], after[:, position])


@every_variant
def test_padding_and_other_rows_do_not_change_the_logits(name):
    model = build(VARIANTS[name]).double()
    source, target = ids(1, 4), ids(1, 3, seed=2)
    alone = model(source, target)
    padded_source = torch.full((3, 9), PAD_ID)
    padded_target = torch.full((3, 7), PAD_ID)
    padded_source[0, :4], padded_target[0, :3] = source[0], target[0]
    padded_source[1:], padded_target[1:] = ids(2, 9, seed=3), ids(2, 7, seed=4)
    batched = model(padded_source, padded_target)
    torch.testing.assert_close(batched[:1, :3], alone, atol=1e-12, rtol=0)


@every_variant
def test_cached_decoding_equals_teacher_forcing(name):
    model = build(VARIANTS[name]).double()
    source, target = ids(3, 5), ids(3, 6, seed=2)
    source[0, 3:] = PAD_ID
    forced = model(source, target).log_softmax(-1)
    memory = model.encode(source)
    cache = model.new_cache(memory)
    one_by_one = [
        model.decode(target[:, position : position + 1], memory, cache) for position in range(6)
    ]
    stepped = torch.cat(one_by_one, dim=1).log_softmax(-1)
    torch.testing.assert_close(stepped, forced, atol=1e-12, rtol=0)
    cache = model.new_cache(memory)
    in_chunks = [model.decode(part, memory, cache) for part in target.split([2, 1, 3], dim=1)]
    torch.testing.assert_close(
        torch.cat(in_chunks, dim=1).log_softmax(-1), forced, atol=1e-12, rtol=0
    )


@every_variant
def test_cache_select_drops_repeats_and_reorders_rows(name):
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
def test_memory_select_drops_repeats_and_reorders_rows(name):
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
    """Return the number of attentions; a recurrent model has at most one."""
    if config.kind == "transformer":
        return config.num_encoder_layers + 2 * config.num_decoder_layers
    return int(config.attention != "none")


@every_variant
def test_single_token_has_finite_logits_and_gradients(name):
    model = build(VARIANTS[name])
    logits = model(torch.tensor([[1], [1]]), torch.tensor([[3], [3]]))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@every_variant
def test_meta_device_model_has_the_same_shapes(name):
    model = build(VARIANTS[name])
    shapes = {key: each.shape for key, each in model.named_parameters()}
    assert shapes == {key: each.shape for key, each in on_meta(model, VARIANTS[name])}


def on_meta(model: EncoderDecoder, config: ModelConfig) -> list[tuple[str, nn.Parameter]]:
    """Build a model on the meta device and return its parameters."""
    with torch.device("meta"):
        sizes = len(model.encoder.embedding.weight), TARGET_VOCAB
        meta_model = build_model(config, *sizes, PAD_ID, initialize=False)
    assert all(buffer.is_meta for buffer in meta_model.buffers())
    parameters = list(meta_model.named_parameters())
    assert all(each.is_meta for _, each in parameters)
    return parameters


@pytest.mark.parametrize(
    ("name", "shares_source"),
    [("shared-target", False), ("shared-all", True), ("lstm-bidirectional", True)],
)
def test_tied_embeddings_are_one_tensor_with_all_gradients(name, shares_source):
    model = build(VARIANTS[name])
    assert model.head.weight is model.decoder.embedding.weight
    assert (model.encoder.embedding.weight is model.head.weight) is shares_source
    model(ids(1, 4), ids(1, 3, seed=2)).sum().backward()
    assert model.head.weight.grad.ne(0).any(dim=1).all()  # the head gives every row a gradient


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_embeddings_are_initialized_with_embedding_std(kind):
    torch.manual_seed(0)
    for std in (0.1, 1.0):
        model = build_model(ModelConfig(kind=kind, embedding_std=std, d_model=64), 500, 500, PAD_ID)
        for side in (model.encoder, model.decoder):
            measured = side.embedding.weight.detach().std()
            assert float(measured) == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize(
    "name",
    ["minimal", "learned", "shared-target", "shared-all", "gru-bidirectional",
     "lstm-bidirectional"],
)  # fmt: skip
def test_init_weights_draws_layers_then_embeddings_then_the_head(name):
    config = VARIANTS[name]
    torch.manual_seed(3)
    model = build_model(config, TARGET_VOCAB, TARGET_VOCAB, PAD_ID)
    torch.manual_seed(3)
    linears = [
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
    # A tied table keeps the numbers drawn for the target.
    by_table = {id(table): expected for table, expected in tables}
    linears.append((model.head, head))
    for module, drawn in linears:
        assert torch.equal(module.weight, by_table.get(id(module.weight), drawn.weight))
        assert module.bias is None or torch.equal(module.bias, drawn.bias)
    assert all(torch.equal(table, by_table[id(table)]) for table, _ in tables)


@every_variant
def test_cached_decoding_has_the_same_gradients(name):
    model = build(VARIANTS[name]).double()
    source, target = ids(2, 5), ids(2, 4, seed=2)
    memory = model.encode(source)
    cache = model.new_cache(memory)
    steps = [
        model.decode(target[:, position : position + 1], memory, cache) for position in range(4)
    ]
    parts, whole = (
        torch.autograd.grad(logits[:, -1].square().sum(), list(model.parameters()))
        for logits in (torch.cat(steps, dim=1), model(source, target))
    )
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-9)
    named = dict(zip(dict(model.named_parameters()), whole, strict=True))
    if VARIANTS[name].tie_embeddings == "none":  # else each row also has the head's gradient
        for side, tokens in (("encoder", source), ("decoder", target)):
            assert named[f"{side}.embedding.weight"][tokens.unique()].ne(0).any(dim=1).all()


BOOL = st.booleans()
COMMON = {
    "d_model": st.sampled_from([4, 8]), "output_projection": BOOL, "scale_scores": BOOL,
    "bias": BOOL, "head_bias": BOOL, "scale_embeddings": BOOL, "embedding_std": st.just(1.0),
    "max_length": st.just(16), "tie_embeddings": st.sampled_from(["none", "target", "all"]),
}  # fmt: skip
any_transformer = st.builds(
    ModelConfig, **COMMON,
    num_heads=st.sampled_from([1, 2]), d_ff=st.sampled_from([0, 5]),
    num_encoder_layers=st.integers(1, 2), num_decoder_layers=st.integers(1, 2),
    norm=st.sampled_from(["none", "pre", "post"]), activation=st.sampled_from(["relu", "gelu"]),
    positional_encoding=st.sampled_from(["sinusoidal", "learned", "rotary", "none"]),
)  # fmt: skip
any_recurrent = st.integers(1, 2).flatmap(
    lambda layers: st.builds(
        ModelConfig, **COMMON,
        kind=st.just("recurrent"), cell=st.sampled_from(["gru", "lstm"]), bidirectional=BOOL,
        num_encoder_layers=st.just(layers), num_decoder_layers=st.just(layers),
        attention=st.sampled_from(["none", "dot", "multiplicative"]),
        positional_encoding=st.sampled_from(["sinusoidal", "learned", "none"]),
    )
)  # fmt: skip


@settings(max_examples=settings().max_examples // 2)
@given(any_transformer | any_recurrent)
def test_any_valid_config_gives_a_causal_model_with_a_correct_cache(shape):
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
