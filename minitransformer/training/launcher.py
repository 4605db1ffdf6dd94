"""The worker processes of `training.processes`: started by rank 0, and supervised until it ends.

A worker runs the same command as rank 0. Rank 0 waits for each worker in a thread, and each worker
waits in a thread for a pipe that rank 0 alone holds open. The end of one process thus ends all of
them, whatever they are doing; gloo does not notice it in every phase (while connections are being
made, for one) and would wait until its timeout.

torch.distributed.elastic supervises workers, too, but it must load torch (1.8 s) before the first
worker can start to do the same; this module needs none of it, and all processes load torch at once.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

from minitransformer.errors import UsageError, UserError
from minitransformer.terminal import say

MAX_PROCESSES_PER_CORE = 8
WORKER = "MINITRANSFORMER_WORKER"  # set in the environment of our own workers, not of torchrun's
GRACE = 20  # seconds in which rank 0 reports an error that its workers have, too


def launched_processes() -> int:
    """Return the number of processes that a launcher has started for this run; 1 without one."""
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys() or os.environ["WORLD_SIZE"] == "1":
        return 1
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        text = os.environ.get(name, "")
        if not text.isdecimal():
            raise UsageError(f"{name}: a launcher sets it to a number, got '{text}'")
        numbers[name] = int(text)
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise UsageError(f"RANK is {numbers['RANK']}, of WORLD_SIZE {numbers['WORLD_SIZE']}")
    silence_torch()
    return numbers["WORLD_SIZE"]


def silence_torch() -> None:
    """Leave errors of the connections to our own messages; read when torch is loaded."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def is_worker() -> bool:
    return WORKER in os.environ


class Workers:
    """Ranks 1 and up of a run, as children of this process, which is rank 0."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listening.getsockname()
        # Workers read the end of this pipe when nobody holds the other side any more, and only rank
        # 0 does. (PR_SET_PDEATHSIG would follow the thread that started them, not the process.)
        self.read_end, self.write_end = os.pipe()
        self.children: list[subprocess.Popen[bytes]] = []
        self.before_exit: Callable[[], None] = lambda: None
        self.ending = threading.Lock()  # held by whichever thread ends the workers
        self.is_closed = False

    def start(self, command: list[str]) -> None:
        """Start and watch all workers, each with its rank and the address of rank 0."""
        silence_torch()
        # By its name, a machine may be reachable through a network card that is down.
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback
        host, port = self.address
        known = {"WORLD_SIZE": self.world_size, "MASTER_ADDR": host, "MASTER_PORT": port, WORKER: 1}
        with interrupts_blocked():
            for rank in range(1, self.world_size):
                values = known | {"RANK": rank, "LOCAL_RANK": rank}
                environment = os.environ | {key: str(value) for key, value in values.items()}
                self.children.append(
                    subprocess.Popen(command, stdin=self.read_end, env=environment)
                )
        for rank, child in enumerate(self.children, start=1):
            threading.Thread(target=self.watch, args=(rank, child), daemon=True).start()

    def watch(self, rank: int, child: "subprocess.Popen[bytes]") -> None:
        """End this process when a worker ends: no worker does before `close`.

        The main thread may be inside a collective that never returns, so no exception reaches it.
        """
        code = child.wait()
        with self.ending:
            if self.is_closed:
                return
            self.kill()
            bar = "\r\x1b[K" if sys.stderr.isatty() else ""  # clears a progress bar
            how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
            try:
                say(
                    f"{bar}error: rank {rank} of {self.world_size} ended with {how}; "
                    "the same command continues from the last checkpoint"
                )
                self.before_exit()
                sys.stdout.flush()
            finally:
                os._exit(1)

    def kill(self) -> None:
        for child in self.children:
            child.kill()  # they write no files, and one that is stopped ends, too
            child.wait()

    def close(self) -> None:
        """End the workers: rank 0 needs them no more."""
        with self.ending:
            self.is_closed = True
            self.kill()
        self.listening.close()
        os.close(self.read_end)
        os.close(self.write_end)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Start processes that Ctrl-C, which a terminal sends to all of them, does not reach.

    Rank 0 decides what to do about it; the signal mask is inherited, so there is no early moment
    at which a worker could be interrupted.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def end_with_parent() -> Iterator[None]:
    """Run a worker's part: it ends when rank 0 ends, at once, and not before it."""

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written: it returns when rank 0 is gone
        os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except UserError:
        watcher.join(GRACE)
        raise  # rank 0 has not reported it
    watcher.join()  # a worker that ended now might be taken for one that was lost


@contextlib.contextmanager
def launch_workers(processes: int, command: list[str]) -> Iterator[Workers | None]:
    """Start the workers of a run for a while; None where this process is not to start any."""
    if is_worker():
        with end_with_parent():
            yield None
        return
    if processes == 1 or launched_processes() > 1:
        yield None
        return
    most = MAX_PROCESSES_PER_CORE * (os.cpu_count() or 1)
    if processes > most:
        raise UsageError(f"training.processes: {processes}, must be at most {most} on this machine")
    workers = Workers(processes)
    try:
        workers.start(command)
        yield workers
    finally:
        workers.close()
