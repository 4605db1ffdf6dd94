"""Compute a batch that stopped a training again: each stage up to the first NaN or Inf."""

from pathlib import Path

from minitransformer.checkpoint import read_tensors, trained_model
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.doctor.report import format_number
from minitransformer.errors import CheckpointError, escape_controls
from minitransformer.model.loss import TrainingLoss
from minitransformer.run import RunFolder
from minitransformer.training.distributed import set_threads
from minitransformer.training.divergence import (
    BATCH_FILE,
    DIVERGED_FOLDER,
    WEIGHTS_FILE,
    NonFiniteReport,
    TensorMaximum,
    locate_nonfinite,
    read_nonfinite_report,
)

MAX_STAGES, MAX_PAIRS = 15, 10  # to be printed: the last stages, the first pairs


def replay(folder: Path) -> int:
    """Print where a saved batch becomes NaN or Inf; return the exit code."""
    if not (folder / BATCH_FILE).exists():
        saved = sorted([*folder.glob("step-*"), *folder.glob(f"{DIVERGED_FOLDER}/step-*")])
        hint = f": did you mean {saved[-1]}?" if saved else ""
        raise CheckpointError(f"{folder} is not a saved batch of a diverged training{hint}")
    report = read_nonfinite_report(folder)
    run = RunFolder(folder.resolve().parent.parent)
    try:
        config = run.load_config()
    except CheckpointError as error:
        raise CheckpointError(f"{folder} must stay inside its run: {error}") from None
    tokenizer = run.load_tokenizer(config)
    refuse_unknown_ids(report, tokenizer, folder)
    weights = read_tensors(folder / WEIGHTS_FILE)
    model = trained_model(config, tokenizer, {str(folder): weights})
    model.train(report.is_training)
    set_threads(config.training.threads, world_size=1)
    nonfinite = locate_nonfinite(
        TrainingLoss(model, config.training), report.batch(), seed=report.seed, scale=report.scale
    )
    activity = "training" if report.is_training else "evaluation"
    print(f"step {report.step}, {activity}: a batch of {len(report.sources)} pairs")
    if nonfinite is None:
        print("all values are finite this time: another machine, or a changed model?")
        return 1
    print_stages(nonfinite.maxima)
    print(f"\nfirst NaN or Inf: {nonfinite.part}")
    count = len(nonfinite.rows)
    print(f"with {count} of the pairs{':' if count <= MAX_PAIRS else ', such as'}")
    for row in nonfinite.rows[:MAX_PAIRS]:
        source = tokenizer.source.decode(report.sources[row])
        target = tokenizer.target.decode(report.targets[row])
        print(f"  {escape_controls(f'{source} → {target}')}")
    return 0


def refuse_unknown_ids(report: NonFiniteReport, tokenizer: PairTokenizer, folder: Path) -> None:
    for rows, side in ((report.sources, tokenizer.source), (report.targets, tokenizer.target)):
        if not all(row and 0 <= min(row) <= max(row) < len(side) for row in rows):
            raise CheckpointError(f"{folder}: has token ids outside the run's vocabulary")
    if report.start_id >= len(tokenizer.target):
        raise CheckpointError(f"{folder}: its start token is outside the run's vocabulary")


def print_stages(maxima: list[TensorMaximum]) -> None:
    """Print the largest value of the last stages, in the order of computation."""
    earlier, last = maxima[:-MAX_STAGES], maxima[-MAX_STAGES:]
    width = max((len(stage.name) for stage in last), default=0)
    if last:
        print(f"\n{'stage':{width}}  largest value")
    if earlier:
        largest = format_number(max(stage.value for stage in earlier))
        print(f"({len(earlier)} earlier ones, at most {largest})")
    for stage in last:
        print(f"{stage.name:{width}}  {format_number(stage.value)}")
