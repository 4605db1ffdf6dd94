"""Faults at every point at which a real process changes the disk; the product knows nothing of it.

A Fault is handed to tests.processes.Running. Before the script begins, it puts its ear to Python's
audit events and stands between files and the system; at the nth change below `runs` it strikes.
"""

import builtins
import errno
import importlib
import io
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

Sabotage = Callable[[], None]
CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.link", "os.symlink"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}
genuine_open, genuine_fsync = io.open, os.fsync


@dataclass(frozen=True)
class Fault:
    """What befalls a process when it is about to change the disk for the nth time.

    kill: SIGKILL before the change. tear: half of a write, then SIGKILL. power cut: SIGKILL, and
    files keep only what was synced. disk full: this write and all later ones get half through.
    SIGINT, SIGTERM: the signal; "SIGINT twice": again at the next change. nothing: only notes.
    """

    how: str = "nothing"
    at: int = 0  # counted from 1
    noted: Path | None = None  # a file that gets a line per point: its kind and its path
    broken: Sabotage | None = None  # breaks the product first, to see that it is noticed

    def __call__(self) -> None:
        if self.broken:
            self.broken()
        Saboteur(self).install()


@dataclass(frozen=True)
class AtCall:
    """Something happens when a function is called for the nth time."""

    module: str
    function: str  # or Class.method
    deed: Sabotage
    at: int = 1

    def __call__(self) -> None:
        owner: Any = importlib.import_module(self.module)
        *classes, name = self.function.split(".")
        for each in classes:
            owner = getattr(owner, each)
        genuine, calls = getattr(owner, name), count(1)

        def called(*arguments: Any, **options: Any) -> Any:
            if next(calls) == self.at:
                self.deed()
            return genuine(*arguments, **options)

        setattr(owner, name, called)


def signal_at_call(number: int, module: str, function: str) -> AtCall:
    return AtCall(module, function, partial(signal.raise_signal, number))


class Each:
    """Several of them."""

    def __init__(self, *sabotages: Sabotage) -> None:
        self.sabotages = sabotages

    def __call__(self) -> None:
        for sabotage in self.sabotages:
            sabotage()


@dataclass(frozen=True)
class OnRank:
    """A sabotage of one of several training processes, handed to the one that starts the others."""

    rank: int
    sabotage: Sabotage

    def __call__(self) -> None:
        if self.rank == 0:
            self.sabotage()
            return
        genuine, before = subprocess.Popen, Path(__file__).with_name("sabotaged_worker.py")

        def start(command: list[str], env: dict[str, str], **options: Any) -> Any:
            if env["RANK"] == str(self.rank):
                python, *rest = command
                command = [python, str(before), pickle.dumps(self.sabotage).hex(), *rest]
            return genuine(command, env=env, **options)

        subprocess.Popen = start  # type: ignore[assignment, misc]


@dataclass(frozen=True)
class KillNoted:
    """SIGKILL; a file keeps the moment at which it came."""

    note: Path

    def __call__(self) -> None:
        self.note.write_text(repr(time.monotonic()))
        end()


@dataclass(frozen=True)
class Phase:
    """A phase of a run of several processes, by the function with which it begins."""

    rank_0: str  # as module:function
    worker: str
    at: int = 1  # the nth call since the process began

    def kill(self, rank: int, note: Path) -> OnRank:
        """SIGKILL of a rank when it comes to this phase."""
        module, _, function = (self.worker if rank else self.rank_0).partition(":")
        deed = KillNoted(note)
        return OnRank(rank, AtCall(module, function, deed, self.at) if function else deed)


def same_call(call: str, at: int = 1) -> Phase:
    return Phase(call, call, at)


TRAINING = "minitransformer.training"
PHASES = {
    "starting": Phase(
        "minitransformer.model.base:choose_device", ""
    ),  # a worker: before any import
    "torch loaded": same_call(f"{TRAINING}.distributed:open_store"),
    "joining": same_call("torch.distributed:init_process_group"),
    "loading the corpus": Phase(  # the others wait for rank 0
        f"{TRAINING}.resume:prepare_setup", f"{TRAINING}.distributed:Ranks.gather"
    ),
    "the first broadcast": same_call(f"{TRAINING}.distributed:Ranks.broadcast"),
    "constructing DDP": same_call("torch.nn.parallel.distributed:_sync_module_states"),
    "a step": same_call(f"{TRAINING}.trainer:learning_rate", 5),
    "an evaluation": same_call(f"{TRAINING}.trainer:Trainer.evaluate_splits", 2),
    "a save": Phase(  # which the others wait for
        "minitransformer.run:RunFolder.save", f"{TRAINING}.trainer:Trainer.save", 2
    ),
    "the end": same_call("torch.distributed:destroy_process_group"),
}


@dataclass(frozen=True)
class SizeLimit:
    """No file may grow beyond so many bytes."""

    most: int

    def __call__(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.most, self.most))


@dataclass(frozen=True)
class Delay:
    """The script begins late."""

    seconds: float

    def __call__(self) -> None:
        time.sleep(self.seconds)


class Saboteur:
    """Sits inside a process, counts its changes of the disk, and strikes at one of them."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.folder = os.path.abspath("runs")
        self.count = 0
        self.is_striking = False
        self.notes = -1
        if fault.noted:
            self.notes = os.open(fault.noted, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.synced = {
            (status.st_dev, status.st_ino): status.st_size
            for status in map(os.stat, files_below(self.folder))
        }

    def install(self) -> None:
        sys.addaudithook(self.hear)
        os.fsync = self.sync
        io.open = builtins.open = self.open  # type: ignore[assignment]

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event comes before its deed."""
        if event == "open":
            path, _, flags = arguments
            if flags & WRITING and not isinstance(path, int):
                self.point("open", full_path(path))
        elif event in CHANGES:
            folder = arguments[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1
            self.point(event.removeprefix("os."), full_path(arguments[0], folder))

    def open(self, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None,
             errors: Any = None, newline: Any = None, closefd: bool = True,
             opener: Any = None) -> Any:  # fmt: skip
        """What is written below the folder goes through a file that counts."""
        is_other = isinstance(file, int) or opener or not set(mode) & set("wax+")
        if is_other or not self.is_inside(full_path(file)):
            return genuine_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = CountedFile(self, os.fspath(file), mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def sync(self, handle: int) -> None:
        path = full_path(handle)
        self.point("fsync", path)
        genuine_fsync(handle)
        if self.is_inside(path):
            status = os.fstat(handle)
            self.synced[status.st_dev, status.st_ino] = status.st_size

    def is_inside(self, path: str) -> bool:
        return path == self.folder or path.startswith(self.folder + os.sep)

    def point(self, kind: str, path: str, put: Callable[[], object] | None = None) -> None:
        """The disk is about to change; `put` would write half of what is to be written."""
        if self.is_striking or not self.is_inside(path):
            return
        self.count += 1
        if self.notes >= 0:
            os.write(self.notes, f"{kind} {os.path.relpath(path, self.folder)}\n".encode())
        how, is_now = self.fault.how, self.count == self.fault.at
        if how == "disk full" and 0 < self.fault.at <= self.count and put:
            put()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if is_now and how in ("kill", "tear", "power cut"):
            self.is_striking = True
            if how == "tear" and put:
                put()
            if how == "power cut":
                self.forget_what_was_not_synced()
            end()
        name, _, twice = how.partition(" ")
        if name in SIGNALS and (is_now or (twice and self.count == self.fault.at + 1)):
            os.kill(os.getpid(), SIGNALS[name])

    def forget_what_was_not_synced(self) -> None:
        """A power cut may take from a file all that came after its last sync."""
        for path in files_below(self.folder):
            status = os.stat(path)
            length = self.synced.get((status.st_dev, status.st_ino), 0)
            if status.st_size > length:
                os.truncate(path, length)


class CountedFile(io.FileIO):
    """A file each of whose writes is a point."""

    def __init__(self, saboteur: Saboteur, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self.saboteur = saboteur

    def write(self, content: Any) -> int:
        half = bytes(content)[: len(bytes(content)) // 2]
        write = super().write
        self.saboteur.point("write", full_path(self.name), lambda: write(half))
        return write(content)


def full_path(path: Any, folder: Any = -1) -> str:
    """The absolute path of a name, of a name in an open folder, or of what a handle stands for."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    if isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    return os.path.abspath(os.fsdecode(path))


def files_below(folder: str) -> list[str]:
    return [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]


def end() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL has no effect")
