"""Run the commands as real processes, forked from one that has loaded torch."""

import contextlib
import io
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from minitransformer.cli import main
from tests.support.overrides import overrides

ROOT = Path(__file__).parents[2]
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "tests.support.plain_interrupts",
        "minitransformer.explain.tensorboard",
        "minitransformer.cli.console",
        "minitransformer.cli.prompt",
        "torchtext.vocab",
        "tests.support.frozen_heap",
    ]
)


UNKNOWN_EXIT_CODE = 255  # reported by multiprocessing if it could not get the exit code


class Finished(NamedTuple):
    code: int
    out: str
    err: str


class Running:
    """A script, or a command of minitransformer, as a process with its streams in files."""

    def __init__(self, script: str, *arguments: object, folder: Path, stdin: bytes = b"",
                 terminal: str | None = None,
                 sabotage: Callable[[], None] | None = None) -> None:  # fmt: skip
        name = Path(script).name
        self.out, self.err, self.code = (
            folder / f".{name}.{stream}" for stream in ("out", "err", "code")
        )
        self.code.unlink(missing_ok=True)
        for path in (self.out, self.err):  # the process may end before it creates them
            path.write_bytes(b"")
        (folder / f".{name}.in").write_bytes(stdin)
        self.process = context.Process(
            daemon=True,
            target=run_script,
            args=(script, [str(argument) for argument in arguments], folder, terminal, sabotage),
        )
        self.process.start()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.is_alive(), self.err.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.005)

    def finish(self, seconds: float = 120) -> Finished:
        self.process.join(seconds)
        assert self.process.exitcode is not None, "still running"
        out, err = (path.read_bytes().decode("utf-8") for path in (self.out, self.err))
        assert "Traceback" not in err, err
        code = self.process.exitcode
        if code == UNKNOWN_EXIT_CODE and self.code.exists():
            code = int(self.code.read_text())
        return Finished(code, out, err)


def processes_in(folder: Path) -> list[int]:
    """Return the ids of the processes that run in a folder, except zombies."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            is_zombie = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if process.joinpath("cwd").readlink() == folder.resolve() and not is_zombie:
                found.append(int(process.name))
    return found


def wait_until_ended(folder: Path, since: float, seconds: float = 20) -> float:
    """Wait until no process runs in a folder; return the seconds that passed since `since`."""
    while left := processes_in(folder):
        assert time.monotonic() < since + seconds, f"{len(left)} processes are left"
        time.sleep(0.01)
    took = max(0.0, time.monotonic() - since)
    assert took < seconds, f"all processes ended, but after {took:.1f} s"
    return took


def train_command(*settings: str) -> tuple[str, ...]:
    """Return train.py's command line for tiny.yaml with changed settings."""
    return ("train.py", "--config", "tiny.yaml", *overrides(*settings))


def run(script: str, *arguments: object, folder: Path, stdin: bytes = b"") -> Finished:
    return Running(script, *arguments, folder=folder, stdin=stdin).finish()


def run_script(script: str, arguments: list[str], folder: Path, terminal: str | None,
               sabotage: Callable[[], None] | None) -> None:  # fmt: skip
    # Background jobs of a shell ignore SIGINT, and forked processes inherit that. With the default
    # action, Ctrl-C ends the process without a traceback, as it ends train.py during its imports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    multiprocessing.set_start_method("fork", force=True)  # instead of that of the fork server
    os.chdir(folder)
    names = [f".{Path(script).name}.{stream}" for stream in ("in", "out", "err")]
    flags = [os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_TRUNC] * 2]
    for number, (name, flag) in enumerate(zip(names, flags, strict=True)):
        os.dup2(os.open(name, flag, 0o600), number)
    if terminal is not None:
        os.setsid()  # the terminal becomes its controlling terminal, so that Ctrl-C reaches it
        handle = os.open(terminal, os.O_RDWR)
        os.dup2(handle, 0)
        os.dup2(handle, 1)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))  # noqa: SIM115
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, "wb", closefd=False), line_buffering=number == 2)  # noqa: SIM115
        for number in (1, 2)
    )
    is_script = script.endswith(".py")
    sys.argv = [script, *arguments] if is_script else ["minitransformer", script, *arguments]
    if sabotage:
        sabotage()
    try:
        if is_script:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        else:
            sys.exit(main())
    except SystemExit as end:
        Path(f".{Path(script).name}.code").write_text(str(int(end.code or 0)))
        raise
