"""Pair the modules of our Transformer with those of torch.nn's, and copy its weights."""

from collections.abc import Iterator

import torch
from torch import nn

from minitransformer.model.transformer import MultiHeadAttention, Transformer


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        parts = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())


def module_pairs(
    ours: Transformer, theirs: nn.Transformer, norm: str
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield the corresponding attention and other modules of both models."""
    norm_name = "pre_norm" if norm == "pre" else "post_norm"
    for our_layer, their_layer in zip(ours.encoder.layers, theirs.encoder.layers, strict=True):
        yield our_layer.self_attention, their_layer.self_attn
        yield our_layer.feed_forward.fc1, their_layer.linear1
        yield our_layer.feed_forward.fc2, their_layer.linear2
        yield getattr(our_layer.self_attention_residual, norm_name), their_layer.norm1
        yield getattr(our_layer.feed_forward_residual, norm_name), their_layer.norm2
    for our_layer, their_layer in zip(ours.decoder.layers, theirs.decoder.layers, strict=True):
        yield our_layer.self_attention, their_layer.self_attn
        yield our_layer.cross_attention, their_layer.multihead_attn
        yield our_layer.feed_forward.fc1, their_layer.linear1
        yield our_layer.feed_forward.fc2, their_layer.linear2
        yield getattr(our_layer.self_attention_residual, norm_name), their_layer.norm1
        yield getattr(our_layer.cross_attention_residual, norm_name), their_layer.norm2
        yield getattr(our_layer.feed_forward_residual, norm_name), their_layer.norm3
    if norm == "pre":
        yield ours.encoder.norm, theirs.encoder.norm
        yield ours.decoder.norm, theirs.decoder.norm


def copy_weights(ours: Transformer, theirs: nn.Transformer, norm: str) -> None:
    """Copy all weights but those of embeddings and head."""
    for our_module, their_module in module_pairs(ours, theirs, norm):
        if isinstance(our_module, MultiHeadAttention):
            copy_attention(our_module, their_module)
        else:
            their_module.load_state_dict(our_module.state_dict())
