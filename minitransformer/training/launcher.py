"""The processes of a run: workers that rank 0 starts and supervises, and signals that stop it.

A worker runs the same command as rank 0. Rank 0 waits for each worker in a thread, and each worker
waits in a thread for a pipe that rank 0 alone holds open. The end of one process thus ends all of
them, whatever they are doing; gloo does not notice it in every phase (not while connections are
being made, for one) and would wait until its timeout.

torch.distributed.elastic supervises workers, too, but must load torch (1.8 s) before the first
worker can start to do the same; this module needs no torch, and all processes load it at once.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from minitransformer.errors import UsageError

MAX_PROCESSES_PER_CORE = 8
WORKER_VARIABLE = "MINITRANSFORMER_WORKER"  # set for our own workers, not for torchrun's
GRACE = 5  # seconds in which rank 0 reports an error that all ranks have


def launched_processes() -> int:
    """Return the number of processes that a launcher has started for this run; 1 without one."""
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys() or os.environ["WORLD_SIZE"] == "1":
        return 1
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        text = os.environ.get(name, "")
        if not text.isdecimal():
            raise UsageError(f"the environment variable {name} must be a number, got '{text}'")
        numbers[name] = int(text)
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise UsageError(
            f"RANK must be less than WORLD_SIZE, which is {numbers['WORLD_SIZE']}, "
            f"got {numbers['RANK']}"
        )
    silence_torch()
    return numbers["WORLD_SIZE"]


def silence_torch() -> None:
    """Keep torch, once it is loaded, from logging connection errors, which we report ourselves."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def is_worker() -> bool:
    return WORKER_VARIABLE in os.environ


class Workers:
    """Ranks 1 and up of a run, as children of this process, which is rank 0."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listening.getsockname()
        # Nothing is written to it: workers read its end when rank 0, which alone has the write end,
        # is gone. (PR_SET_PDEATHSIG would follow the thread that started them, not the process.)
        self.read_end, self.write_end = os.pipe()
        self.children: list[subprocess.Popen[bytes]] = []
        self.before_exit: Callable[[], None] = lambda: None
        self.ending = threading.Lock()  # held by whichever thread ends the workers
        self.is_closed = False

    def start(self, command: list[str]) -> None:
        """Start and watch all workers, each with its own rank and the address of rank 0."""
        silence_torch()
        # By its name, a machine may be reachable through a network card that is down.
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback
        os.environ["LOCAL_WORLD_SIZE"] = str(self.world_size)
        host, port = self.address
        known = {"WORLD_SIZE": self.world_size, "MASTER_ADDR": host, "MASTER_PORT": port}
        for rank in range(1, self.world_size):
            values = known | {"RANK": rank, "LOCAL_RANK": rank, WORKER_VARIABLE: 1}
            self.children.append(
                subprocess.Popen(
                    command,
                    stdin=self.read_end,
                    env=os.environ | {key: str(value) for key, value in values.items()},
                    # In a group of its own: Ctrl-C reaches rank 0 alone, which decides for all.
                    process_group=0,
                    creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # Windows
                )
            )
        os.close(self.read_end)
        for rank, child in enumerate(self.children, start=1):
            threading.Thread(target=self.watch, args=(rank, child), daemon=True).start()

    def watch(self, rank: int, child: "subprocess.Popen[bytes]") -> None:
        """End this process when a worker ends, which none does before `close`.

        The main thread may be inside a collective that never returns: no exception would reach it.
        """
        code = child.wait()
        with self.ending:
            if self.is_closed:
                return
            try:
                last_resort = threading.Timer(GRACE, os._exit, (1,))  # stderr may block
                last_resort.daemon = True
                last_resort.start()
                self.kill()
                bar = "\r\x1b[K" if sys.stderr.isatty() else ""  # clears a progress bar
                how = f"ended with exit code {code}"
                if code < 0:
                    how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
                    how += "; the same command continues the run"
                print(f"{bar}error: rank {rank} of {self.world_size} {how}", file=sys.stderr)
                sys.stdout.flush()
                self.before_exit()
            finally:
                os._exit(1)

    def kill(self) -> None:
        for child in self.children:
            child.kill()  # ends a stopped process, too

    def close(self) -> None:
        """Kill the workers, which write no files, and wait for their end."""
        with self.ending:
            self.is_closed = True
        self.kill()
        for child in self.children:
            child.wait()
        self.listening.close()
        os.close(self.write_end)


@contextlib.contextmanager
def end_with_parent() -> Iterator[None]:
    """End this worker as soon as rank 0 ends, and keep it alive until then."""

    def watch() -> None:
        os.read(0, 1)  # the pipe of `Workers`
        os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        watcher.join(GRACE)  # most likely, rank 0 has the same error and is ending
        raise
    watcher.join()


@contextlib.contextmanager
def launch_workers(processes: int, command: list[str]) -> Iterator[Workers | None]:
    """Yield the workers of a run, or None where this process starts none."""
    if is_worker():
        with end_with_parent():
            yield None
        return
    if processes == 1 or launched_processes() > 1:
        yield None
        return
    max_processes = MAX_PROCESSES_PER_CORE * (os.cpu_count() or 1)
    if processes > max_processes:
        raise UsageError(
            f"training.processes must be at most {max_processes} on this machine, got {processes}"
        )
    workers = Workers(processes)
    try:
        workers.start(command)
        yield workers
    finally:
        workers.close()


EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopSignals:
    """Record the first SIGINT or SIGTERM within a block; let a second one end the process."""

    def __init__(self) -> None:
        self.exit_code = 0

    def __enter__(self) -> "StopSignals":
        self.previous = {number: signal.signal(number, self.record) for number in EXIT_CODES}
        # It gets a byte for each signal; Windows has no pipes that do not block, but sockets.
        self.read_end, self.write_end = socket.socketpair()
        self.write_end.setblocking(False)
        self.previous_fd = signal.set_wakeup_fd(self.write_end.fileno())
        threading.Thread(target=self.end_if_stuck, daemon=True).start()
        return self

    def record(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = EXIT_CODES[signal.Signals(number)]
        for each in EXIT_CODES:
            signal.signal(each, signal.SIG_DFL)

    def end_if_stuck(self) -> None:
        """End the process at the second signal if the main thread has not noticed the first.

        Python calls `record` when the main thread returns from a collective, which it does not
        while another process is frozen.
        """
        for _ in range(2):
            received = self.read_end.recv(1)
        if received:
            time.sleep(1)
            if not self.exit_code:
                os._exit(128 + received[0])
        self.read_end.close()

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self.previous_fd)
        self.write_end.close()
        for number, handler in self.previous.items():
            signal.signal(number, handler)
