"""TensorBoard's Projector: embeddings as points, each with its token."""

from pathlib import Path
from typing import Any

import torch
from google.protobuf import text_format
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig
from torch import Tensor

from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.model.base import EncoderDecoder
from minitransformer.storage import replace_file, replace_folder

FOLDER = "projector"
MOST_POINTS = 10_000  # a browser turns no more of them smoothly


def write_projector(run: Path, model: EncoderDecoder, tokenizer: PairTokenizer) -> None:
    """Write the vectors that tokens have on each side, in place of earlier ones."""
    source, target = model.encoder.embedding.weight, model.decoder.embedding.weight
    sides = {"source": (source, tokenizer.source), "target": (target, tokenizer.target)}
    if source is target:
        sides = {"shared": sides["target"]}
    config = ProjectorConfig()
    files: dict[str, bytes] = {}
    for side, (table, names) in sides.items():
        vectors = table.detach()[:MOST_POINTS]
        tokens = names.tokens[: len(vectors)]
        files[f"{side}.bytes"] = as_bytes(vectors)
        files[f"{side}.tsv"] = metadata(tokens)
        describe(config, side, vectors)
    replace_folder(run / FOLDER, files)
    replace_file(run / "projector_config.pbtxt", text_format.MessageToString(config).encode())


def describe(config: Any, side: str, vectors: Tensor) -> None:
    embedding = config.embeddings.add()
    embedding.tensor_name = f"{side} embeddings"
    embedding.tensor_shape.extend(vectors.shape)
    embedding.tensor_path = f"{FOLDER}/{side}.bytes"
    embedding.metadata_path = f"{FOLDER}/{side}.tsv"


def as_bytes(vectors: Tensor) -> bytes:
    return vectors.to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes()


def metadata(tokens: list[str]) -> bytes:
    """A line per token; whatever it holds, it stays one line and one column."""
    rows = ["token\tid", *(f"{' '.join(token.split())}\t{id}" for id, token in enumerate(tokens))]
    return "\n".join(rows).encode("utf-8") + b"\n"
