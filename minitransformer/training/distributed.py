"""Data-parallel training in several processes: how they connect, and what they exchange."""

import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from minitransformer.data.batching import Batch
from minitransformer.data.tokenizer import EOS_ID, PAD_ID
from minitransformer.errors import ProcessError, UsageError, UserError
from minitransformer.model.loss import TrainingLoss
from minitransformer.training.launcher import GRACE, Workers, launched_processes

LOADING_TIMEOUT = timedelta(days=1)  # others wait while rank 0 reads a corpus of any size
WATCHER_SECONDS = 2 * GRACE  # in which the watcher of a worker that has ended ends this process


class Ranks:
    """This process's rank, and the collectives of all ranks, which do nothing in a single process.

    Objects are sent as bytes, as torch's own collectives for objects would pickle them.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size

    @property
    def is_first(self) -> bool:
        """Rank 0 alone reads and writes the run folder, and prints."""
        return self.rank == 0

    def set_timeout(self, seconds: float) -> None:
        """Make collectives fail after waiting this long for another rank."""
        if self.world_size > 1:
            _set_pg_timeout(timedelta(seconds=seconds))

    def wrap(self, training_loss: TrainingLoss) -> nn.Module:
        """Return a module that starts with rank 0's weights and averages gradients over ranks."""
        if self.world_size == 1:
            return training_loss
        with warnings.catch_warnings():
            # The newer name of `broadcast_buffers` is unknown to some versions that work as well.
            warnings.simplefilter("ignore", FutureWarning)
            wrapped = DistributedDataParallel(
                training_loss, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        # It reorders the gradients after its first backward pass. Sums over three and more ranks
        # depend on that order, and a resumed run must not differ from an uninterrupted one: the
        # first pass is one without labels.
        id, no_label = torch.tensor([[EOS_ID]]), torch.tensor([[PAD_ID]])
        batch = Batch(id, id, no_label).to(next(training_loss.parameters()).device)
        wrapped(*batch).objective.backward()
        wrapped.zero_grad()
        return wrapped

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Accumulate gradients on this rank, without averaging them over ranks yet."""
        if isinstance(module, DistributedDataParallel):
            return module.no_sync()
        return nullcontext()

    def all_reduce_sum(self, *values: float) -> list[float]:
        """Return each value, summed over all ranks."""
        if self.world_size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        totals: list[float] = sums.tolist()
        return totals

    def all_reduce_max(self, value: int) -> int:
        """Return the maximum over all ranks."""
        if self.world_size == 1:
            return value
        maximum = torch.tensor(value)
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
        return int(maximum)

    def broadcast(self, content: bytes) -> bytes:
        """Return the bytes of rank 0 on every rank."""
        if self.world_size == 1:
            return content
        length = torch.tensor(len(content))
        dist.broadcast(length, src=0)
        buffer = to_tensor(content, int(length))
        dist.broadcast(buffer, src=0)
        return buffer.numpy().tobytes()

    def gather(self, content: bytes) -> list[bytes]:
        """Return the bytes of each rank, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [content]
        lengths = [torch.tensor(0) for _ in range(self.world_size)]
        dist.all_gather(lengths, torch.tensor(len(content)))
        longest = int(max(lengths))
        buffers = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
        dist.all_gather(buffers, to_tensor(content, longest))
        return [
            buffer[: int(length)].numpy().tobytes()
            for buffer, length in zip(buffers, lengths, strict=True)
        ]

    @contextmanager
    def propagate_errors(self) -> Iterator[None]:
        """Re-raise an error of any rank on every rank."""
        if self.world_size == 1:
            yield
            return
        own: UserError | OSError | None = None
        try:
            yield
        except (UserError, OSError) as error:
            own = error
        exit_code = own.exit_code if isinstance(own, UserError) else 1
        messages = self.gather(json.dumps([str(own), exit_code]).encode() if own else b"")
        if own:
            raise own
        for message in filter(None, messages):
            raise ProcessError(*json.loads(message))


def to_tensor(content: bytes, length: int) -> Tensor:
    """Return bytes as a tensor of this length, truncated or padded with zeros."""
    padded = bytearray(content[:length].ljust(length, b"\0"))
    return torch.frombuffer(padded, dtype=torch.uint8) if padded else torch.empty(0).byte()


def set_threads(threads: int, world_size: int) -> None:
    """Use this many threads; 0 leaves it to torch, or divides the cores among several processes."""
    if threads:
        torch.set_num_threads(threads)
    elif world_size > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))


