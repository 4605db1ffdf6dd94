"""Configs, trainers and translators that are small enough for a test."""

from pathlib import Path

import torch

from minitransformer.config import load_config
from minitransformer.run import RunFolder
from minitransformer.settings import Config
from minitransformer.training.trainer import Trainer
from minitransformer.translator import Translator
from tests.support.processes import ROOT

DROPOUT = (
    "model.dropout=0.1",
    "model.self_attention_dropout=0.1",
    "model.cross_attention_dropout=0.1",
    "model.activation_dropout=0.1",
)
SMALL = (
    "data.limit=24",
    "model.d_model=16",
    *DROPOUT,
    "training.steps=12",
    "training.batch_tokens=60",
    "training.save_every=3",
    "evaluation.every=5",
)

RECURRENT = (
    "model.kind=recurrent",
    "model.positional_encoding=none",
    "model.bias=true",
    "model.bidirectional=true",
    "model.attention=multiplicative",
)
KINDS = {"transformer": (), "recurrent": RECURRENT}
NO_DROPOUT = (
    "model.dropout=0",
    "model.self_attention_dropout=0",
    "model.cross_attention_dropout=0",
    "model.activation_dropout=0",
)
# The dropout rates of SMALL that a recurrent model lacks.
NO_TRANSFORMER_DROPOUT = ("model.self_attention_dropout=0", "model.activation_dropout=0")


def small_config(*changes: str) -> Config:
    if "model.kind=recurrent" in changes:
        changes = (*NO_TRANSFORMER_DROPOUT, *changes)
    return load_config(ROOT / "configs" / "tiny.yaml", [*SMALL, *changes])


def trainer_for(folder: Path, *changes: str, callbacks=(), fresh: bool = False) -> Trainer:
    return Trainer(
        small_config(*changes), RunFolder(folder), torch.device("cpu"), list(callbacks), fresh=fresh
    )


def translator_for(folder: Path, *changes: str) -> Translator:
    """Return a translator with an untrained model whose parameters are all random."""
    trainer = trainer_for(folder, *changes)
    with torch.no_grad():
        # Biases and norms are initialized to constants.
        for parameter in trainer.model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return Translator(trainer.model.eval(), trainer.tokenizer, trainer.config)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )
