"""Inject faults into real processes wherever they change the disk, without changing the product.

A Fault is passed to tests.support.processes.Running. Before the script starts, it adds an audit
hook and replaces `open` and `os.fsync`, and it acts at the nth change below `runs`.
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
original_open, original_fsync = io.open, os.fsync


@dataclass(frozen=True)
class Fault:
    """A fault of a process that is about to change the disk for the nth time.

    kill: SIGKILL before the change. tear: half of a write, then SIGKILL. power cut: SIGKILL, and
    files keep only what was synced. disk full: this write and all later ones stop halfway.
    SIGINT, SIGTERM: the signal; "SIGINT twice": again at the next change. nothing: no fault.
    """

    how: str = "nothing"
    at: int = 0  # counted from 1
    noted: Path | None = None  # a file that gets a line per change: its kind and its path
    broken: Sabotage | None = None  # breaks the product first, to test that this is detected

    def __call__(self) -> None:
        if self.broken:
            self.broken()
        FaultInjector(self).install()


@dataclass(frozen=True)
class AtCall:
    """An action at the nth call of a function."""

    module: str
    function: str  # or Class.method
    action: Sabotage
    at: int = 1

    def __call__(self) -> None:
        owner: Any = importlib.import_module(self.module)
        *classes, name = self.function.split(".")
        for each in classes:
            owner = getattr(owner, each)
        original, calls = getattr(owner, name), count(1)

        def called(*arguments: Any, **options: Any) -> Any:
            if next(calls) == self.at:
                self.action()
            return original(*arguments, **options)

        setattr(owner, name, called)


def signal_at_call(number: int, module: str, function: str) -> AtCall:
    return AtCall(module, function, partial(signal.raise_signal, number))


class Combined:
    """Several sabotages, one after the other."""

    def __init__(self, *sabotages: Sabotage) -> None:
        self.sabotages = sabotages

    def __call__(self) -> None:
        for sabotage in self.sabotages:
            sabotage()


@dataclass(frozen=True)
class OnRank:
    """A sabotage of one rank, passed to the process that launches the others."""

    rank: int
    sabotage: Sabotage

    def __call__(self) -> None:
        if self.rank == 0:
            self.sabotage()
            return
        original, worker_script = subprocess.Popen, Path(__file__).with_name("sabotaged_worker.py")

        def start(command: list[str], env: dict[str, str], **options: Any) -> Any:
            if env["RANK"] == str(self.rank):
                python, *rest = command
                command = [python, str(worker_script), pickle.dumps(self.sabotage).hex(), *rest]
            return original(command, env=env, **options)

        subprocess.Popen = start  # type: ignore[assignment, misc]


@dataclass(frozen=True)
class RecordAndKill:
    """SIGKILL, after its time was written to a file."""

    time_file: Path

    def __call__(self) -> None:
        self.time_file.write_text(repr(time.monotonic()))
        kill_self()


@dataclass(frozen=True)
class Phase:
    """A phase of distributed training, identified by the function that begins it."""

    rank_0: str  # as module:function
    worker: str
    at: int = 1  # the nth call since the process began

    def kill(self, rank: int, time_file: Path) -> OnRank:
        """Return a sabotage that kills a rank at the beginning of this phase."""
        module, _, function = (self.worker if rank else self.rank_0).partition(":")
        action = RecordAndKill(time_file)
        return OnRank(rank, AtCall(module, function, action, self.at) if function else action)


def same_call(call: str, at: int = 1) -> Phase:
    return Phase(call, call, at)


TRAINING = "minitransformer.training"
PHASES = {
    "starting": Phase("minitransformer.model.base:choose_device", ""),  # worker: before any import
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
        "minitransformer.run:RunFolder.save_checkpoint", f"{TRAINING}.trainer:Trainer.save", 2
    ),
    "the end": same_call("torch.distributed:destroy_process_group"),
}


@dataclass(frozen=True)
class SizeLimit:
    """A limit on the size of every file."""

    max_bytes: int

    def __call__(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.max_bytes, self.max_bytes))


@dataclass(frozen=True)
class Delay:
    """A delay before the script starts."""

    seconds: float

    def __call__(self) -> None:
        time.sleep(self.seconds)


class FaultInjector:
    """Counts the changes that a process makes to the disk, and causes the fault at one of them."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.folder = os.path.abspath("runs")
        self.count = 0
        self.is_acting = False
        self.record_fd = -1
        if fault.noted:
            self.record_fd = os.open(fault.noted, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.synced = {
            (status.st_dev, status.st_ino): status.st_size
            for status in map(os.stat, files_below(self.folder))
        }

    def install(self) -> None:
        sys.addaudithook(self.audit)
        os.fsync = self.fsync
        io.open = builtins.open = self.open  # type: ignore[assignment]

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an audit event, which precedes the change that it reports."""
        if event == "open":
            path, _, flags = arguments
            if flags & WRITING and not isinstance(path, int):
                self.on_change("open", full_path(path))
        elif event in CHANGES:
            folder = arguments[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1
            self.on_change(event.removeprefix("os."), full_path(arguments[0], folder))

    def open(self, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None,
             errors: Any = None, newline: Any = None, closefd: bool = True,
             opener: Any = None) -> Any:  # fmt: skip
        """Open files that are written below the folder as CountedFile."""
        is_other = isinstance(file, int) or opener or not set(mode) & set("wax+")
        if is_other or not self.is_inside(full_path(file)):
            return original_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = CountedFile(self, os.fspath(file), mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def fsync(self, handle: int) -> None:
        path = full_path(handle)
        self.on_change("fsync", path)
        original_fsync(handle)
        if self.is_inside(path):
            status = os.fstat(handle)
            self.synced[status.st_dev, status.st_ino] = status.st_size

    def is_inside(self, path: str) -> bool:
        return path == self.folder or path.startswith(self.folder + os.sep)

    def on_change(
        self, kind: str, path: str, write_half: Callable[[], object] | None = None
    ) -> None:
        """Handle a change before it happens; `write_half` writes half of the content."""
        if self.is_acting or not self.is_inside(path):
            return
        self.count += 1
        if self.record_fd >= 0:
            os.write(self.record_fd, f"{kind} {os.path.relpath(path, self.folder)}\n".encode())
        how, is_now = self.fault.how, self.count == self.fault.at
        if how == "disk full" and 0 < self.fault.at <= self.count and write_half:
            write_half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if is_now and how in ("kill", "tear", "power cut"):
            self.is_acting = True
            if how == "tear" and write_half:
                write_half()
            if how == "power cut":
                self.truncate_to_synced()
            kill_self()
        name, _, twice = how.partition(" ")
        if name in SIGNALS and (is_now or (twice and self.count == self.fault.at + 1)):
            os.kill(os.getpid(), SIGNALS[name])

    def truncate_to_synced(self) -> None:
        """Cut each file to its length at its last fsync, as a power cut may."""
        for path in files_below(self.folder):
            status = os.stat(path)
            length = self.synced.get((status.st_dev, status.st_ino), 0)
            if status.st_size > length:
                os.truncate(path, length)


class CountedFile(io.FileIO):
    """A file whose writes are counted as changes."""

    def __init__(self, injector: FaultInjector, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self.injector = injector

    def write(self, content: Any) -> int:
        half = bytes(content)[: len(bytes(content)) // 2]
        write = super().write
        self.injector.on_change("write", full_path(self.name), lambda: write(half))
        return write(content)


def full_path(path: Any, folder: Any = -1) -> str:
    """Return the absolute path of a file, of a file in an open folder, or of a file descriptor."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    if isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    return os.path.abspath(os.fsdecode(path))


def files_below(folder: str) -> list[str]:
    return [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]


def kill_self() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL has no effect")
