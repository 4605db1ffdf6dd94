"""The Transformer and its attention equal torch.nn's with the same weights."""

import pytest
import torch
from torch import nn

from minitransformer.data.tokenizer import PAD_ID
from minitransformer.model.positional import sinusoid_table
from minitransformer.model.transformer import MultiHeadAttention
from minitransformer.settings import ModelConfig
from tests.support.torch_weights import copy_attention, copy_weights, module_pairs
from tests.support.variants import MODERN, TARGET_VOCAB, build, ids, with_weights


def attention_gradients(ours: MultiHeadAttention, theirs: nn.MultiheadAttention):
    parts = (ours.query, ours.key, ours.value)
    yield torch.cat([part.weight.grad for part in parts]), theirs.in_proj_weight.grad
    yield torch.cat([part.bias.grad for part in parts]), theirs.in_proj_bias.grad
    yield ours.output.weight.grad, theirs.out_proj.weight.grad
    yield ours.output.bias.grad, theirs.out_proj.bias.grad


def torch_transformer(ours, config: ModelConfig) -> nn.Transformer:
    settings = {
        "d_model": config.d_model, "nhead": config.num_heads, "dim_feedforward": config.d_ff,
        "dropout": 0.0, "activation": config.activation, "batch_first": True,
        "norm_first": config.norm == "pre",
    }  # fmt: skip
    final = [nn.LayerNorm(config.d_model) if config.norm == "pre" else None for _ in range(2)]
    reference = nn.Transformer(
        d_model=config.d_model,
        nhead=config.num_heads,
        batch_first=True,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**settings),
            config.num_encoder_layers,
            norm=final[0],
            enable_nested_tensor=False,
        ),
        custom_decoder=nn.TransformerDecoder(
            nn.TransformerDecoderLayer(**settings), config.num_decoder_layers, norm=final[1]
        ),
    )
    copy_weights(ours, reference, config.norm)
    return reference


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_equals_torch_in_outputs_and_gradients(norm, activation):
    config = ModelConfig(**MODERN | {"norm": norm, "activation": activation})
    ours = build(config).train()
    reference = torch_transformer(ours, config).train()
    source, target = ids(3, 6), ids(3, 5, seed=2)
    source[1, 4:] = PAD_ID
    source[2, 1:] = PAD_ID
    target[1, 3:] = PAD_ID

    logits = ours(source, target)
    states = reference(
        ours.encoder.embedding(source).detach(),
        ours.decoder.embedding(target).detach(),
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        src_key_padding_mask=source == PAD_ID,
        tgt_key_padding_mask=target == PAD_ID,
        memory_key_padding_mask=source == PAD_ID,
    )
    expected = states @ ours.head.weight.detach().T + ours.head.bias.detach()
    is_real = target != PAD_ID
    torch.testing.assert_close(logits[is_real], expected[is_real], atol=1e-5, rtol=1e-5)

    weighting = torch.randn(logits.shape) * is_real[..., None]
    (logits * weighting).sum().backward()
    (expected * weighting).sum().backward()
    compared = 0
    for our_module, their_module in module_pairs(ours, reference, norm):
        if isinstance(our_module, MultiHeadAttention):
            gradients = list(attention_gradients(our_module, their_module))
        else:
            gradients = [
                (getattr(our_module, name).grad, getattr(their_module, name).grad)
                for name in ("weight", "bias")
            ]
        for our_gradient, their_gradient in gradients:
            torch.testing.assert_close(our_gradient, their_gradient, atol=1e-4, rtol=1e-4)
            compared += 1
    assert compared == len(list(reference.parameters()))


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_multi_head_attention_equals_torch(num_heads):
    torch.manual_seed(0)
    config = ModelConfig(d_model=8, num_heads=num_heads, bias=True, output_projection=True)
    ours = with_weights(MultiHeadAttention(config))
    theirs = nn.MultiheadAttention(8, num_heads, batch_first=True)
    copy_attention(ours, theirs)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    is_real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    output = ours(x, memory, is_real[:, None, None, :])
    expected, _ = theirs(x, memory, memory, key_padding_mask=~is_real)
    torch.testing.assert_close(output, expected)


def test_logits_equal_the_written_out_formulas():
    model = build(ModelConfig(d_model=8, embedding_std=1.0))
    source, target = ids(1, 4), ids(1, 3, seed=2)
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def attention(path: str, states: torch.Tensor, key_value: torch.Tensor, mask=None):
        query, key, value = (
            inputs @ weights[f"{path}.{part}.weight"].T
            for part, inputs in (("query", states), ("key", key_value), ("value", key_value))
        )
        scores = query @ key.T / 8**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ value

    positions = sinusoid_table(4, 8)
    x = weights["encoder.embedding.weight"][source[0]] + positions[:4]
    memory = x + attention("encoder.layers.0.self_attention", x, x)
    y = weights["decoder.embedding.weight"][target[0]] + positions[:3]
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    y = y + attention("decoder.layers.0.self_attention", y, y, mask)
    y = y + attention("decoder.layers.0.cross_attention", y, memory)
    expected = y @ weights["head.weight"].T + weights["head.bias"]
    torch.testing.assert_close(model(source, target)[0], expected, atol=1e-5, rtol=1e-5)
    assert expected.shape == (3, TARGET_VOCAB)
