"""What a trainer calls while it trains."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minitransformer.evaluation import Evaluation
from minitransformer.metrics import Sum

if TYPE_CHECKING:
    from minitransformer.training.trainer import Trainer


@dataclass(frozen=True)
class StepMetrics:
    """The loss, accuracy, gradient norm and time of one optimizer step."""

    loss: Sum  # over the target tokens of all ranks, without label smoothing
    accuracy: Sum
    learning_rate: float
    gradient_norm: float  # before clipping
    seconds: float


class Callback:
    """What a trainer calls at each stage of a run; the methods of this base class do nothing."""

    def on_start(self, trainer: "Trainer") -> None:
        """Called when everything is loaded, before the first step."""

    def on_step(self, trainer: "Trainer", metrics: StepMetrics) -> None:
        """Called after each optimizer step."""

    def on_evaluation(self, trainer: "Trainer", evaluations: dict[str, Evaluation]) -> None:
        """Called on rank 0 when the splits have been scored."""

    def on_warning(self, trainer: "Trainer", warning: str) -> None:
        """Called on rank 0 when training continues, but the user should know something."""

    def on_save(self, trainer: "Trainer") -> None:
        """Called on rank 0 before a checkpoint is written, to update `trainer.state`."""

    def on_end(self, trainer: "Trainer", exit_code: int) -> None:
        """Called when the run is finished (0), or was stopped by a signal and saved."""
