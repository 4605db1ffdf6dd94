"""A run is a folder: its config, tokenizer, metrics and checkpoints; nothing in it is pickled.

runs/tiny/
  config.yaml  tokenizer/{source,target}.tsv  metrics.jsonl
  checkpoints/step-000400/{model.safetensors, optimizer.safetensors, state.json}
  checkpoints/last  checkpoints/best        small text files naming a step
"""

import contextlib
import dataclasses
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitransformer.config import Config, config_to_yaml, load_config
from minitransformer.data.tokenizer import PAD_ID, PairTokenizer
from minitransformer.errors import CheckpointError, ConfigError
from minitransformer.model.transformer import Transformer
from minitransformer.storage import (
    checksum,
    copy_into,
    json_with_checksum,
    read_json_with_checksum,
    read_tensors,
    replace_file,
    replace_folder,
    tensor_bytes,
)

FORMAT = 1
STEP_NAME = re.compile(r"step-(\d{6,12})")


@dataclass(kw_only=True)
class State:
    """Everything about a run's position that is not a tensor."""

    step: int = 0
    epoch: int = 0
    batch_index: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    metrics_bytes: int = 0
    best_value: float | None = None
    best_step: int | None = None
    data_fingerprint: str = ""


@dataclass
class Checkpoint:
    """One saved step, checked against its checksums."""

    path: Path
    state: State
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]


class RunFolder:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    @property
    def has_started(self) -> bool:
        """Is there a checkpoint to continue from, or at least a trace of one?"""
        return any(self.steps())

    def steps(self) -> list[int]:
        """The steps that have a checkpoint folder, newest first."""
        if not self.checkpoints.is_dir():
            return []
        names = (STEP_NAME.fullmatch(path.name) for path in self.checkpoints.iterdir())
        return sorted((int(match[1]) for match in names if match), reverse=True)

    def step_path(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:06d}"

    def create(self, config: Config, tokenizer: PairTokenizer) -> None:
        """Begin a run, in place of one that never reached a checkpoint."""
        self.refuse_other_folders()
        self.path.mkdir(parents=True, exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        tokenizer.save(self.path / "tokenizer")
        self.save_config(config)
        self.metrics.write_bytes(b"")

    def move_aside(self) -> Path | None:
        """Make room for a new run without losing the old one."""
        if not self.path.exists():
            return None
        self.refuse_other_folders()
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.old-{number}")).exists():
            number += 1
        self.path.rename(aside)
        return aside

    def refuse_other_folders(self) -> None:
        """Never write among somebody's other files, and never move them."""
        if not self.path.is_dir() or (self.path / "config.yaml").is_file():
            return
        # A run that was killed in its first moments has these and no config yet.
        own = {"tokenizer", "checkpoints", ".config.yaml.part"}
        if any(path.name not in own for path in self.path.iterdir()):
            raise CheckpointError(f"{self.path} is not a run folder; choose another with --run")

    def save_config(self, config: Config) -> None:
        replace_file(self.path / "config.yaml", config_to_yaml(config).encode("utf-8"))

    def load_config(self) -> Config:
        if not (self.path / "config.yaml").is_file():
            raise CheckpointError(f"{self.path} is not a run folder (it has no config.yaml)")
        try:
            return load_config(self.path / "config.yaml")
        except ConfigError as error:
            raise CheckpointError(str(error)) from None

    def load_tokenizer(self, config: Config) -> PairTokenizer:
        return PairTokenizer.load(self.path / "tokenizer", config)

    def save(
        self, state: State, model: dict[str, Tensor], optimizer: dict[str, Tensor], keep: int
    ) -> None:
        """Write a checkpoint, point `last` at it, and clear away the oldest beyond `keep`."""
        tensors = {
            "model.safetensors": tensor_bytes(model),
            "optimizer.safetensors": tensor_bytes(optimizer),
        }
        content = {
            "format": FORMAT,
            "files": {name: checksum(content) for name, content in tensors.items()},
            "state": dataclasses.asdict(state),
        }
        for leftover in self.checkpoints.glob(".step-*.part"):  # of a save that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        folder = self.step_path(state.step)
        replace_folder(folder, {**tensors, "state.json": json_with_checksum(content)})
        if state.best_step == state.step:
            self.point("best", state.step)
        self.point("last", state.step)
        for step in [step for step in self.steps() if step != state.best_step][keep:]:
            shutil.rmtree(self.step_path(step), ignore_errors=True)

    def point(self, name: str, step: int) -> None:
        replace_file(self.checkpoints / name, f"{self.step_path(step).name}\n".encode())

    def pointed(self, name: str) -> int | None:
        """The step that `last` or `best` names, if it names one."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = (self.checkpoints / name).read_text(encoding="utf-8").strip()
            if match := STEP_NAME.fullmatch(text):
                return int(match[1])
        return None

    def load(self, step: int, *, for_training: bool) -> Checkpoint:
        """Read one step, or say which of its files is damaged."""
        folder = self.step_path(step)
        try:
            content = (folder / "state.json").read_bytes()
        except OSError as error:
            raise CheckpointError(f"{folder / 'state.json'}: {error.strerror}") from None
        data: dict[str, Any] = read_json_with_checksum(content, str(folder / "state.json"))
        if data.get("format") != FORMAT:
            raise CheckpointError(
                f"{folder}: format {data.get('format')}, this version reads format {FORMAT}"
            )
        checksums = data["files"]
        name = "optimizer.safetensors"
        return Checkpoint(
            folder,
            State(**data["state"]),
            read_tensors(folder / "model.safetensors", checksums["model.safetensors"]),
            read_tensors(folder / name, checksums[name]) if for_training else {},
        )

    def load_best(self, *, for_training: bool) -> Checkpoint:
        """Read the step that did best on held-out pairs."""
        step = self.pointed("best")
        if step is None:
            raise CheckpointError(
                f"{self.path} has no best checkpoint: its evaluation.best_metric is none, "
                "or it was not evaluated yet"
            )
        return self.load(step, for_training=for_training)

    def load_newest(self, complaints: list[str], *, for_training: bool) -> Checkpoint:
        """Read the newest whole checkpoint; each damaged one on the way adds a complaint."""
        for step in self.steps():
            try:
                return self.load(step, for_training=for_training)
            except CheckpointError as error:
                complaints.append(str(error))
        raise CheckpointError(
            f"{self.path} has no whole checkpoint"
            + (f": {complaints[0]}" if complaints else "; train it first")
        )


def build_model(config: Config, tokenizer: PairTokenizer) -> Transformer:
    """A freshly initialised model that fits a tokenizer."""
    return Transformer.from_config(
        config.model,
        source_vocab_size=len(tokenizer.source),
        target_vocab_size=len(tokenizer.target),
        pad_id=PAD_ID,
    )


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights by name, a shared one once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_weights(model: torch.nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Copy a checkpoint's weights into a model that must have exactly these."""
    own = model_tensors(model)
    if missing := sorted(own.keys() - tensors.keys()):
        raise CheckpointError(f"{where}: lacks the tensor '{missing[0]}'")
    copy_into(own, tensors, where)


def runs_newest_first(folder: Path) -> Iterator[Path]:
    """The runs in a folder that have a checkpoint, the most recently saved first."""
    if folder.is_dir():
        saved = [run for run in folder.iterdir() if (run / "checkpoints" / "last").is_file()]
        saved.sort(key=lambda run: (run / "checkpoints" / "last").stat().st_mtime, reverse=True)
        yield from saved
