"""Training with several ranks computes what one process computes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch

from minitransformer.checkpoint import read_tensors, tensor_bytes
from minitransformer.data.batching import Batch, BatchStream
from minitransformer.data.dataset import EncodedSplit, Sentences
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import ProcessError, UsageError
from minitransformer.model.loss import TrainingLoss
from minitransformer.training.distributed import Ranks, init_distributed, open_store
from minitransformer.training.launcher import launched_processes
from tests.support.processes import ROOT, Running, context, run, train_command
from tests.support.run_results import final_hashes, metrics_without_clock
from tests.support.small_runs import NO_DROPOUT, RECURRENT, trainer_for

SETTINGS = (
    "model.d_model=32", "training.steps=150", "training.batch_tokens=300", "training.save_every=7",
    "evaluation.every=75", "training.join_timeout=30", "logging.tensorboard=false",
)  # fmt: skip


def command(*changes: str) -> tuple[str, ...]:
    return train_command(*SETTINGS, *changes)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def in_processes(world_size: int, function, *arguments: object) -> None:
    """Call function(ranks, *arguments) in `world_size` connected processes."""
    port = free_port()
    processes = [
        context.Process(target=run_rank, args=(rank, world_size, port, function, arguments))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def run_rank(rank: int, world_size: int, port: int, function, arguments) -> None:
    os.environ |= environment(rank, world_size, port)
    torch.set_num_threads(1)
    with init_distributed(None, torch.device("cpu"), 30) as ranks:
        function(ranks, *arguments)


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def write_gradients(ranks: Ranks, folder: Path, changes: tuple[str, ...]) -> None:
    """Write the gradients and losses of the first steps, in double precision."""
    trainer = trainer_for(folder / f"of-{ranks.world_size}-{ranks.rank}", *changes)
    trainer.model.double()
    trainer.stream.rank, trainer.stream.world_size = ranks.rank, ranks.world_size
    trainer.ranks = ranks
    trainer.training_loss = ranks.wrap(TrainingLoss(trainer.model, trainer.config.training))
    found, metrics, num_tokens = {}, [], []
    next_batch = trainer.stream.next

    def counted_batch() -> Batch:
        batch = next_batch()
        num_tokens[-1] += batch.num_target_tokens
        return batch

    def keep_gradients(rate: float) -> None:
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad:
                found[f"{trainer.state.step + 1}.{name}"] = parameter.grad.clone()
        trainer.model.zero_grad()

    trainer.stream.next, trainer.optimizer = counted_batch, SimpleNamespace(step=keep_gradients)
    for _ in range(3):
        num_tokens.append(0)
        report = trainer.step()
        metrics.append((report.loss.total, report.loss.count, report.accuracy.total))
    by_rank = [json.loads(each) for each in ranks.gather(json.dumps(num_tokens).encode())]
    if ranks.is_first:
        name = f"gradients-{ranks.world_size}"
        (folder / f"{name}.safetensors").write_bytes(tensor_bytes(found))
        (folder / f"{name}.json").write_text(
            json.dumps({"metrics": metrics, "num_tokens": by_rank})
        )


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (2, ("training.label_smoothing=0.1",)),
        (
            2,
            (
                "training.gradient_accumulation=3",
                "model.norm=pre",
                "model.d_ff=32",
                "model.bias=true",
            ),
        ),
        (3, ("training.batch_tokens=14", "training.trainable=[decoder, head]")),
        pytest.param(2, (*RECURRENT, "training.gradient_accumulation=3"), marks=pytest.mark.slow),
    ],
    ids=["two", "accumulated", "three, one without sentences", "recurrent"],
)
def test_gradients_of_several_ranks_equal_those_of_one(tmp_path, world_size, changes):
    settings = (*NO_DROPOUT, "training.clip_norm=0", *changes)
    write_gradients(Ranks(), tmp_path, settings)
    in_processes(world_size, write_gradients, tmp_path, settings)
    one, several = (read_tensors(tmp_path / f"gradients-{n}.safetensors") for n in (1, world_size))
    assert one.keys() == several.keys()
    for step in ("1.", "2.", "3."):
        names = [name for name in one if name.startswith(step)]
        length = torch.stack([one[name].norm() for name in names]).norm()
        # Relative to the whole gradient: that of a key's bias is only rounding error.
        for name in names:
            assert float((several[name] - one[name]).norm() / length) <= 1e-12, name
    results = [json.loads((tmp_path / f"gradients-{n}.json").read_text()) for n in (1, world_size)]
    for ours, theirs in zip(results[0]["metrics"], results[1]["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)
    by_rank = results[1]["num_tokens"]
    assert [sum(step) for step in zip(*by_rank, strict=True)] == results[0]["num_tokens"][0]
    # With equal numbers of tokens, the mean of the ranks' means would be right, too.
    assert any(len(set(step)) > 1 for step in zip(*by_rank, strict=True))
    assert any(0 in step for step in by_rank) == (world_size == 3)  # one rank had no sentences


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_batches_are_divided_among_ranks_without_loss(world_size):
    random = numpy.random.RandomState(1)
    sides = [
        Sentences(random.randint(4, 90, size=int(lengths.sum())), lengths.cumsum())
        for lengths in random.randint(1, 9, size=(2, 40))
    ]
    streams = [
        BatchStream(
            EncodedSplit(*sides), batch_tokens=24, seed=1, start_id=2,
            rank=rank, world_size=world_size,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    undivided = BatchStream(EncodedSplit(*sides), batch_tokens=24, seed=1, start_id=2)
    was_empty = False
    for _ in range(len(undivided.order)):
        parts = [stream.next() for stream in streams]
        rows = sorted(
            [source[source != PAD_ID].tolist(), target[target != PAD_ID].tolist()]
            for part in parts
            for source, target in zip(part.source, part.target_output, strict=True)
            if (target != PAD_ID).any()
        )
        batch = undivided.next()
        assert rows == sorted(
            [source[source != PAD_ID].tolist(), target[target != PAD_ID].tolist()]
            for source, target in zip(batch.source, batch.target_output, strict=True)
        )
        was_empty |= any(part.num_target_tokens == 0 for part in parts)
        assert all((part.source != PAD_ID).any() for part in parts)
        assert {(stream.epoch, stream.index) for stream in streams} == {
            (undivided.epoch, undivided.index)
        }
    assert was_empty == any(len(indices) < world_size for indices in undivided.order)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two-ranks")
    finished = run(*command("training.processes=2", "model.dropout=0.1"), folder=folder)
    assert (finished.code, finished.err) == (0, "")
    assert finished.out.count("minitransformer 0") == 1  # only rank 0 prints
    assert "device      cpu, 2 processes of 1 thread" in finished.out
    return folder / "runs/tiny"


@pytest.mark.slow
def test_two_processes_give_the_same_bits_again(two_ranks, tmp_path):
    assert run(*command("training.processes=2", "model.dropout=0.1"), folder=tmp_path).code == 0
    assert final_hashes(tmp_path / "runs/tiny") == final_hashes(two_ranks)
    assert metrics_without_clock(tmp_path / "runs/tiny") == metrics_without_clock(two_ranks)


def children_of(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(each) for each in path.read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc")
@pytest.mark.slow
@pytest.mark.parametrize(("number", "rank"), [(signal.SIGINT, 0), (signal.SIGTERM, 1)])
def test_signal_to_one_rank_stops_all_at_the_same_step(two_ranks, tmp_path, number, rank):
    running = Running(*command("training.processes=2", "model.dropout=0.1"), folder=tmp_path)
    running.wait_until((tmp_path / "runs/tiny/checkpoints/last").exists)
    (worker,) = children_of(running.process.pid)
    os.kill(worker if rank else running.process.pid, number)
    stopped = running.finish()
    assert stopped.code == 128 + number
    assert "saved. The same command continues from there." in stopped.out
    assert run(*command("training.processes=2", "model.dropout=0.1"), folder=tmp_path).code == 0
    assert final_hashes(tmp_path / "runs/tiny") == final_hashes(two_ranks)


@pytest.mark.slow
def test_number_of_processes_may_change_when_resuming(tmp_path):
    folders = [tmp_path / "changing", tmp_path / "single"]
    for folder in folders:
        folder.mkdir()
    for processes, steps in ((2, 50), (1, 100), (2, 150)):
        finished = run(
            *command("training.schedule=constant", "training.learning_rate=1e-3"),
            "--set", f"training.processes={processes}", "--set", f"training.steps={steps}",
            folder=folders[0],
        )  # fmt: skip
        assert finished.code == 0, finished.err
    plain = command("training.schedule=constant", "training.learning_rate=1e-3")
    assert run(*plain, folder=folders[1]).code == 0
    states = []
    for folder in folders:
        path = folder / "runs/tiny/checkpoints/step-000150/state.json"
        states.append(json.loads(path.read_text())["content"]["state"])
    assert states[0]["epoch"] > 1
    for key in ("step", "epoch", "batch_index", "data_fingerprint"):
        assert states[0][key] == states[1][key]
    changing, single = (metrics_without_clock(folder / "runs/tiny") for folder in folders)
    losses = {(row["step"], row["split"]): row["loss"] for row in single}
    compared = [(row, losses[row["step"], row["split"]]) for row in changing
                if (row["step"], row["split"]) in losses]  # fmt: skip
    assert {row["step"] for row, _ in compared} >= {0, 75, 150}
    for row, loss in compared:
        assert row["loss"] == pytest.approx(loss, rel=1e-4)
    at_start = [[row for row in rows if row["step"] == 0] for rows in (changing, single)]
    assert at_start[0] == at_start[1]  # distributed evaluation changes no bit


def start_rank(rank: int, port: int, folder: Path, *changes: str) -> subprocess.Popen:
    script, *arguments = command(*changes)
    return subprocess.Popen(
        [sys.executable, ROOT / script, *arguments],
        env=os.environ | environment(rank, 2, port) | {"LOCAL_RANK": "0"},
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_missing_rank_is_named_within_the_timeout(tmp_path):
    process = start_rank(0, free_port(), tmp_path, "training.join_timeout=2")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "within 2 seconds (training.join_timeout)" in err


@pytest.mark.slow
def test_missing_rank_0_is_reported_within_the_timeout(tmp_path):
    process = start_rank(1, free_port(), tmp_path, "training.join_timeout=2")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.startswith("error: the processes cannot connect at 127.0.0.1:")
    assert err.count("\n") == 1


def join_and_end(rank: int, port: int) -> None:
    """Join as this rank; rank 1 exits before it is connected."""
    os.environ |= environment(rank, 2, port)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    if rank == 1:
        store, _, _ = open_store(None, timedelta(seconds=30))
        store.set("here/1", "")
        os._exit(0)
    with (
        pytest.raises(ProcessError, match="another process of this run is gone or does not answer"),
        init_distributed(None, torch.device("cpu"), 2),
    ):
        raise AssertionError("connected to a rank that has ended")


@pytest.mark.slow
def test_rank_that_ends_before_connecting_is_reported_within_the_timeout():
    port = free_port()
    processes = [context.Process(target=join_and_end, args=(rank, port)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0


def test_busy_port_is_reported(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start_rank(0, port, tmp_path, "training.join_timeout=5")
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err == (
        f"error: the processes cannot connect at 127.0.0.1:{port}: the port is taken; "
        "choose another MASTER_PORT\n"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "x"}, "variable RANK must be a number, got 'x'"),
        ({"RANK": "2"}, "RANK must be less than WORLD_SIZE, which is 2, got 2"),
        ({"MASTER_PORT": "abc"}, "variable MASTER_PORT must be a number, got 'abc'"),
    ],
)
def test_launcher_variables_are_checked(monkeypatch, change, message):
    for name, value in (environment(0, 2, 29500) | change).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        launched_processes()


def test_launcher_of_one_process_counts_as_none(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert launched_processes() == 1
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launched_processes() == 1


def test_different_settings_are_refused_by_all_ranks(tmp_path):
    port = free_port()
    processes = [
        start_rank(rank, port, tmp_path, f"training.seed={seed}") for rank, seed in ((0, 1), (1, 2))
    ]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2
        assert err == (
            "error: the processes of this run have different settings (training.seed: 1 and 2)\n"
        )


def test_missing_corpus_is_reported_once(tmp_path):
    finished = run(
        *command("training.processes=2", "data.train=nowhere.tsv"), folder=tmp_path
    )  # fmt: skip
    assert finished.code == 1
    assert finished.err.count("error: ") == 1
    assert "nowhere.tsv" in finished.err


def by_torchrun(folder: Path, *changes: str, options: tuple[str, ...] = ()) -> subprocess.Popen:
    script, *arguments = command(*changes)
    return subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
            *options, ROOT / script, *arguments,
        ],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_torchrun_gives_the_same_bits(two_ranks, tmp_path):
    process = by_torchrun(tmp_path, "model.dropout=0.1")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("minitransformer 0") == 1
    assert final_hashes(tmp_path / "runs/tiny") == final_hashes(two_ranks)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc")
def test_torchrun_restarts_after_a_kill_to_the_same_bits(two_ranks, tmp_path):
    changes = ("model.dropout=0.1",)
    process = by_torchrun(tmp_path, *changes, options=("--max-restarts=2",))
    deadline = time.monotonic() + 60
    while not (tmp_path / "runs/tiny/checkpoints/last").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(children_of(process.pid)[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Continuing runs/tiny after step" in out
    assert final_hashes(tmp_path / "runs/tiny") == final_hashes(two_ranks)


def join_after(seconds: float, attempt: int, rank: int, port: int) -> None:
    """Join as a worker of torchrun whose store may have served earlier workers."""
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": "2"}
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
    time.sleep(seconds)
    run_rank(rank, 2, port, Ranks.all_reduce_sum, (1.0,))


@pytest.mark.slow
def test_restarted_ranks_ignore_those_that_have_ended():
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for attempt in (0, 1):
        processes = [
            context.Process(target=join_after, args=(seconds, attempt, rank, store.port))
            for rank, seconds in ((0, 0), (1, 2))
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0


@pytest.mark.slow
def test_three_processes_resume_to_the_same_bits(tmp_path):
    changes = ("training.processes=3", "model.dropout=0.1")
    folders = [tmp_path / "uninterrupted", tmp_path / "resumed"]
    for folder in folders:
        folder.mkdir()
    assert run(*command(*changes), folder=folders[0]).code == 0
    running = Running(*command(*changes), folder=folders[1])
    running.wait_until((folders[1] / "runs/tiny/checkpoints/last").exists)
    running.signal(signal.SIGTERM)
    assert running.finish().code == 143
    finished = run(*command(*changes), folder=folders[1])
    assert finished.code == 0
    assert final_hashes(folders[0] / "runs/tiny") == final_hashes(folders[1] / "runs/tiny")
