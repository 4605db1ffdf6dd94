"""The callback that prints a training run to the terminal."""

import shlex
import sys
from typing import Never

from tqdm import tqdm

from minitransformer import __version__
from minitransformer.cli import typed_as
from minitransformer.data.tokenizer import SPECIALS, normalize
from minitransformer.errors import output_errors
from minitransformer.evaluation import Evaluation
from minitransformer.settings import ModelConfig
from minitransformer.training.trainer import Callback, StepMetrics, Trainer

COLUMNS = ("step", "split", "loss", "exact", "teacher-forced", "free-running", "BLEU", "chrF")
TABLE = "{:>7}  {:5}  {:>7}  {:>7}  {:>14}  {:>12}  {:>5}  {:>5}"


class Console(Callback):
    """Print the plan, a progress bar, a table of evaluations and the commands that come next."""

    def __init__(self) -> None:
        self.bar: tqdm[Never] | None = None
        self.latest: dict[str, Evaluation] = {}
        self.example = ""  # a source sentence
        self.steps, self.tokens, self.seconds = 0, 0, 0.0

    @output_errors()
    def on_start(self, trainer: Trainer) -> None:
        self.example = trainer.corpus.train.first(1)[0].source
        print(*describe_run(trainer), sep="\n")
        for note in trainer.notes:
            print(f"note: {note}", file=sys.stderr)
        run, steps = trainer.run_folder.path, trainer.config.training.steps
        if trainer.is_finished:
            if trainer.has_other_settings:
                print("note: a finished run keeps its settings", file=sys.stderr)
            print(f"\n{run} is finished: {describe_end(trainer)}.")
            return
        if trainer.state.step:
            print(f"\nContinuing {run} after step {trainer.state.step} of {steps}.")
        print("\n" + TABLE.format(*COLUMNS), flush=True)
        self.bar = tqdm(
            total=steps,
            initial=trainer.state.step,
            unit="step",
            leave=False,
            disable=not sys.stderr.isatty(),
        )

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        assert self.bar is not None
        self.steps += 1
        self.tokens += metrics.loss.count
        self.seconds += metrics.seconds
        if not self.bar.disable:
            self.bar.set_postfix_str(
                f"loss {metrics.loss.mean:.3f}, "
                f"{metrics.loss.count / metrics.seconds:,.0f} tokens/s, "
                f"rate {metrics.learning_rate:.2g}",
                refresh=False,
            )
        self.bar.update()

    @output_errors()
    def on_evaluation(self, trainer: Trainer, evaluations: dict[str, Evaluation]) -> None:
        self.latest = evaluations
        for name, evaluation in evaluations.items():
            row = evaluation.row()
            line = TABLE.format(
                trainer.state.step,
                name,
                f"{row['loss']:.4f}",
                f"{row['exact_match']:.1%}",
                f"{row['accuracy_teacher_forced']:.1%}",
                f"{row['accuracy_free_running']:.1%}",
                "-" if row["bleu"] is None else f"{row['bleu']:.1f}",
                f"{row['chrf']:.1f}",
            )
            if self.bar is None or self.bar.disable:
                print(line, flush=True)
            else:
                self.bar.write(line)

    @output_errors()
    def on_end(self, trainer: Trainer, exit_code: int) -> None:
        if self.bar is not None:
            self.bar.close()
        if exit_code:
            step = trainer.state.step
            state = f"after step {step}, saved" if step else "before the first step"
            print(f"\nStopped {state}. The same command continues from there.")
            return
        if self.latest:
            lines = describe_samples(self.latest, trainer.config.evaluation.samples)
            print(*lines, *describe_scores(self.latest, trainer), sep="\n")
            print(
                f"  {self.steps} steps took {self.seconds:.1f} s, "
                f"{self.tokens / self.seconds:,.0f} target tokens a second"
            )
            if trainer.has_lost_patience:
                print(f"  {describe_end(trainer)}")
            if weights := describe_weights(trainer):
                print(f"  (of the last step; translations use {weights})")
        print(*next_commands(trainer, self.example), sep="\n")


def describe_run(trainer: Trainer) -> list[str]:
    """Return what the run will do, with every sentence pair accounted for."""
    training, world_size = trainer.config.training, trainer.ranks.world_size
    parameters = sum(each.numel() for each in trainer.model.parameters())
    trained = sum(each.numel() for each in trainer.model.parameters() if each.requires_grad)
    only = f", {trained:,} of them trained" if trained < parameters else ""
    accumulated = training.gradient_accumulation
    times = f" × {accumulated}" if accumulated > 1 else ""
    batches = len(trainer.stream.order)
    workers = [f"{world_size} processes"] if world_size > 1 else []
    if training.threads:
        workers.append(f"{training.threads} thread{'s' * (training.threads > 1)}")
    device = [trainer.device.type, " of ".join(workers)]
    if training.precision == "bf16":
        device.append("bf16")
    return [
        f"minitransformer {__version__}",
        f"run         {trainer.run_folder.path}",
        f"corpus      {trainer.corpus.name}",
        *describe_splits(trainer),
        f"vocabulary  {describe_vocabulary(trainer)}",
        f"model       {describe_model(trainer.config.model)}",
        f"parameters  {parameters:,}{only}",
        f"training    {training.steps:,} steps of at most {training.batch_tokens:,} tokens{times} "
        f"({batches:,} batch{'es' * (batches > 1)} an epoch), seed {training.seed}",
        f"device      {', '.join(filter(None, device))}",
    ]


