"""A sheet's matrices as the weights of a Transformer, and a run's tensors for a sheet."""

import re
from pathlib import Path

import torch
from torch import Tensor

from minitransformer.checkpoint import copy_into, model_tensors
from minitransformer.data.tokenizer import EOS_ID, PAD_ID, SPECIALS, UNK_ID
from minitransformer.errors import CheckpointError, DataError, SheetError
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.model.trace import record
from minitransformer.settings import ModelConfig
from minitransformer.translator import Translator
from minitransformer.worked.formulas import evaluate, matrix, read_formula
from minitransformer.worked.sheet import Sheet, SheetRun

TENSOR_PATH = re.compile(r"([\w.]+?)(?:\[(\d+)(?:,(\d+))?\])?")


def sheet_weights(sheet: Sheet) -> dict[str, Tensor]:
    """Return the tensors that a sheet prints, by their names in a Transformer; in float64."""
    model = sheet.model
    if model is None:
        raise SheetError(f"{sheet.where}: the sheet has no model, so there are no weights to write")

    def evaluated(formula: str, name: str) -> Tensor:
        where = f"{sheet.where}: model: {name}"
        return evaluate(read_formula(formula, where), sheet.given, where)

    tensors = {name: evaluated(formula, name) for name, formula in model.weights.items()}
    start = evaluated(model.start, "start")
    if len(start) != 1:
        raise SheetError(f"{sheet.where}: model: start: expected one vector, got {len(start)}")
    for side, stack, embeddings in (
        ("source", "encoder", model.source), ("target", "decoder", model.target),
    ):  # fmt: skip
        words = [evaluated(formula, f"{side}: {word}") for word, formula in embeddings.items()]
        if any(word.shape != start.shape for word in words):
            raise SheetError(
                f"{sheet.where}: model: {side}: the vectors must be as wide as the start's"
            )
        specials = torch.zeros(len(SPECIALS), start.shape[1], dtype=torch.float64)
        if side == "target":
            specials[EOS_ID] = start
        tensors[f"{stack}.embedding.weight"] = torch.cat((specials, *words))  # [V, D]
    return tensors


@torch.no_grad()
def trace_sheet(sheet: Sheet) -> dict[str, Tensor]:
    """Record every tensor of one pass over the sheet's sentence, its target shifted by <EOS>."""
    model = build_sheet_model(sheet)
    assert sheet.model is not None
    first = len(SPECIALS)
    source = torch.tensor([range(first, first + len(sheet.model.source))])  # [1, S]
    target = torch.tensor([[EOS_ID, *range(first, first + len(sheet.model.target))]])  # [1, T]
    with record(model) as tensors:
        model(source, target)
    return tensors


def build_sheet_model(sheet: Sheet) -> EncoderDecoder:
    """Build a sheet's Transformer in float64; its head is random, since sheets print none."""
    weights = sheet_weights(sheet)
    config = ModelConfig(
        d_model=weights["encoder.embedding.weight"].shape[1],
        positional_encoding="learned",
        max_length=len(weights.get("encoder.embedding.positions.table", torch.zeros(1))),
        scale_scores=False,
    )
    source_size, target_size = (
        len(weights[f"{side}.embedding.weight"]) for side in ("encoder", "decoder")
    )
    model = build_model(config, source_size, target_size, PAD_ID).double()
    targets = {
        name: tensor
        for name, tensor in model_tensors(model).items()
        if not name.startswith("head.")
    }
    if missing := sorted(targets.keys() - weights.keys()):
        raise SheetError(f"{sheet.where}: model: lacks the tensor '{missing[0]}'")
    try:
        copy_into(targets, weights, f"{sheet.where}: model")
    except CheckpointError as error:
        raise SheetError(str(error)) from None
    return model.eval()


def run_tensors(sheet: Sheet, folder: Path | None) -> dict[str, Tensor] | None:
    """Return the tensors that a procedure names; None without a run, or for a sheet of numbers."""
    if sheet.run is None:
        if folder is not None:
            raise DataError(f"{sheet.name} has its own numbers: it needs no --run")
        return None
    default = Path("runs") / Path(sheet.run.config).stem
    if folder is None and not default.exists():
        return None
    return trace_run(sheet.run, folder or default, f"{sheet.where}: run")


@torch.no_grad()
def trace_run(run: SheetRun, folder: Path, where: str) -> dict[str, Tensor]:
    """Record one pass of a run over the sheet's sentence, its target shifted, in float64."""
    translator = Translator.load(folder)
    model, tokenizer = translator.model.double().eval(), translator.tokenizer
    source = tokenizer.encode_source(run.source).ids
    expected = tokenizer.encode_target(run.target).ids
    if UNK_ID in (*source, *expected):
        raise DataError(f"{folder} does not know the words of “{run.source} → {run.target}”")
    source_ids = torch.tensor([source])  # [1, S]
    target = torch.tensor([[tokenizer.start_id, *expected[:-1]]])  # [1, T]
    with record(model) as tensors:
        model(source_ids, target)
    recorded = {**tensors, **model_tensors(model)}
    named = {name: select_tensor(recorded, path, where) for name, path in run.tensors.items()}
    memory = model.encode(source_ids)
    cache = model.new_cache(memory)
    one_by_one = [model.decode(target[:, [step]], memory, cache) for step in range(target.shape[1])]
    return {**named, "one_by_one": torch.cat(one_by_one)[:, 0], "expected": matrix(expected),
            "source_ids": matrix(source)}  # fmt: skip


def select_tensor(tensors: dict[str, Tensor], path: str, where: str) -> Tensor:
    """Return a tensor, a row such as encoder.output[2], or a cell such as …scores[2,1].

    Rows and columns count from 1.
    """
    match = TENSOR_PATH.fullmatch(path)
    if match is None or match[1] not in tensors:
        raise SheetError(f"{where}: traced: the model has no tensor '{path}'")
    values = tensors[match[1]]
    if values.dim() < 2 or values.shape[:-2].numel() != 1:
        raise SheetError(f"{where}: traced: {match[1]} is {tuple(values.shape)}, not a matrix")
    values = values.reshape(values.shape[-2:])  # one sentence, one head
    if match[2]:
        values = values[int(match[2]) - 1 : int(match[2])]
    if match[3]:
        values = values[:, int(match[3]) - 1 : int(match[3])]
    return values
