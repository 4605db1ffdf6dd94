"""A run is a folder: its config, tokenizer, metrics and checkpoints; nothing in it is pickled.

runs/tiny/
  config.yaml  tokenizer/  metrics.jsonl  events.out.tfevents  (and more for TensorBoard)
  checkpoints/step-000400/{model.safetensors, optimizer.safetensors, state.json}
  checkpoints/last  checkpoints/best        small text files naming a step
"""

import json
import os
import re
import shutil
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from minitransformer.checkpoint import (
    Checkpoint,
    TrainerState,
    checkpoint_files,
    max_tensor_bytes,
    read_checkpoint,
    read_content,
)
from minitransformer.config import config_to_yaml, load_config
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.errors import CheckpointError, ConfigError
from minitransformer.settings import Config
from minitransformer.storage import (
    MAX_TOKENIZER_BYTES,
    checksum,
    read_own_file,
    remove_folder,
    replace_file,
    replace_folder,
    require_space,
    write_all,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STEP_NAME = re.compile(r"step-(\d{6,12})")
LOCK = ".lock"


class RunFolder:
    """Read and write one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.out.tfevents"
        self.lock: RunLock | None = None

    @property
    def has_started(self) -> bool:
        """Whether there is a checkpoint, valid or damaged."""
        return any(self.steps())

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint folder, newest first."""
        if not self.checkpoints.is_dir():
            return []
        names = (STEP_NAME.fullmatch(path.name) for path in self.checkpoints.iterdir())
        return sorted((int(match[1]) for match in names if match), reverse=True)

    def step_path(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:06d}"

    def hold(self) -> None:
        """Lock the run against other processes until `release` or the end of this one."""
        self.refuse_other_folders()
        with self.require_space("a run"):
            self.lock = RunLock(self.path)

    def release(self) -> None:
        lock, self.lock = self.lock, None  # the thread that watches a worker calls this, too
        if lock:
            lock.release(self.path)

    def create(self, config: Config, tokenizer: PairTokenizer) -> None:
        """Create the run's files, over those of a run that never saved a checkpoint."""
        self.refuse_other_folders()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.metrics.write_bytes(b"")
        if self.events.exists():  # truncated, not replaced: a running TensorBoard has it open
            os.truncate(self.events, 0)
        replace_folder(self.path / "tokenizer", tokenizer.to_files())
        self.save_config(config)

    def move_aside(self) -> Path | None:
        """Rename the folder of an old run, and return its new path; None if there is nothing."""
        if not self.path.exists() or {path.name for path in self.path.iterdir()} <= {LOCK}:
            return None
        self.refuse_other_folders()
        resolved = self.path.resolve()
        if resolved == Path.cwd():
            raise CheckpointError("a run cannot be moved aside from inside its own folder")
        number = 1
        while (aside := resolved.with_name(f"{resolved.name}.old-{number}")).exists():
            number += 1
        resolved.rename(aside)
        if self.lock:
            lock, self.lock = self.lock, None
            lock.release(aside)
            self.hold()
        return self.path.with_name(aside.name)

    def refuse_other_folders(self) -> None:
        """Refuse a folder with other files than a run's: they are never overwritten or moved."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file, not a run folder; choose another --run")
        names = {path.name for path in self.path.iterdir()}
        # The files of a run that was killed while it was being created.
        first_files = {"checkpoints", "metrics.jsonl", "tokenizer", ".tokenizer.part",
                       ".config.yaml.part", LOCK}  # fmt: skip
        expected = {"config.yaml", "checkpoints", "tokenizer", "metrics.jsonl"}
        if not names <= first_files and len(expected - names) > 1:  # one may be lost
            raise CheckpointError(f"{self.path} is not a run folder; choose another with --run")
        self.refuse_links()

    def refuse_links(self) -> None:
        """Refuse symbolic links, through which a run could overwrite or delete other files."""
        for folder in (self.path, self.path / "tokenizer", self.checkpoints):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.is_symlink():
                    raise CheckpointError(f"{path}: a symbolic link, which a run must not contain")

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

    def save_checkpoint(
        self,
        state: TrainerState,
        model: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        config: Config,
    ) -> None:
        """Write a checkpoint, update `last` and `best`, and delete those no longer kept."""
        files = checkpoint_files(state, model, optimizer, self.tokenizer_checksums(), config)
        with self.require_space(f"step {state.step}", sum(map(len, files.values()))):
            replace_folder(self.step_path(state.step), files)
        with self.require_space("the names of checkpoints"):
            self.prune_checkpoints(state, config)

    def prune_checkpoints(self, state: TrainerState, config: Config) -> None:
        """Update `last` and `best`, and delete what is no longer kept, after a save or a kill."""
        for leftover in self.checkpoints.glob(".step-*.part"):
            shutil.rmtree(leftover, ignore_errors=True)
        for name, step in (("best", state.best_step), ("last", state.step)):
            if step is not None and self.pointed(name) != step:
                self.point(name, step)
        kept = steps_to_keep(self.steps(), state.step, state.best_step, config)
        for step in set(self.steps()) - kept:
            remove_folder(self.step_path(step))

    def require_space(self, what: str, needed: int = 0) -> AbstractContextManager[None]:
        """Raise an error for a full disk; what was saved before stays as it is."""

        def advice() -> str:
            step = f"continues after step {self.steps()[0]}" if self.has_started else "starts over"
            return f"free some space, and the same command {step}"

        return require_space(needed, self.path, what, advice)

    def tokenizer_checksums(self) -> dict[str, str]:
        files = sorted(
            (self.path / "tokenizer").glob("*.*")
        )  # some desktop environments add their own
        names = ("source.", "target.")
        return {
            path.name: checksum(read_own_file(path, MAX_TOKENIZER_BYTES))
            for path in files
            if path.name.startswith(names)
        }

    def newest_content(self) -> tuple[str, dict[str, Any]]:
        """Return the newest checkpoint with a readable state.json: its name and that content."""
        for step in self.steps():
            with suppress(CheckpointError):
                return self.step_path(step).name, read_content(self.step_path(step))
        return "", {"tokenizer": None, "settings": {}}

    def point(self, name: str, step: int) -> None:
        replace_file(self.checkpoints / name, f"{self.step_path(step).name}\n".encode())

    def pointed(self, name: str) -> int | None:
        """Return the step that the file `last` or `best` names, if it names one."""
        with suppress(CheckpointError, UnicodeDecodeError):
            text = read_own_file(self.checkpoints / name, 100).decode("utf-8").strip()
            if match := STEP_NAME.fullmatch(text):
                return int(match[1])
        return None

    def load(self, step: int, *, for_training: bool) -> Checkpoint:
        """Read one checkpoint; raises CheckpointError naming the file that is damaged."""
        return read_checkpoint(
            self.step_path(step), step, self.tokenizer_checksums(), for_training=for_training
        )

    def load_best(self) -> Checkpoint:
        """Read the checkpoint with the best `evaluation.best_metric` on held-out pairs."""
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
        """Return the step that `best` names, or, where that file is lost, the newest state."""
        if (step := self.pointed("best")) in self.steps() or not self.has_started:
            return step
        return self.load_newest([], for_training=False).state.best_step

    def load_newest(self, damages: list[str], *, for_training: bool) -> Checkpoint:
        return self.load_last(1, damages, for_training=for_training, among=self.steps())[0]

    def load_last(
        self, count: int, damages: list[str], *, for_training: bool, among: list[int]
    ) -> list[Checkpoint]:
        """Read the first `count` valid checkpoints of some steps.

        A line for each damaged one that is skipped is added to `damages`.
        """
        found: list[Checkpoint] = []
        for step in among:
            if len(found) == count:
                break
            try:
                found.append(self.load(step, for_training=for_training))
            except CheckpointError as error:
                damages.append(str(error))
            if sum(each.weights_bytes for each in found) > max_tensor_bytes():
                raise CheckpointError(
                    f"{self.path}: {len(found)} checkpoints do not fit into memory"
                )
        if found:
            return found
        raise CheckpointError(
            f"{self.path} has no valid checkpoint"
            + (f": {damages[0]}" if damages else "; train it first")
        )


class RunLock:
    """Lock a folder against other training processes, until `release` or the end of this process.

    A folder that does not exist is created, and removed again if nothing was written into it.
    """

    def __init__(self, folder: Path) -> None:
        self.created = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self.warning = ""
        self.file: TextIO | None = None
        if fcntl is None:
            self.warning = "this system has no locks: run only one training process in a folder"
            return
        # Its last holder may remove the file after it was opened and before it is locked here.
        for _ in range(100):
            # Links are not followed, and only the owner may read it.
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            self.file = os.fdopen(os.open(folder / LOCK, flags, 0o600), "r+")
            self.acquire(folder)
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

    def acquire(self, folder: Path) -> None:
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
        except OSError as error:  # some network drives have no locks
            self.warning = (
                f"{folder} cannot be locked ({error.strerror}): run only one training process in it"
            )

    def is_at(self, folder: Path) -> bool:
        """Whether this file is the one that others find in the folder."""
        assert self.file is not None
        try:
            return os.path.samestat(os.fstat(self.file.fileno()), (folder / LOCK).stat())
        except FileNotFoundError:
            return False

    def release(self, folder: Path) -> None:
        """Release the lock; `folder` is where the folder is now."""
        if self.file is not None:
            with suppress(OSError):
                if self.is_at(folder):  # and not a newer one of another process
                    (folder / LOCK).unlink()
            self.file.close()
        for each in self.created:
            with suppress(OSError):
                each.rmdir()  # only if it is still empty


def regular_checkpoints(steps: list[int], config: Config) -> list[int]:
    """Return the steps that every run of this config saves, without those saved on a signal."""
    return [
        step
        for step in steps
        if step % config.training.save_every == 0
        or step % config.evaluation.every == 0
        or step == config.training.steps
    ]


def steps_to_keep(
    steps: list[int], newest: int, best: int | None, config: Config
) -> set[int | None]:
    """Return which of these steps (newest first) to keep once `newest` has been saved."""
    # Steps above `newest` are damaged: otherwise training would have resumed from them.
    own = [step for step in steps if step <= newest and step != best]
    last = regular_checkpoints(own, config)[: config.training.keep_checkpoints]
    spare = last[1:] or own[:2]  # a fallback even for runs that were stopped early
    return {*last, *spare, newest, best}


def append_rows(path: Path, rows: list[dict[str, Any]]) -> int:
    """Append rows as lines of JSON, fsync, and return the length of the file."""
    content = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            write_all(file, content)
            os.fsync(file.fileno())
        except OSError:  # all rows or none
            os.truncate(path, before)
            raise
        return file.tell()


def truncate_rows(path: Path, length: int) -> str | None:
    """Remove the lines written after a checkpoint; returns a warning if earlier ones are lost."""
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        path.touch()
        return f"{path} has lost some lines; new ones are appended"
    os.truncate(path, length)
    return None


def runs_newest_first(folder: Path) -> list[Path]:
    """Return the runs in a folder that have a checkpoint, the most recently saved first."""
    if not folder.is_dir():
        return []
    saved = {
        path: run.step_path(run.steps()[0]).stat().st_mtime
        for path in folder.iterdir()
        if (run := RunFolder(path)).has_started
    }
    return sorted(saved, key=lambda path: saved[path], reverse=True)
