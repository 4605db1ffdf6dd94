"""A batch that stopped a training, computed once more: every stage up to the first that is none."""

from pathlib import Path

import torch

from minitransformer.checkpoint import read_tensors, trained_model
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.doctor.findings import shown
from minitransformer.errors import CheckpointError, escape_controls
from minitransformer.model.loss import TrainingLoss
from minitransformer.run import RunFolder
from minitransformer.training.divergence import (
    BATCH,
    FOLDER,
    WEIGHTS,
    NonFinite,
    NonFiniteReport,
    locate_nonfinite,
    read_nonfinite_report,
)

STAGES, PAIRS = 15, 10  # that are shown: the last stages, the first pairs


def replay(folder: Path) -> int:
    """Show what happens in a folder that a stopped training has kept; returns the exit code."""
    if not (folder / BATCH).exists():
        kept = sorted([*folder.glob("step-*"), *folder.glob(f"{FOLDER}/step-*")])
        meant = f": did you mean {kept[-1]}?" if kept else ""
        raise CheckpointError(f"{folder} is no batch that a training has kept{meant}")
    incident = read_nonfinite_report(folder)
    run = RunFolder(folder.resolve().parent.parent)
    try:
        config = run.load_config()
    except CheckpointError as error:
        raise CheckpointError(f"{folder} must stay inside its run: {error}") from None
    tokenizer = run.load_tokenizer(config)
    refuse_other_ids(incident, tokenizer, folder)
    weights = read_tensors(folder / WEIGHTS)
    model = trained_model(config, tokenizer, {str(folder): weights})
    model.train(incident.is_training)
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    trouble = locate_nonfinite(
        TrainingLoss(model, config.training), incident.batch(), seed=incident.seed,
        scale=incident.scale,
    )  # fmt: skip
    when = "while training" if incident.is_training else "while eval_mode after it"
    print(f"step {incident.step}, {when}: a batch of {len(incident.sources)} pairs")
    if trouble is None:
        print("all of its numbers are finite this time: another machine, or a changed model?")
        return 1
    for line in stage_lines(trouble):
        print(line)
    print(f"\nfirst not finite: {trouble.part}")
    print(
        f"with {len(trouble.rows)} of the pairs{':' if len(trouble.rows) <= PAIRS else ', such as'}"
    )
    for row in trouble.rows[:PAIRS]:
        source, target = incident.sources[row], incident.targets[row]
        pair = f"{tokenizer.source.decode(source)} → {tokenizer.target.decode(target)}"
        print(f"  {escape_controls(pair)}")
    return 0


def refuse_other_ids(incident: NonFiniteReport, tokenizer: PairTokenizer, folder: Path) -> None:
    for rows, side in ((incident.sources, tokenizer.source), (incident.targets, tokenizer.target)):
        if not all(row and 0 <= min(row) <= max(row) < len(side) for row in rows):
            raise CheckpointError(f"{folder}: has tokens that the run's vocabulary has not")
    if incident.start_id >= len(tokenizer.target):
        raise CheckpointError(f"{folder}: begins with a token that there is not")


def stage_lines(trouble: NonFinite) -> list[str]:
    """The largest value of each stage, in the order of computation."""
    earlier, last = trouble.maxima[:-STAGES], trouble.maxima[-STAGES:]
    width = max((len(stage.name) for stage in last), default=0)
    lines = [f"\n{'stage':{width}}  largest value"] if last else []
    if earlier:
        most = max(stage.value for stage in earlier)
        lines.append(f"({len(earlier)} earlier ones, at most {shown(most)})")
    return lines + [f"{stage.name:{width}}  {shown(stage.value)}" for stage in last]
