"""A checkpoint: its files, the checks when they are read, and copying weights by parameter name.

Checksums find damage, not malice, so every value is checked as well (see SECURITY.md).
`RunFolder.save_checkpoint` in run.py writes the files.
"""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from minitransformer.config import Mistake, build_section, differences, flatten, rename_settings
from minitransformer.data.tokenizer import PAD_ID, PairTokenizer
from minitransformer.errors import CheckpointError, ConfigError
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.settings import Config, Range, rename_module_path
from minitransformer.storage import (
    MAX_JSON_BYTES,
    checksum,
    json_with_checksum,
    read_json_with_checksum,
    read_own_file,
)

FORMAT = 2  # format 1 has other names for settings and for some modules
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
Count = Annotated[int, Range(0, 2**53)]


@dataclass(kw_only=True)
class TrainerState:
    """The progress of a training run, apart from its tensors."""

    step: Count = 0
    epoch: Count = 0
    batch_index: Count = 0
    seconds: Annotated[float, Range(0, 1e15)] = 0.0
    metrics_bytes: Count = 0
    event_bytes: Count = 0
    best_value: Annotated[float, Range(-1e300, 1e300)] | None = None
    best_step: Count | None = None
    evaluations_since_best: Count = 0
    most_source_gain: Annotated[float, Range(0, 1e300)] = 0.0
    data_fingerprint: str = ""


@dataclass
class Checkpoint:
    """One saved step that was read and found valid."""

    path: Path
    state: TrainerState
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    settings: dict[str, Any]  # of the model and tokenizer; empty in the oldest runs

    @property
    def weights_bytes(self) -> int:
        return sum(each.nbytes for each in self.model.values())


def checkpoint_files(
    state: TrainerState,
    model: dict[str, Tensor],
    optimizer: dict[str, Tensor],
    tokenizer_checksums: dict[str, str],
    config: Config,
) -> dict[str, bytes]:
    """Return the files of a checkpoint's folder, by name."""
    tensors = {MODEL: tensor_bytes(model), OPTIMIZER: tensor_bytes(optimizer)}
    content = {
        "format": FORMAT,
        "files": {name: checksum(content) for name, content in tensors.items()},
        "tokenizer": tokenizer_checksums,
        "settings": weights_settings(config),
        "state": dataclasses.asdict(state),
    }
    return {**tensors, STATE: json_with_checksum(content)}


def read_checkpoint(
    folder: Path, step: int, tokenizer_checksums: dict[str, str], *, for_training: bool
) -> Checkpoint:
    """Read one checkpoint; raises CheckpointError naming the file that is damaged."""
    data = read_content(folder)
    mistakes: list[Mistake] = []
    state: TrainerState = build_section(TrainerState, data["state"], "state", mistakes)
    if mistakes:
        raise CheckpointError(f"{folder / STATE}: {mistakes[0].message}")
    if state.step != step:
        raise CheckpointError(f"{folder / STATE}: is the state of step {state.step}")
    if data["tokenizer"] != tokenizer_checksums:
        raise CheckpointError(
            f"{folder.parent.parent / 'tokenizer'}: damaged (its checksum does not match); the "
            "command that trained the run restores it"
        )
    names = [MODEL, OPTIMIZER] if for_training else [MODEL]
    if not all(isinstance(data["files"].get(name), str) for name in names):
        raise CheckpointError(f"{folder / STATE}: a checksum is missing")
    tensors = [read_tensors(folder / name, data["files"][name]) for name in names]
    for name, each in zip(names, tensors, strict=True):
        if bad := find_nonfinite(each):
            raise CheckpointError(f"{folder / name}: '{bad}' has NaN or infinite values")
    optimizer = tensors[1] if for_training else {}
    return Checkpoint(folder, state, tensors[0], optimizer, data["settings"])


def read_content(folder: Path) -> dict[str, Any]:
    """Read state.json; raises CheckpointError for damage and unknown formats."""
    where = str(folder / STATE)
    data = read_json_with_checksum(read_own_file(folder / STATE, MAX_JSON_BYTES), where)
    if data.get("format") not in (1, FORMAT):
        raise CheckpointError(
            f"{folder}: format {data.get('format')}, this version reads formats 1 and {FORMAT}"
        )
    data.setdefault("settings", {})  # the oldest runs have none
    for name in ("files", "tokenizer", "settings", "state"):
        if not isinstance(data.get(name), dict):
            raise CheckpointError(f"{where}: '{name}' is missing or not a mapping")
    if data["format"] == 1:
        try:
            data["settings"] = rename_settings(data["settings"], where)
        except ConfigError as error:
            raise CheckpointError(str(error)) from None
    return data


