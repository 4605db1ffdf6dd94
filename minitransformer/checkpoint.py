"""One saved step of a run: its files, what is checked when they are read, and weights by name."""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from minitransformer.config import Mistake, build_section, changed_between, rename_settings
from minitransformer.data.tokenizer import PAD_ID, PairTokenizer
from minitransformer.errors import CheckpointError, ConfigError
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.settings import Config, Range, rename_module_path
from minitransformer.storage import (
    MOST_JSON,
    checksum,
    json_with_checksum,
    read_json_with_checksum,
    read_own_file,
)

FORMAT = 2  # format 1 had other names for settings and for some modules
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
Whole = Annotated[int, Range(0, 2**53)]


@dataclass(kw_only=True)
class TrainerState:
    """Everything about a run's position that is not a tensor."""

    step: Whole = 0
    epoch: Whole = 0
    batch_index: Whole = 0
    seconds: Annotated[float, Range(0, 1e15)] = 0.0
    metrics_bytes: Whole = 0
    event_bytes: Whole = 0
    best_value: Annotated[float, Range(-1e300, 1e300)] | None = None
    best_step: Whole | None = None
    evaluations_since_best: Whole = 0
    most_source_gain: Annotated[float, Range(0, 1e300)] = 0.0
    data_fingerprint: str = ""


@dataclass
class Checkpoint:
    """One saved step, checked against its checksums."""

    path: Path
    state: TrainerState
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    settings: dict[str, Any]  # that the weights were trained with; older ones: none

    @property
    def bytes_of_weights(self) -> int:
        return sum(each.nbytes for each in self.model.values())


def step_files(
    state: TrainerState,
    model: dict[str, Tensor],
    optimizer: dict[str, Tensor],
    tokenizer_checksums: dict[str, str],
    config: Config,
) -> dict[str, bytes]:
    """The files of a checkpoint's folder."""
    tensors = {MODEL: tensor_bytes(model), OPTIMIZER: tensor_bytes(optimizer)}
    content = {
        "format": FORMAT,
        "files": {name: checksum(content) for name, content in tensors.items()},
        "tokenizer": tokenizer_checksums,
        "settings": weights_settings(config),
        "state": dataclasses.asdict(state),
    }
    return {**tensors, STATE: json_with_checksum(content)}


def weights_settings(config: Config) -> dict[str, dict[str, Any]]:
    """The settings without which weights mean something else."""
    return {
        "model": dataclasses.asdict(config.model),
        "tokenizer": dataclasses.asdict(config.tokenizer),
    }


def read_content(folder: Path) -> dict[str, Any]:
    """What state.json says, if it is whole and of a format that is known."""
    where = str(folder / STATE)
    data = read_json_with_checksum(read_own_file(folder / STATE, MOST_JSON), where)
    if data.get("format") not in (1, FORMAT):
        raise CheckpointError(
            f"{folder}: format {data.get('format')}, this version reads formats 1 and {FORMAT}"
        )
    data.setdefault("settings", {})  # which older ones do not have
    for name in ("files", "tokenizer", "settings", "state"):
        if not isinstance(data.get(name), dict):
            raise CheckpointError(f"{where}: '{name}' is missing or not what it should be")
    if data["format"] == 1:
        try:
            data["settings"] = rename_settings(data["settings"], where)
        except ConfigError as error:
            raise CheckpointError(str(error)) from None
    return data


def read_step(
    folder: Path, step: int, tokenizer_checksums: dict[str, str], *, for_training: bool
) -> Checkpoint:
    """Read one step, or say which of its files is damaged."""
    data = read_content(folder)
    mistakes: list[Mistake] = []
    state: TrainerState = build_section(TrainerState, data["state"], "state", mistakes)
    if mistakes:
        raise CheckpointError(f"{folder / STATE}: {mistakes[0].message}")
    if state.step != step:
        raise CheckpointError(f"{folder / STATE}: is of step {state.step}")
    if data["tokenizer"] != tokenizer_checksums:
        raise CheckpointError(
            f"{folder.parent.parent / 'tokenizer'}: damaged (its checksum does not match); the "
            "command that trained it makes it again"
        )
    names = [MODEL, OPTIMIZER] if for_training else [MODEL]
    if not all(isinstance(data["files"].get(name), str) for name in names):
        raise CheckpointError(f"{folder / STATE}: lacks a checksum")
    tensors = [read_tensors(folder / name, data["files"][name]) for name in names]
    for name, each in zip(names, tensors, strict=True):
        if bad := first_not_finite(each):
            raise CheckpointError(f"{folder / name}: '{bad}' has values that are not finite")
    memory = tensors[1] if for_training else {}
    return Checkpoint(folder, state, tensors[0], memory, data["settings"])


def first_not_finite(tensors: dict[str, Tensor]) -> str | None:
    """The name of a tensor with a value that is infinite or not a number, if there is one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return name
    return None


def refuse_other_settings(settings: dict[str, Any], step: str, config: Config, run: Path) -> None:
    """Refuse a config.yaml under which a step's weights would mean something else."""
    present = weights_settings(config)
    for section, values in settings.items():
        for key in values if isinstance(values, dict) else ():
            if key not in present.get(section, {}):
                raise CheckpointError(f"{run}: {step} has an unknown setting '{section}.{key}'")
    changed = changed_between(settings, present)
    if changed:
        told = "; ".join(f"{key} is {new}, not {old}" for key, (old, new) in changed.items())
        raise CheckpointError(
            f"{run / 'config.yaml'}: not what {step} was trained with ({told}); put that back"
        )


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


def most_tensor_bytes() -> int:
    """A quarter of this machine's memory: what is read takes twice its size for a while."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        memory = 0
    return memory // 4 if memory > 0 else 2**33  # where a system does not tell


def read_tensors(path: Path, expected_checksum: str | None = None) -> dict[str, Tensor]:
    """Tensors of a safetensors file; nothing in it is ever executed."""
    content = read_own_file(path, most_tensor_bytes())
    if expected_checksum is not None and checksum(content) != expected_checksum:
        raise CheckpointError(f"{path}: damaged (its checksum does not match)")
    try:
        tensors = bytes_to_tensors(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error})") from None
    renamed = {rename_module_path(name): tensor for name, tensor in tensors.items()}
    if len(renamed) < len(tensors):
        raise CheckpointError(f"{path}: has a tensor twice, by its present and by an earlier name")
    return renamed


def tensor_bytes(tensors: dict[str, Tensor]) -> bytes:
    return tensors_to_bytes({name: tensor.contiguous() for name, tensor in tensors.items()})


def bytes_to_tensors(content: bytes) -> dict[str, Tensor]:
    return tensors_from_bytes(content)
