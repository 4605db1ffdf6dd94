"""Views of attention whose weights are made up."""

import torch

from minitransformer.explain.attention_maps import AttentionView


def cross_view(queries, produced, keys, heads=1) -> AttentionView:
    weights = torch.rand(heads, len(queries), len(keys), generator=torch.Generator().manual_seed(1))
    return AttentionView(
        "decoder.layers.0.cross_attention",
        "cross-attention",
        queries,
        produced,
        keys,
        weights / weights.sum(-1, keepdim=True),
        torch.ones(len(queries), len(keys), dtype=torch.bool),
    )


def masked_view(tokens, produced) -> AttentionView:
    allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    return AttentionView(
        "decoder.layers.0.self_attention",
        "masked self-attention",
        tokens,
        produced,
        tokens,
        (allowed / allowed.sum(-1, keepdim=True))[None],
        allowed,
    )
