"""What a trained run computes for a sheet that is a procedure: every tensor of one sentence."""

from pathlib import Path

import torch
from torch import Tensor

from minitransformer.data.tokens import UNK_ID
from minitransformer.decoding import Translator
from minitransformer.errors import DataError
from minitransformer.explain.worked.matrices import matrix
from minitransformer.explain.worked.sheet import Sheet
from minitransformer.explain.worked.sheet_model import traced
from minitransformer.model.trace import record
from minitransformer.weights import model_tensors


def tensors_for(sheet: Sheet, run: Path | None) -> dict[str, Tensor] | None:
    """The tensors that a procedure names; None without a run, or for a sheet of numbers."""
    if not sheet.run:
        if run is not None:
            raise DataError(f"{sheet.name} has its own numbers: it needs no --run")
        return None
    usual = Path("runs") / Path(sheet.run["config"]).stem
    if run is None and not usual.exists():
        return None
    return run_tensors(sheet, run or usual)


@torch.no_grad()
def run_tensors(sheet: Sheet, run: Path) -> dict[str, Tensor]:
    """One pass over the sheet's sentence, its target shifted behind <EOS>, in float64."""
    translator = Translator.load(run)
    model, tokenizer = translator.model.double().eval(), translator.tokenizer
    source = tokenizer.encode_source(sheet.run["source"])
    produced = tokenizer.encode_target(sheet.run["target"]).ids
    if UNK_ID in (*source.ids, *produced):
        sentence = f"{sheet.run['source']} → {sheet.run['target']}"
        raise DataError(f"{run}: does not know the words of “{sentence}”")
    target = torch.tensor([[tokenizer.start_id, *produced[:-1]]])  # [1, T]
    with record(model) as tensors:
        model(torch.tensor([source.ids]), target)
    found = {**tensors, **model_tensors(model)}
    named = {
        alias: traced(found, place, f"{sheet.where}: run")
        for alias, place in sheet.run["tensors"].items()
    }
    memory = model.encode(torch.tensor([source.ids]))
    cache = model.new_cache(memory)
    one_by_one = [model.decode(target[:, [step]], memory, cache) for step in range(target.shape[1])]
    return {**named, "one_by_one": torch.cat(one_by_one)[:, 0], "expected": matrix(produced),
            "source_ids": matrix(source.ids)}  # fmt: skip
