"""The other processes of a run on this machine, started before torch is loaded."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

from minitransformer.errors import UsageError

MOST_OF_A_CORE = 8  # processes, of which one is best
PATIENCE = 20  # seconds that a companion has to end by itself


def launched_processes() -> int:
    """How many processes torchrun, or who else, has started of this run; 1: nobody has."""
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
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # what fails is told in our own words
    return numbers["WORLD_SIZE"]


class Companions:
    """Runs of the same command that join this one: `training.processes` without torchrun."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listening.getsockname()
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str]) -> None:
        """Start all others, each with its number and the place to meet."""
        # By its name, a machine may be reachable through a network card that is down.
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback
        host, port = self.address
        for rank in range(1, self.world_size):
            known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.world_size}
            place = {"MASTER_ADDR": host, "MASTER_PORT": port}
            environment = os.environ | {key: str(value) for key, value in (known | place).items()}
            self.children.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
            )

    def fate(self) -> str:
        """What became of the others; who was killed comes before those that merely followed."""
        deadline = time.monotonic() + 1  # a connection ends a moment before its process does
        while time.monotonic() < deadline and not any(each.poll() for each in self.children):
            time.sleep(0.02)
        ended = [(each.poll() or 0, rank) for rank, each in enumerate(self.children, start=1)]
        code, rank = min(ended)
        if code < 0:
            return f"number {rank} of {self.world_size} was ended by {signal.Signals(-code).name}"
        code, rank = max(ended)
        if code > 0:
            return f"number {rank} of {self.world_size} ended with code {code}"
        return "all are still there"

    def end(self, seconds: float) -> None:
        """Wait so long for each of the others; who is there after that is killed."""
        self.listening.close()
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
            child.kill()  # nothing happens to one that has ended
            child.wait()


@contextlib.contextmanager
def companions(processes: int, command: list[str]) -> Iterator[Companions | None]:
    """The others, for a while; None for a run of one process, or of those that torchrun started."""
    if processes == 1 or launched_processes() > 1:
        yield None
        return
    most = MOST_OF_A_CORE * (os.cpu_count() or 1)
    if processes > most:
        raise UsageError(f"training.processes: {processes}, more than {most} help nobody here")
    others = Companions(processes)
    patience = 0  # with a run that did not come to its end, the others need not, either
    try:
        others.start(command)
        yield others
        patience = PATIENCE
    finally:
        others.end(patience)
