"""A sheet's embeddings, positions and matrices as a real Transformer.

B batch, H heads, T length, D d_model, K d_head.
"""

import re
from pathlib import Path

import torch
from torch import Tensor

from minitransformer.data.tokens import EOS_ID, PAD_ID, SPECIALS
from minitransformer.errors import ConfigError
from minitransformer.explain.worked.formulas import SheetError, evaluate, read_formula
from minitransformer.explain.worked.sheet import Sheet
from minitransformer.explain.worked.sheet_reader import SHIPPED, load_shipped
from minitransformer.model.trace import record
from minitransformer.model.transformer import Transformer
from minitransformer.settings import ModelConfig

PLACE = re.compile(r"([\w.]+?)(?:\[(\d+)(?:,(\d+))?\])?")


def sheet_weights(sheet: Sheet) -> dict[str, Tensor]:
    """The tensors that a sheet prints, by the names that they have in a Transformer."""
    model = sheet.model
    tensors = {}
    for name, formula in model["weights"].items():
        where = f"{sheet.where}: model: {name}"
        tensors[name] = evaluate(read_formula(formula, where), sheet.given, where)
    for side in ("source", "target"):
        words = model[side]  # {"Let's": lets, …}
        rows = torch.zeros(len(SPECIALS) + len(words), int(model["width"]), dtype=torch.float64)
        if side == "target":
            rows[EOS_ID] = sheet.given[model["start"]]
        for place, name in enumerate(words.values(), start=len(SPECIALS)):
            rows[place] = sheet.given[name]
        tensors[f"{'encoder' if side == 'source' else 'decoder'}.embedding.weight"] = rows
    return tensors


def shipped_weights(name: str) -> dict[str, Tensor] | None:
    """A shipped sheet's tensors to start a training from; None where `name` is something else."""
    if name not in SHIPPED or Path(name).exists():
        return None
    sheet = load_shipped(name)
    if not sheet.model:
        raise ConfigError(f"training.start_from: the sheet '{name}' has no weights of a model")
    return {key: tensor.float() for key, tensor in sheet_weights(sheet).items()}


def build_sheet_model(sheet: Sheet) -> Transformer:
    """The Transformer of a sheet, in float64; its dense head is drawn, for sheets print none."""
    tensors = sheet_weights(sheet)
    config = ModelConfig(
        d_model=int(sheet.model["width"]),
        position="learned",
        max_length=len(tensors["encoder.embedding.positions.table"]),
        scale_scores=False,
    )
    model = Transformer.from_config(
        config,
        source_vocab_size=len(tensors["encoder.embedding.weight"]),
        target_vocab_size=len(tensors["decoder.embedding.weight"]),
        pad_id=PAD_ID,
    ).double()
    missing, unknown = model.load_state_dict(tensors, strict=False)
    assert not unknown
    assert all(name.startswith("head.") for name in missing)
    return model.eval()


@torch.no_grad()
def trace_sheet(sheet: Sheet) -> dict[str, Tensor]:
    """Every tensor of one pass over the sheet's sentence, its target shifted behind <EOS>."""
    model = build_sheet_model(sheet)
    first = len(SPECIALS)
    source = torch.tensor([range(first, first + len(sheet.model["source"]))])  # [1, S]
    target = torch.tensor([[EOS_ID, *range(first, first + len(sheet.model["target"]))]])  # [1, T]
    with record(model) as tensors:
        model(source, target)
    return tensors


def traced(tensors: dict[str, Tensor], place: str, where: str) -> Tensor:
    """A row such as encoder.layers.0.self_attention.query[2], or one cell of it, as a matrix."""
    match = PLACE.fullmatch(place)
    if match is None or match[1] not in tensors:
        raise SheetError(f"{where}: traced: the model has no tensor '{place}'")
    values = tensors[match[1]]
    values = values.reshape(values.shape[-2:])  # one sentence, one head
    if match[2]:
        values = values[int(match[2]) - 1 : int(match[2])]
    if match[3]:
        values = values[:, int(match[3]) - 1 : int(match[3])]
    return values
