"""Export of a trained run to CTranslate2, which needs no torch and can use int8.

D d_model, F d_ff, P positions, V vocabulary.
"""

import shutil
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.data.tokenizer import BOS, BOS_ID, EOS, PAD_ID, UNK
from minitransformer.errors import UsageError, UserError
from minitransformer.model.base import EncoderDecoder, Stack
from minitransformer.model.positional import LearnedPositions, sinusoid_table
from minitransformer.model.transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    Transformer,
)
from minitransformer.settings import ModelConfig

NEVER = -1e9  # a bias far below any logit, for tokens that must not be produced
MAX_INPUT_LENGTH = 1024  # tokens: where CTranslate2 truncates a source by default
OWN_FILES = {"model.bin", "config.json"}.union(
    f"{side}_vocabulary.json" for side in ("shared", "source", "target")
)


def write_ctranslate2(
    model: EncoderDecoder,
    config: ModelConfig,
    source_tokens: list[str],
    target_tokens: list[str],
    folder: Path,
    quantization: str | None = None,
) -> None:
    """Write a model with its tokens, in the order of their ids, as a folder for CTranslate2."""
    if not isinstance(model, Transformer):
        raise UsageError(
            f"CTranslate2 has no model.kind: {config.kind}; to export, train with "
            "--set model.kind=transformer"
        )
    if config.norm == "none" or (config.norm == "post" and config.d_ff == 0):
        # Its residual connections always have a layer norm.
        setting = "norm: none" if config.norm == "none" else "d_ff: 0 with norm: post"
        raise UsageError(
            f"CTranslate2 has no model.{setting}; to export, train with --set model.norm=pre"
        )
    files = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if files and not {"model.bin"} <= files <= OWN_FILES:
        raise UserError(f"{folder} is not empty and not an export; choose another folder")
    spec = model_spec(model, config)
    spec.register_source_vocabulary(source_tokens)
    spec.register_target_vocabulary(target_tokens)
    spec.validate()
    spec.optimize(quantization=quantization)
    path = folder.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as temporary:
        (complete := Path(temporary, "model")).mkdir()
        spec.save(str(complete))
        shutil.rmtree(path, ignore_errors=True)
        complete.rename(path)


def model_spec(model: Transformer, config: ModelConfig) -> Any:
    """Return the weights and settings of a model as a CTranslate2 specification."""
    try:
        specs: Any = import_module("ctranslate2").specs
    except ModuleNotFoundError:
        raise UserError("ctranslate2 is not installed: pip install ctranslate2") from None
    shared = {
        "num_heads": config.num_heads,
        "pre_norm": config.norm == "pre",
        "activation": specs.Activation[config.activation.upper()],
        "rotary_dim": 0 if config.positional_encoding == "rotary" else None,  # 0: all of a head
    }
    encoder = specs.TransformerEncoderSpec(config.num_encoder_layers, **shared)
    decoder = specs.TransformerDecoderSpec(config.num_decoder_layers, **shared)
    set_stack(encoder, encoder.embeddings[0], model.encoder, config)
    set_stack(decoder, decoder.embeddings, model.decoder, config)
    set_linear(decoder.projection, model.head)
    if model.head.bias is None:
        decoder.projection.bias = torch.zeros(len(model.head.weight))  # [V]
    decoder.projection.bias[[PAD_ID, BOS_ID]] = NEVER
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = UNK, BOS, EOS
    spec.config.decoder_start_token = {"eos": EOS, "bos": BOS}[config.decoder_start_token]
    spec.config.add_source_eos = config.source_eos
    spec.config.layer_norm_epsilon = nn.LayerNorm(1).eps
    return spec


def set_stack(spec: Any, embedding: Any, stack: Stack, config: ModelConfig) -> None:
    """Set an encoder or a decoder, from its embedding to its last norm."""
    assert isinstance(stack, Encoder | Decoder)
    embedding.weight = copy(stack.embedding.weight)  # [V, D]
    spec.scale_embeddings = config.scale_embeddings
    if config.positional_encoding != "rotary":
        spec.position_encodings.encodings = position_table(stack.embedding.positions, config)
    for part, layer in zip(spec.layer, stack.layers, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        set_attention(part.self_attention, layer.self_attention)
        set_norm(part.self_attention, layer.self_attention_residual)
        if isinstance(layer, DecoderLayer):
            set_attention(part.attention, layer.cross_attention)
            set_norm(part.attention, layer.cross_attention_residual)
        if layer.feed_forward is None:  # CTranslate2 needs one: it adds zeros
            part.ffn.linear_0.weight = torch.zeros(1, config.d_model)  # [F, D]
            part.ffn.linear_1.weight = torch.zeros(config.d_model, 1)  # [D, F]
        else:
            set_linear(part.ffn.linear_0, layer.feed_forward.fc1)
            set_linear(part.ffn.linear_1, layer.feed_forward.fc2)
        set_norm(part.ffn, layer.feed_forward_residual or nn.LayerNorm(config.d_model))
    if config.norm == "pre":
        set_norm(spec, stack.norm)


def position_table(positions: nn.Module | None, config: ModelConfig) -> Tensor:
    """Return the positional encodings, [P, D]; CTranslate2 fails at positions beyond them."""
    if isinstance(positions, LearnedPositions):
        return copy(positions.table)
    shape = max(config.max_length, MAX_INPUT_LENGTH), config.d_model
    return torch.zeros(shape) if config.positional_encoding == "none" else sinusoid_table(*shape)


def set_attention(spec: Any, attention: MultiHeadAttention) -> None:
    """Set the matrices; those with the same input are concatenated."""
    parts = [attention.query, attention.key, attention.value]
    is_self_attention = len(spec.linear) == 2
    groups = [parts] if is_self_attention else [parts[:1], parts[1:]]
    for linear, group in zip(spec.linear[:-1], groups, strict=True):
        set_linear(linear, *group)
    if attention.output is None:
        spec.linear[-1].weight = torch.eye(len(parts[0].weight))  # [D, D]
    else:
        set_linear(spec.linear[-1], attention.output)
    if not attention.scale_scores:
        spec.queries_scale = 1.0


def set_linear(spec: Any, *linears: nn.Linear) -> None:
    spec.weight = torch.cat([copy(linear.weight) for linear in linears])
    if linears[0].bias is not None:
        spec.bias = torch.cat([copy(linear.bias) for linear in linears])


def set_norm(spec: Any, owner: nn.Module) -> None:
    """Set a norm from the one in a Residual, or from a norm itself."""
    (norm,) = (part for part in owner.modules() if isinstance(part, nn.LayerNorm))
    spec.layer_norm.gamma = copy(norm.weight)  # [D]
    spec.layer_norm.beta = copy(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def copy(tensor: Tensor) -> Tensor:
    """Return a copy, since quantization to int8 is in place."""
    return tensor.detach().cpu().float().clone()
