"""The other processes of a run on this machine, started before torch is loaded."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator

PATIENCE = 20  # seconds that a companion has to end by itself


class Companions:
    """Runs of the same command that join this one: `training.processes` without torchrun."""

    def __init__(self, world_size: int, command: list[str]) -> None:
        self.world_size = world_size
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listening.getsockname()
        # By its name, a machine may be reachable through a network card that is down.
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback
        host, port = self.address
        self.children = [
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env=os.environ
                | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
                | {"MASTER_ADDR": host, "MASTER_PORT": str(port)},
            )
            for rank in range(1, world_size)
        ]

    def fate(self) -> str:
        """What became of the others."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.children[0].wait(1)  # the connection ends a moment before the process does
        for rank, child in enumerate(self.children, start=1):
            if child.poll():
                ended = f"ended with code {child.returncode}"
                if child.returncode < 0:
                    ended = f"was ended by {signal.Signals(-child.returncode).name}"
                return f"number {rank} of {self.world_size} {ended}"
        return "all are still there"

    def end(self, seconds: float) -> None:
        """Wait so long for each of the others; who is there after that is killed."""
        for child in self.children:
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextlib.contextmanager
def companions(processes: int, command: list[str]) -> Iterator[Companions | None]:
    """The others, for a while; None for a run of one process, or of those that torchrun started."""
    if processes == 1 or "RANK" in os.environ:
        yield None
        return
    others = Companions(processes, command)
    try:
        yield others
    except BaseException:
        others.end(0)
        raise
    others.end(PATIENCE)
