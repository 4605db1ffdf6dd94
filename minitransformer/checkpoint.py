"""A run is a folder: its config, tokenizer, metrics and checkpoints; nothing in it is pickled.

runs/tiny/
  config.yaml  tokenizer/  metrics.jsonl  events.out.tfevents  (and more for TensorBoard)
  checkpoints/step-000400/{model.safetensors, optimizer.safetensors, state.json}
  checkpoints/last  checkpoints/best        small text files naming a step
"""

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from minitransformer.config import config_to_yaml, load_config
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.errors import CheckpointError, ConfigError
from minitransformer.kept_steps import kept
from minitransformer.run_lock import LOCK, RunLock
from minitransformer.saved_step import Checkpoint, State, read_content, read_step, step_files
from minitransformer.settings import Config
from minitransformer.storage import (
    MOST_TOKENIZER,
    checksum,
    most_tensor_bytes,
    read_own_file,
    remove_folder,
    replace_file,
    replace_folder,
    room_for,
)

STEP_NAME = re.compile(r"step-(\d{6,12})")


class RunFolder:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.out.tfevents"
        self.lock: RunLock | None = None

    @property
    def has_started(self) -> bool:
        """Is there a checkpoint, whole or not?"""
        return any(self.steps())

    def steps(self) -> list[int]:
        """The steps that have a checkpoint folder, newest first."""
        if not self.checkpoints.is_dir():
            return []
        names = (STEP_NAME.fullmatch(path.name) for path in self.checkpoints.iterdir())
        return sorted((int(match[1]) for match in names if match), reverse=True)

    def step_path(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:06d}"

    def hold(self) -> None:
        """Let no other process train here, until `release` or this one's end."""
        self.refuse_other_folders()
        with self.room_for(0, "a run"):
            self.lock = RunLock(self.path)

    def release(self) -> None:
        lock, self.lock = self.lock, None  # the thread that watches workers may come here, too
        if lock:
            lock.release(self.path)

    def create(self, config: Config, tokenizer: PairTokenizer) -> None:
        """Begin a run, in place of one that never reached a checkpoint."""
        self.refuse_other_folders()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.metrics.write_bytes(b"")
        if self.events.exists():  # the same file: an open TensorBoard holds it, not its name
            os.truncate(self.events, 0)
        replace_folder(self.path / "tokenizer", tokenizer.to_files())
        self.save_config(config)

    def move_aside(self) -> Path | None:
        """Make room for a new run without losing the old one."""
        if not self.path.exists() or {path.name for path in self.path.iterdir()} <= {LOCK}:
            return None
        self.refuse_other_folders()
        place = self.path.resolve()
        if place == Path.cwd():
            raise CheckpointError("a run cannot be moved aside from inside its own folder")
        number = 1
        while (aside := place.with_name(f"{place.name}.old-{number}")).exists():
            number += 1
        place.rename(aside)
        if self.lock:
            lock, self.lock = self.lock, None
            lock.release(aside)
            self.hold()
        return self.path.with_name(aside.name)

    def refuse_other_folders(self) -> None:
        """Never write among somebody's other files, and never move them."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file, not a run folder; choose another --run")
        names = {path.name for path in self.path.iterdir()}
        # A run that was killed in its first moments has a part of these.
        first_files = {"checkpoints", "metrics.jsonl", "tokenizer", ".tokenizer.part",
                       ".config.yaml.part", LOCK}  # fmt: skip
        whole = {"config.yaml", "checkpoints", "tokenizer", "metrics.jsonl"}  # one may be lost
        if not names <= first_files and len(whole - names) > 1:
            raise CheckpointError(f"{self.path} is not a run folder; choose another with --run")
        self.refuse_links()

    def refuse_links(self) -> None:
        """A link inside a run could make it read, overwrite or delete what is elsewhere."""
        for folder in (self.path, self.path / "tokenizer", self.checkpoints):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.is_symlink():
                    raise CheckpointError(f"{path}: a link; everything in a run is its own")

    def save_config(self, config: Config) -> None:
        replace_file(self.path / "config.yaml", config_to_yaml(config).encode("utf-8"))

    def load_config(self) -> Config:
        if not (self.path / "config.yaml").is_file():
            why = "it is a file" if self.path.exists() else "there is no such folder"
            why = "it has no config.yaml" if self.path.is_dir() else why
            raise CheckpointError(f"{self.path} is not a run folder ({why})")
        self.refuse_links()
        try:
            return load_config(self.path / "config.yaml")
        except ConfigError as error:
            raise CheckpointError(str(error)) from None

    def load_tokenizer(self, config: Config) -> PairTokenizer:
        return PairTokenizer.from_folder(self.path / "tokenizer", config)

    def save(
        self, state: State, model: dict[str, Tensor], optimizer: dict[str, Tensor], config: Config
    ) -> None:
        """Write a checkpoint, point `last` at it, and clear away those that are no longer kept."""
        files = step_files(state, model, optimizer, self.tokenizer_checksums(), config)
        with self.room_for(sum(map(len, files.values())), f"step {state.step}"):
            replace_folder(self.step_path(state.step), files)
        with self.room_for(0, "the names of checkpoints"):
            self.settle(state, config)

    def settle(self, state: State, config: Config) -> None:
        """What follows a new checkpoint; again, where a kill came between the two."""
        for leftover in self.checkpoints.glob(".step-*.part"):
            shutil.rmtree(leftover, ignore_errors=True)
        for name, step in (("best", state.best_step), ("last", state.step)):
            if step is not None and self.pointed(name) != step:
                self.point(name, step)
        for step in set(self.steps()) - kept(self.steps(), state.step, state.best_step, config):
            remove_folder(self.step_path(step))

    def room_for(self, needed: int, what: str) -> contextlib.AbstractContextManager[None]:
        """For what may find the disk full; what was saved stays as it is."""

        def advice() -> str:
            goes_on = f"goes on after step {self.steps()[0]}" if self.has_started else "starts over"
            return f"make room, and the same command {goes_on}"

        return room_for(needed, self.path, what, advice)

    def tokenizer_checksums(self) -> dict[str, str]:
        files = sorted((self.path / "tokenizer").glob("*.*"))  # a desktop may leave files there
        names = ("source.", "target.")
        return {
            path.name: checksum(read_own_file(path, MOST_TOKENIZER))
            for path in files
            if path.name.startswith(names)
        }

    def newest_content(self) -> tuple[str, dict[str, Any]]:
        """The name of the newest checkpoint whose state.json can be read, and what it says."""
        for step in self.steps():
            with contextlib.suppress(CheckpointError):
                return self.step_path(step).name, read_content(self.step_path(step))
        return "", {"tokenizer": None, "settings": {}}

    def point(self, name: str, step: int) -> None:
        replace_file(self.checkpoints / name, f"{self.step_path(step).name}\n".encode())

    def pointed(self, name: str) -> int | None:
        """The step that `last` or `best` names, if it names one."""
        with contextlib.suppress(CheckpointError, UnicodeDecodeError):
            text = read_own_file(self.checkpoints / name, 100).decode("utf-8").strip()
            if match := STEP_NAME.fullmatch(text):
                return int(match[1])
        return None

    def load(self, step: int, *, for_training: bool) -> Checkpoint:
        """Read one step, or say which of its files is damaged."""
        return read_step(
            self.step_path(step), step, self.tokenizer_checksums(), for_training=for_training
        )

    def load_best(self) -> Checkpoint:
        """Read the step that did best on held-out pairs."""
        step = self.best_step
        if step is None:
            why = "its evaluation.best_metric is none, or it was not evaluated yet"
            raise CheckpointError(f"{self.path} has no best checkpoint: {why}")
        try:
            return self.load(step, for_training=False)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; --checkpoint last takes the last one") from None

    @property
    def best_step(self) -> int | None:
        """The step that `best` names; where one is lost, what the newest checkpoint knows."""
        if (step := self.pointed("best")) in self.steps() or not self.has_started:
            return step
        return self.load_newest([], for_training=False).state.best_step

    def load_newest(self, complaints: list[str], *, for_training: bool) -> Checkpoint:
        return self.load_last(1, complaints, for_training=for_training, among=self.steps())[0]

    def load_last(
        self, count: int, complaints: list[str], *, for_training: bool, among: list[int]
    ) -> list[Checkpoint]:
        """Read the first whole ones of some steps; each damaged one on the way adds a complaint."""
        found: list[Checkpoint] = []
        for step in among:
            if len(found) == count:
                break
            try:
                found.append(self.load(step, for_training=for_training))
            except CheckpointError as error:
                complaints.append(str(error))
            if sum(each.bytes_of_weights for each in found) > most_tensor_bytes():
                raise CheckpointError(f"{self.path}: {len(found)} checkpoints fill the memory")
        if found:
            return found
        raise CheckpointError(
            f"{self.path} has no whole checkpoint"
            + (f": {complaints[0]}" if complaints else "; train it first")
        )
