"""A run is a folder: its config, tokenizer, metrics and checkpoints; nothing in it is pickled.

runs/tiny/
  config.yaml  tokenizer/  metrics.jsonl  events.out.tfevents  (and more for TensorBoard)
  checkpoints/step-000400/{model.safetensors, optimizer.safetensors, state.json}
  checkpoints/last  checkpoints/best        small text files naming a step
"""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from minitransformer.checkpoint import (
    Checkpoint,
    TrainerState,
    most_tensor_bytes,
    read_content,
    read_step,
    step_files,
)
from minitransformer.config import config_to_yaml, load_config
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.errors import CheckpointError, ConfigError
from minitransformer.settings import Config
from minitransformer.storage import (
    MOST_TOKENIZER,
    checksum,
    read_own_file,
    remove_folder,
    replace_file,
    replace_folder,
    require_space,
    write_all,
)


def planned(steps: list[int], config: Config) -> list[int]:
    """Those of some steps that are saved in any case, and not only because a signal came."""
    return [
        step
        for step in steps
        if step % config.training.save_every == 0
        or step % config.evaluation.every == 0
        or step == config.training.steps
    ]


def kept(steps: list[int], newest: int, best: int | None, config: Config) -> set[int | None]:
    """Those of some steps, newest first, that stay when a new one has been saved."""
    # Higher steps were found damaged, or the run would stand there.
    own = [step for step in steps if step <= newest and step != best]
    last = planned(own, config)[: config.training.keep_checkpoints]
    spare = last[1:] or own[:2]  # to fall back to, however early it was stopped
    return {*last, *spare, newest, best}


def append_rows(path: Path, rows: list[dict[str, Any]]) -> int:
    """Add a line per row, make sure that they reach the disk, and return the file's length."""
    content = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            write_all(file, content)
            os.fsync(file.fileno())
        except OSError:  # all of them or none
            os.truncate(path, before)
            raise
        return file.tell()


def cut_rows(path: Path, length: int) -> str | None:
    """Take back lines written after a checkpoint; returns a complaint if some are missing."""
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        path.touch()
        return f"{path} lacks lines that it had; it goes on from here"
    os.truncate(path, length)
    return None


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
TRIES = 100


class RunLock:
    """The lock of a folder, which is made if there is none, and unmade if nothing came of it."""

    def __init__(self, folder: Path) -> None:
        self.made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self.complaint = ""
        self.file: TextIO | None = None
        if fcntl is None:
            self.complaint = "this system has no locks: start only one training in a folder"
            return
        # Whoever held it may remove it between its opening and its locking here.
        for _ in range(TRIES):
            # Not through a link, and for the owner alone.
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            self.file = os.fdopen(os.open(folder / LOCK, flags, 0o600), "r+")
            self.take(folder)
            if self.is_at(folder):
                break
            self.file.close()
        assert self.file is not None
        try:
            os.truncate(self.file.fileno(), 0)
            os.write(self.file.fileno(), f"{os.getpid()}\n".encode())
        except OSError:  # the disk may be full
            self.release(folder)
            raise

    def take(self, folder: Path) -> None:
        assert self.file is not None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with self.file:
                number = self.file.read(20).strip()
            who = f"process {number}" if number.isdecimal() else "another process"
            raise CheckpointError(
                f"{folder} is being trained by {who}; wait for it, stop it, "
                "or choose another folder with --run"
            ) from None
        except OSError as error:  # some network drives have none
            self.complaint = f"{folder} cannot be locked ({error.strerror}): train it only once"

    def is_at(self, folder: Path) -> bool:
        """Is this the lock that others would find there?"""
        assert self.file is not None
        try:
            return os.path.samestat(os.fstat(self.file.fileno()), (folder / LOCK).stat())
        except FileNotFoundError:
            return False

    def release(self, folder: Path) -> None:
        """Give the folder free, wherever it has been moved to."""
        if self.file is not None:
            with contextlib.suppress(OSError):
                if self.is_at(folder):  # and not one that another process has made since
                    (folder / LOCK).unlink()
            self.file.close()
        for each in self.made:
            with contextlib.suppress(OSError):
                each.rmdir()  # only if it is still empty


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
        with self.require_space(0, "a run"):
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
        self,
        state: TrainerState,
        model: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        config: Config,
    ) -> None:
        """Write a checkpoint, point `last` at it, and clear away those that are no longer kept."""
        files = step_files(state, model, optimizer, self.tokenizer_checksums(), config)
        with self.require_space(sum(map(len, files.values())), f"step {state.step}"):
            replace_folder(self.step_path(state.step), files)
        with self.require_space(0, "the names of checkpoints"):
            self.prune_checkpoints(state, config)

    def prune_checkpoints(self, state: TrainerState, config: Config) -> None:
        """What follows a new checkpoint; again, where a kill came between the two."""
        for leftover in self.checkpoints.glob(".step-*.part"):
            shutil.rmtree(leftover, ignore_errors=True)
        for name, step in (("best", state.best_step), ("last", state.step)):
            if step is not None and self.pointed(name) != step:
                self.point(name, step)
        for step in set(self.steps()) - kept(self.steps(), state.step, state.best_step, config):
            remove_folder(self.step_path(step))

    def require_space(self, needed: int, what: str) -> contextlib.AbstractContextManager[None]:
        """For what may find the disk full; what was saved stays as it is."""

        def advice() -> str:
            goes_on = f"goes on after step {self.steps()[0]}" if self.has_started else "starts over"
            return f"make room, and the same command {goes_on}"

        return require_space(needed, self.path, what, advice)

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


def runs_newest_first(folder: Path) -> list[Path]:
    """The runs in a folder that have a checkpoint, the most recently saved first."""
    if not folder.is_dir():
        return []
    saved = {
        path: run.step_path(run.steps()[0]).stat().st_mtime
        for path in folder.iterdir()
        if (run := RunFolder(path)).has_started
    }
    return sorted(saved, key=lambda path: saved[path], reverse=True)
