"""Configs of small models of every kind and shape, and functions that build them."""

import torch
from torch import nn

from minitransformer.data.tokenizer import PAD_ID
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.settings import ModelConfig

SOURCE_VOCAB, TARGET_VOCAB = 13, 11

MODERN = {
    "d_model": 16, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 3, "d_ff": 24,
    "norm": "pre", "output_projection": True, "bias": True,
}  # fmt: skip

TRANSFORMERS = {
    "minimal": ModelConfig(d_model=8, embedding_std=1.0),
    "minimal-unscaled": ModelConfig(d_model=8, embedding_std=1.0, scale_scores=False),
    "pre-norm": ModelConfig(**MODERN),
    "post-norm": ModelConfig(**MODERN | {"norm": "post", "activation": "gelu"}),
    "learned": ModelConfig(**MODERN | {"positional_encoding": "learned", "max_length": 32}),
    "rotary": ModelConfig(**MODERN | {"positional_encoding": "rotary"}),
    "no-position": ModelConfig(**MODERN | {"positional_encoding": "none", "head_bias": False}),
    "shared-target": ModelConfig(**MODERN | {"tie_embeddings": "target"}),
    "shared-all": ModelConfig(
        **MODERN | {"tie_embeddings": "all", "scale_embeddings": True, "dropout": 0.3}
    ),
}

LAYERED = {
    "kind": "recurrent", "d_model": 16, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "positional_encoding": "none", "bias": True, "embedding_std": 1.0,
}  # fmt: skip

RECURRENTS = {
    "gru": ModelConfig(kind="recurrent", d_model=8, positional_encoding="none", embedding_std=1.0),
    "gru-unscaled": ModelConfig(
        kind="recurrent",
        d_model=8,
        positional_encoding="none",
        embedding_std=1.0,
        scale_scores=False,
    ),
    "gru-none": ModelConfig(**LAYERED | {"attention": "none", "dropout": 0.3}),
    "gru-bidirectional": ModelConfig(
        **LAYERED
        | {"bidirectional": True, "attention": "multiplicative", "positional_encoding": "learned"}
    ),
    "lstm": ModelConfig(**LAYERED | {"cell": "lstm", "attention": "multiplicative"}),
    "lstm-bidirectional": ModelConfig(
        **LAYERED
        | {
            "cell": "lstm",
            "bidirectional": True,
            "output_projection": True,
            "dropout": 0.3,
            "self_attention_dropout": 0.2,
            "cross_attention_dropout": 0.2,
            "activation_dropout": 0.2,
            "tie_embeddings": "all",
            "scale_embeddings": True,
        }
    ),
    "lstm-none": ModelConfig(
        **LAYERED | {"cell": "lstm", "bidirectional": True, "attention": "none"}
    ),
}

VARIANTS = TRANSFORMERS | RECURRENTS


def build(config: ModelConfig, seed: int = 0) -> EncoderDecoder:
    """Return a model in eval mode whose outputs are far from uniform."""
    torch.manual_seed(seed)
    source_vocab = TARGET_VOCAB if config.tie_embeddings == "all" else SOURCE_VOCAB
    model = build_model(config, source_vocab, TARGET_VOCAB, PAD_ID)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms are initialized to constants
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def with_weights(layer: nn.Module) -> nn.Module:
    """Initialize the linear parts of a layer as `init_weights` does for a model, and return it."""
    torch.manual_seed(0)
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            nn.Linear.reset_parameters(module)
    return layer


def ids(rows: int, length: int, seed: int = 1, vocab: int = TARGET_VOCAB) -> torch.Tensor:
    """Return random ids without padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocab, (rows, length), generator=generator)
