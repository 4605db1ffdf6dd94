"""One saved step of a run: what is written of it, and what is believed when it is read again.

Whoever wrote a folder can write fitting checksums, too: they find damage, not malice. So every
value is checked as if it came from a stranger, and only plain files of the folder are opened.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from minitransformer.config import changed_between
from minitransformer.errors import CheckpointError
from minitransformer.schema import Mistake, Range, build_section
from minitransformer.settings import Config
from minitransformer.storage import (
    MOST_JSON,
    checksum,
    json_with_checksum,
    read_json_with_checksum,
    read_own_file,
    read_tensors,
    tensor_bytes,
)

FORMAT = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
Whole = Annotated[int, Range(0, 2**53)]


@dataclass(kw_only=True)
class State:
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
    state: State
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    settings: dict[str, Any]  # that the weights were trained with; older ones: none

    @property
    def bytes_of_weights(self) -> int:
        return sum(each.nbytes for each in self.model.values())


def step_files(
    state: State,
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
    if data.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder}: format {data.get('format')}, this version reads format {FORMAT}"
        )
    data.setdefault("settings", {})  # which older ones do not have
    for name in ("files", "tokenizer", "settings", "state"):
        if not isinstance(data.get(name), dict):
            raise CheckpointError(f"{where}: '{name}' is missing or not what it should be")
    return data


def read_step(
    folder: Path, step: int, tokenizer_checksums: dict[str, str], *, for_training: bool
) -> Checkpoint:
    """Read one step, or say which of its files is damaged."""
    data = read_content(folder)
    mistakes: list[Mistake] = []
    state: State = build_section(State, data["state"], "state", mistakes)
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
    changed = changed_between(settings, weights_settings(config))
    if changed:
        told = "; ".join(f"{key} is {new}, not {old}" for key, (old, new) in changed.items())
        raise CheckpointError(
            f"{run / 'config.yaml'}: not what {step} was trained with ({told}); put that back"
        )