def weights_settings(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings that the meaning of the weights depends on."""
    return {
        "model": dataclasses.asdict(config.model),
        "tokenizer": dataclasses.asdict(config.tokenizer),
    }


def refuse_other_settings(settings: dict[str, Any], step: str, config: Config, run: Path) -> None:
    """Refuse a config.yaml that differs from the settings that the weights were trained with."""
    saved, present = flatten(settings), flatten(weights_settings(config))
    if unknown := sorted(saved.keys() - present.keys()):
        raise CheckpointError(f"{run}: {step} has an unknown setting '{unknown[0]}'")
    if changed := differences(saved, present):
        changes = "; ".join(f"{key} is {new}, not {old}" for key, (old, new) in changed.items())
        raise CheckpointError(
            f"{run / 'config.yaml'}: not what {step} was trained with ({changes}); change it back"
        )


def trained_model(
    config: Config, tokenizer: PairTokenizer, saved: dict[str, dict[str, Tensor]]
) -> EncoderDecoder:
    """Build a model with the mean of saved weights, which are given by the paths of their files."""
    sizes = len(tokenizer.source), len(tokenizer.target)
    with torch.device("meta"):  # shapes only: a config may ask for far more than was saved
        shapes = build_model(config.model, *sizes, PAD_ID, initialize=False)
    expected = sum(parameter.numel() for parameter in shapes.parameters())
    for where, tensors in saved.items():
        found = sum(each.numel() for each in tensors.values())
        if found != expected:
            raise CheckpointError(f"{where}: {found:,} numbers, the config needs {expected:,}")
        check_tensors(model_tensors(shapes), tensors, where)
    model = build_model(config.model, *sizes, PAD_ID, initialize=False)
    copy_into(model_tensors(model), mean_tensors(list(saved.values())), next(iter(saved)))
    return model


def mean_tensors(checkpoints: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of several checkpoints' weights; of a single one, the same bits."""
    if len(checkpoints) == 1:
        return checkpoints[0]
    return {
        name: torch.stack([tensors[name].double() for tensors in checkpoints])
        .mean(dim=0)
        .to(first.dtype)
        for name, first in checkpoints[0].items()
    }


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights by name; a tied tensor only by its first name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def copy_into(
    targets: dict[str, Tensor], values: dict[str, Tensor], where: str, *, partial: bool = False
) -> None:
    """Copy tensors by name, if they are those of the targets, or some of them where `partial`."""
    check_tensors(targets, values, where, partial=partial)
    with torch.no_grad():
        for name, value in values.items():
            targets[name].copy_(value)


def check_tensors(
    targets: dict[str, Tensor], values: dict[str, Tensor], where: str, *, partial: bool = False
) -> None:
    """Refuse missing and unknown names, and other shapes or dtypes."""
    if (missing := sorted(targets.keys() - values.keys())) and not partial:
        raise CheckpointError(f"{where}: has no tensor '{missing[0]}'")
    for name, value in values.items():
        if name not in targets:
            raise CheckpointError(f"{where}: has a tensor '{name}' that the model does not have")
        target = targets[name]
        if value.shape != target.shape or value.dtype != target.dtype:
            raise CheckpointError(
                f"{where}: '{name}' is {tuple(value.shape)} {value.dtype}, "
                f"the model has {tuple(target.shape)} {target.dtype}"
            )


def find_nonfinite(tensors: dict[str, Tensor]) -> str | None:
    """Return the name of the first tensor that holds NaN or Inf, if there is one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return name
    return None


def read_tensors(path: Path, expected_checksum: str | None = None) -> dict[str, Tensor]:
    """Read a safetensors file, which cannot contain code; old parameter names are renamed."""
    content = read_own_file(path, max_tensor_bytes())
    if expected_checksum is not None and checksum(content) != expected_checksum:
        raise CheckpointError(f"{path}: damaged (its checksum does not match)")
    try:
        tensors = tensors_from_bytes(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error})") from None
    renamed = {rename_module_path(name): tensor for name, tensor in tensors.items()}
    if len(renamed) < len(tensors):
        raise CheckpointError(f"{path}: has a tensor twice, by its present and by an earlier name")
    return renamed


def tensor_bytes(tensors: dict[str, Tensor]) -> bytes:
    return tensors_to_bytes({name: tensor.contiguous() for name, tensor in tensors.items()})


def max_tensor_bytes() -> int:
    """Return a quarter of this machine's memory: reading takes twice a file's size for a while."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        memory = 0
    return memory // 4 if memory > 0 else 2**33  # where the system does not say