def describe_model(model: ModelConfig) -> str:
    """Describe a model in one line."""
    layers = f"{model.num_encoder_layers}+{model.num_decoder_layers} layers"
    if model.kind == "recurrent":
        bidirectional = ", bidirectional" * model.bidirectional
        projection = " with W_O" * (model.attention != "none" and model.output_projection)
        return (
            f"recurrent: {layers} of {model.cell.upper()}{bidirectional}, {model.d_model} wide, "
            f"attention {model.attention}{projection}, position {model.positional_encoding}"
        )
    return (
        f"{layers}, {model.d_model} wide, {model.num_heads} head{'s' * (model.num_heads > 1)}, "
        f"norm {model.norm}, feed-forward {model.d_ff or 'none'}, "
        f"position {model.positional_encoding}"
    )


def describe_splits(trainer: Trainer) -> list[str]:
    """Return how many pairs each split has, and what is wrong with its rows."""
    lines = []
    for name in ("train", "valid", "test"):
        if split := trainer.corpus.splits.get(name):
            pairs = f"{len(split):,} pair{'s' * (len(split) != 1)} kept"
            dropped = f"{split.report.dropped:,} dropped{split.report.set_aside}"
            lines.append(f"  {name:9} {pairs}, {dropped}")
            lines += [f"            {line}" for line in split.report.lines()]
        elif name == "valid":
            lines.append(f"  {name:9} none")
    return lines


def describe_vocabulary(trainer: Trainer) -> str:
    tokenizer = trainer.tokenizer
    name = tokenizer.source.token_name
    sizes = [len(side) - len(SPECIALS) for side in (tokenizer.source, tokenizer.target)]
    if tokenizer.is_joint:
        return f"{sizes[0]:,} {name}s for both languages, and {' '.join(SPECIALS)}"
    return (
        f"{sizes[0]:,} source {name}s, {sizes[1]:,} target {name}s, "
        f"and on each side {' '.join(SPECIALS)}"
    )


def describe_end(trainer: Trainer) -> str:
    """Return why a finished run has ended."""
    state, metric = trainer.state, trainer.config.evaluation.best_metric
    if not trainer.has_lost_patience:
        steps = trainer.config.training.steps
        more = f", and training.steps is {steps}" * (state.step > steps)
        return f"it has taken {'its ' * (not more)}{state.step} steps{more}"
    return f"stopped early at step {state.step}: no better {metric} since step {state.best_step}"


def describe_weights(trainer: Trainer) -> str:
    """Describe the weights that a run translates with, unless they are those of its last step."""
    if (count := trainer.config.evaluation.average_checkpoints) > 1:
        return f"the mean of the last {count} checkpoints"
    best = trainer.state.best_step
    return "" if best in (None, trainer.state.step) else f"the best one, step {best}"


def describe_samples(evaluations: dict[str, Evaluation], count: int) -> list[str]:
    """Return some translations of each split, wrong ones first."""
    lines = []
    for name, evaluation in evaluations.items():
        wrong_first = sorted(evaluation.samples, key=lambda sample: sample.is_exact)
        if count:
            lines.append(f"\nSamples from {name}:")
        for sample in wrong_first[:count]:
            is_same = sample.translation == normalize(sample.reference)
            expected = "" if is_same else f"   (expected: {sample.reference})"
            lines.append(f"  {sample.source} → {sample.translation}{expected}")
    return lines


def describe_scores(evaluations: dict[str, Evaluation], trainer: Trainer) -> list[str]:
    """Return how many pairs are translated exactly, BLEU and chrF."""
    kinds = {"train": "training", "valid": "held-out"}
    lines = []
    for name, evaluation in evaluations.items():
        right, count = evaluation.exact_match.total, evaluation.exact_match.count
        part = "" if count == len(trainer.encoded[name]) else "the first "
        lines.append(f"  {right:,.0f} of {part}{count:,} {kinds[name]} pairs translated exactly")
    any_evaluation = next(iter(evaluations.values()))
    return [
        "\nResult:",
        *lines,
        f"  BLEU {any_evaluation.bleu.signature}",
        f"  chrF {any_evaluation.chrf.signature}",
    ]


def next_commands(trainer: Trainer, example: str) -> list[str]:
    """Return commands that translate with the run and show what it did."""
    run = trainer.run_folder.path
    of_run = f"--run {shlex.quote(str(run))}"
    is_plain = not set(example) & set('"$`\\!')
    quoted = f'"{example}"' if is_plain else shlex.quote(example)
    lines = [
        "\nNext:",
        f"  {typed_as('translate')} {of_run}",
        f"  {typed_as('explain')} {of_run} {quoted}",
    ]
    if trainer.config.logging.tensorboard:
        folder = shlex.quote(str(run.parent if run.parent.name == "runs" else run))
        # Without the option, TensorBoard drops some of more than ten pictures under a name.
        lines.append(f"  tensorboard --logdir {folder} --samples_per_plugin images=1000")
    return lines
