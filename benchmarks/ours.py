"""Train this project's model at a benchmark's size, in one process or several."""

import contextlib
import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy
import torch

from benchmarks.workload import MAX_LENGTH, ORDER_SEED, VOCAB_SIZE, Size, corpus
from minitransformer.data.batching import BatchStream, fold_in
from minitransformer.data.dataset import EncodedSplit, Sentences
from minitransformer.data.tokenizer import BOS_ID, PAD_ID
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.model.loss import TrainingLoss
from minitransformer.settings import ModelConfig, TrainingConfig
from minitransformer.training.distributed import Ranks, init_distributed
from minitransformer.training.optimizer import AdamW

TRAINING = TrainingConfig(label_smoothing=0.1, learning_rate=5e-4, weight_decay=0.0)
INIT_TIMEOUT = 120.0  # seconds


def model_config(size: Size, inner_dropout: float = 0.0) -> ModelConfig:
    """Return a pre-norm model with biases, whose embeddings and head share one matrix."""
    return ModelConfig(
        d_model=size.d_model, num_heads=size.heads, d_ff=size.d_ff,
        num_encoder_layers=size.layers, num_decoder_layers=size.layers,
        norm="pre", output_projection=True, bias=True, head_bias=False, dropout=0.1,
        self_attention_dropout=inner_dropout, cross_attention_dropout=inner_dropout,
        activation_dropout=inner_dropout,
        tie_embeddings="all", scale_embeddings=True, embedding_std=size.d_model**-0.5,
        decoder_start_token="bos", source_eos=True, max_length=MAX_LENGTH + 2,  # <BOS> and <EOS>
    )  # fmt: skip


def new_model(config: ModelConfig) -> EncoderDecoder:
    """Return a freshly initialised model."""
    return build_model(config, VOCAB_SIZE, VOCAB_SIZE, PAD_ID)


def concatenate(side: list[list[int]]) -> Sentences:
    """Store the token ids of all sentences in one array."""
    ends = numpy.cumsum([len(ids) for ids in side])
    return Sentences(numpy.concatenate([numpy.array(ids) for ids in side]), ends)


class Worker:
    """One rank of a training: it steps on its rows of each batch."""

    def __init__(self, size: Size, ranks: Ranks, inner_dropout: float = 0.0) -> None:
        self.ranks = ranks
        torch.manual_seed(1)
        self.model = new_model(model_config(size, inner_dropout))
        self.loss = ranks.wrap(TrainingLoss(self.model.train(), TRAINING))
        self.optimizer = AdamW(self.model, TRAINING)
        pairs = EncodedSplit(*(concatenate(list(side)) for side in zip(*corpus(), strict=True)))
        self.stream = BatchStream(
            pairs, batch_tokens=2000, seed=ORDER_SEED, start_id=BOS_ID,
            rank=ranks.rank, world_size=ranks.world_size,
        )  # fmt: skip
        self.steps = 0

    def train(self, first: int, count: int) -> int:
        """Train on `count` batches of the epoch, and return their number of target tokens."""
        self.stream.index = first
        tokens = 0
        for _ in range(count):
            self.steps += 1
            batch = self.stream.next()
            (num_tokens,) = self.ranks.all_reduce_sum(batch.num_target_tokens)
            torch.manual_seed(fold_in(1, self.steps, self.ranks.rank << 32))
            result = self.loss(*batch)
            (result.objective * (self.ranks.world_size / num_tokens)).backward()
            self.ranks.all_reduce_sum(float(result.loss), int(result.num_right))
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step(TRAINING.learning_rate)
            tokens += int(num_tokens)
            self.ranks.all_reduce_max(0)  # as Trainer does, to agree on stopping
        return tokens


class WorkerPool:
    """Ranks in single-threaded processes, which train on request and sleep in between."""

    def __init__(self, size: Size, processes: int, **options: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.connections = start_processes(
            processes, lambda rank: (run_worker, size, rank, processes, port, options)
        )

    def train(self, first: int, count: int) -> int:
        """Run `Worker.train` on all ranks."""
        return request(self.connections, (first, count))


def start_processes(processes: int, target: Callable[[int], tuple[Any, ...]]) -> list[Connection]:
    """Start processes that call function(connection, *arguments), and wait until all are ready.

    `target` returns the function and the arguments of a rank.
    """
    context = multiprocessing.get_context("spawn")
    connections = []
    for rank in range(processes):
        parent, child = context.Pipe()
        function, *arguments = target(rank)
        context.Process(target=function, args=(child, *arguments), daemon=True).start()
        connections.append(parent)
    for connection in connections:
        connection.recv()
    return connections


def request(connections: list[Connection], message: object) -> Any:
    """Send a message to all processes, wait for all replies, and return that of rank 0."""
    for connection in connections:
        connection.send(message)
    replies = [connection.recv() for connection in connections]
    return replies[0]


def run_worker(
    connection: Connection,
    size: Size,
    rank: int,
    processes: int,
    port: int,
    options: dict[str, float],
) -> None:
    """Join the process group, and train whenever a message asks for it."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    with (
        init_distributed(None, torch.device("cpu"), INIT_TIMEOUT) as ranks,
        contextlib.suppress(EOFError),
    ):
        worker = Worker(size, ranks, **options)
        connection.send("ready")
        while True:  # until the parent's end is closed
            connection.send(worker.train(*connection.recv()))
