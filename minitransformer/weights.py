"""A model's weights by name: loaded, averaged, and refused where they do not fit."""

import torch
from torch import Tensor

from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.data.tokens import PAD_ID
from minitransformer.errors import CheckpointError
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.settings import Config


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights by name, a shared one once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def mean_tensors(each: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights; of one, its own bits."""
    if len(each) == 1:
        return each[0]
    return {
        name: torch.stack([tensors[name].double() for tensors in each]).mean(dim=0).to(first.dtype)
        for name, first in each[0].items()
    }


def trained_model(
    config: Config, tokenizer: PairTokenizer, saved: dict[str, dict[str, Tensor]]
) -> EncoderDecoder:
    """A model with the mean of the weights that were saved in some places."""
    sizes = len(tokenizer.source), len(tokenizer.target)
    with torch.device("meta"):  # shapes only: a config may ask for far more than was saved
        shapes = build_model(config.model, *sizes, PAD_ID, initialize=False)
    asked = sum(parameter.numel() for parameter in shapes.parameters())
    for where, tensors in saved.items():
        found = sum(each.numel() for each in tensors.values())
        if asked != found:
            raise CheckpointError(f"{where}: {found:,} numbers, the config asks for {asked:,}")
    model = build_model(config.model, *sizes, PAD_ID, initialize=False)
    own = model_tensors(model)
    for where, tensors in saved.items():
        refuse_others(own, tensors, where)
    copy_into(own, mean_tensors(list(saved.values())), next(iter(saved)))
    return model


def load_weights(model: torch.nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Copy a checkpoint's weights into a model that must have exactly these."""
    own = model_tensors(model)
    refuse_others(own, tensors, where)
    copy_into(own, tensors, where)


def refuse_others(own: dict[str, Tensor], tensors: dict[str, Tensor], where: str) -> None:
    """Refuse tensors that are not exactly a model's."""
    if missing := sorted(own.keys() - tensors.keys()):
        raise CheckpointError(f"{where}: lacks the tensor '{missing[0]}'")
    refuse_misfits(own, tensors, where)


def copy_into(targets: dict[str, Tensor], values: dict[str, Tensor], where: str) -> None:
    """Copy tensors by name; refuses names, shapes and number types that do not fit."""
    refuse_misfits(targets, values, where)
    with torch.no_grad():
        for name, value in values.items():
            targets[name].copy_(value)


def refuse_misfits(targets: dict[str, Tensor], values: dict[str, Tensor], where: str) -> None:
    for name, value in values.items():
        if name not in targets:
            raise CheckpointError(f"{where}: has a tensor '{name}' that the model has not")
        target = targets[name]
        if value.shape != target.shape or value.dtype != target.dtype:
            raise CheckpointError(
                f"{where}: '{name}' is {tuple(value.shape)} {value.dtype}, "
                f"the model wants {tuple(target.shape)} {target.dtype}"
            )