def local_device(device: torch.device, processes: int) -> torch.device:
    """Return the GPU of this process, where several processes share a machine's GPUs."""
    if processes > 1 and device.type == "mps":
        raise UsageError("device mps: several processes need --device cpu or cuda")
    if processes == 1 or device.type != "cuda":
        return device
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    needed = int(os.environ.get("LOCAL_WORLD_SIZE", local_rank + 1))
    if needed > (available := torch.cuda.device_count()):
        raise UsageError(
            f"device cuda: {needed} processes need one each, this machine has {available}"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


@contextmanager
def init_distributed(
    workers: Workers | None, device: torch.device, join_timeout: float
) -> Iterator[Ranks]:
    """Connect to the other processes of the run, if there are any, for the time of a block."""
    if workers is None and launched_processes() == 1:
        yield Ranks()
        return
    try:
        yield connect(workers, device, timedelta(seconds=join_timeout))
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        if workers:
            time.sleep(WATCHER_SECONDS)  # a worker that has ended is reported by its watcher
        reason = str(error).splitlines()[0].partition("] ")[2] or "no connection"  # [file:line] why
        raise ProcessError(
            f"another process of this run is gone or does not answer ({reason}); "
            "the same command continues the run"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def connect(workers: Workers | None, device: torch.device, timeout: timedelta) -> Ranks:
    """Wait for all processes of the run and initialize their process group."""
    store, rank, world_size = open_store(workers, timeout)
    store.set(f"here/{rank}", "")
    deadline = time.monotonic() + timeout.total_seconds()
    keys = {f"here/{each}": str(each) for each in range(world_size)}
    while missing := [number for key, number in keys.items() if not store.check([key])]:
        if time.monotonic() > deadline:
            raise ProcessError(
                f"rank {', '.join(missing)} of {world_size} did not join within "
                f"{timeout.total_seconds():g} seconds (training.join_timeout)"
            )
        time.sleep(0.02)  # and not in store.wait(), which Ctrl-C would not interrupt
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    _set_pg_timeout(LOADING_TIMEOUT)
    return Ranks(rank, world_size)


def open_store(workers: Workers | None, timeout: timedelta) -> tuple[Store, int, int]:
    """Return the store in which the processes find each other, the rank, and the world size."""
    if workers:
        host, port = workers.address
        store = TCPStore(
            host, port, is_master=True, timeout=timeout, wait_for_workers=False,
            master_listen_fd=workers.listening.detach(),
        )  # fmt: skip
        return store, 0, workers.world_size
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store, rank, world_size = next(rendezvous("env://", timeout=timeout))
        is_of_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if not is_of_torchrun or os.environ.get("LOCAL_WORLD_SIZE") != str(world_size):
            return store, rank, world_size  # of several machines, each counts its own restarts
        # torchrun's store outlives its workers, and keeps the addresses of those that have ended.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return PrefixStore(f"attempt-{attempt}", store), rank, world_size
    except (ValueError, OSError) as error:
        raise ProcessError(f"RANK is set, but the processes cannot connect: {error}") from None
    except dist.DistError as error:
        why = str(error).splitlines()[0]
        if "EADDRINUSE" in why or "address already in use" in why.lower():
            why = "the port is taken; choose another MASTER_PORT"
        elif "timed out" in why.lower():
            why = f"not all joined within {timeout.total_seconds():g} seconds"
            why += " (training.join_timeout)"
        raise ProcessError(f"the processes cannot connect at {address}: {why}") from None
