"""This project's own model and training step at a benchmark's size, in one process or several."""

import contextlib
import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy
import torch

from benchmarks.workload import LONGEST, ORDER_SEED, VOCABULARY, Size, corpus
from minitransformer.data.batching import BatchStream, fold_in
from minitransformer.data.dataset import EncodedSplit, Sentences
from minitransformer.data.tokenizer import BOS_ID, PAD_ID
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.model.loss import TrainingLoss
from minitransformer.settings import ModelConfig, TrainingConfig
from minitransformer.training.distributed import Ranks, init_distributed
from minitransformer.training.optimizer import AdamW

TRAINING = TrainingConfig(label_smoothing=0.1, learning_rate=5e-4, weight_decay=0.0)
STARTING = 120.0  # seconds; more than a process needs


def model_config(size: Size, dropout_inside: float = 0.0) -> ModelConfig:
    """Pre-norm, biases, one table for both embeddings and the head."""
    return ModelConfig(
        d_model=size.d_model, num_heads=size.heads, d_ff=size.d_ff,
        num_encoder_layers=size.layers, num_decoder_layers=size.layers,
        norm="pre", output_projection=True, bias=True, head_bias=False, dropout=0.1,
        self_attention_dropout=dropout_inside, cross_attention_dropout=dropout_inside,
        activation_dropout=dropout_inside,
        tie_embeddings="all", scale_embeddings=True, embedding_std=size.d_model**-0.5,
        decoder_start_token="bos", source_eos=True, max_length=LONGEST + 2,
    )  # fmt: skip


def new_model(config: ModelConfig) -> EncoderDecoder:
    return build_model(config, VOCABULARY, VOCABULARY, PAD_ID)


def sentences(side: list[list[int]]) -> Sentences:
    ends = numpy.cumsum([len(ids) for ids in side])
    return Sentences(numpy.concatenate([numpy.array(ids) for ids in side]), ends)


class Worker:
    """What one process does of a training: its rows of each batch, and the step."""

    def __init__(self, size: Size, ranks: Ranks, dropout_inside: float = 0.0) -> None:
        self.ranks = ranks
        torch.manual_seed(1)
        self.model = new_model(model_config(size, dropout_inside))
        self.loss = ranks.wrap(TrainingLoss(self.model.train(), TRAINING))
        self.optimizer = AdamW(self.model, TRAINING)
        pairs = EncodedSplit(*(sentences(list(side)) for side in zip(*corpus(), strict=True)))
        self.stream = BatchStream(
            pairs, batch_tokens=2000, seed=ORDER_SEED, start_id=BOS_ID,
            rank=ranks.rank, world_size=ranks.world_size,
        )  # fmt: skip
        self.steps = 0

    def train(self, first: int, count: int) -> int:
        """Learn from so many batches of the epoch; returns their target tokens."""
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
            self.ranks.all_reduce_max(0)  # has anybody been asked to stop?
        return tokens


class Team:
    """Processes of one thread each that work when they are asked, and sleep in between."""

    def __init__(self, size: Size, processes: int, **options: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        self.lines = start(processes, lambda rank: (work, size, rank, processes, port, options))

    def train(self, first: int, count: int) -> int:
        """What `Worker.train` does, all together."""
        return ask(self.lines, (first, count))


def start(processes: int, job: Callable[[int], tuple[Any, ...]]) -> list[Connection]:
    """Processes that call function(line, *arguments), and the lines to them once they are ready."""
    context = multiprocessing.get_context("spawn")
    lines = []
    for rank in range(processes):
        ours, theirs = context.Pipe()
        function, *arguments = job(rank)
        context.Process(target=function, args=(theirs, *arguments), daemon=True).start()
        lines.append(ours)
    for line in lines:
        line.recv()
    return lines


def ask(lines: list[Connection], question: object) -> Any:
    """The first one's answer, when all have answered."""
    for line in lines:
        line.send(question)
    answers = [line.recv() for line in lines]
    return answers[0]


def work(
    line: Connection, size: Size, rank: int, processes: int, port: int, options: dict[str, float]
) -> None:
    """Join the others and train whenever asked."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    with (
        init_distributed(None, torch.device("cpu"), STARTING) as ranks,
        contextlib.suppress(EOFError),
    ):
        worker = Worker(size, ranks, **options)
        line.send("ready")
        while True:  # until nobody holds the other end
            line.send(worker.train(*line.recv()))
