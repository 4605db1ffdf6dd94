"""What a trainer calls while it trains."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minitransformer.evaluation import Evaluation
from minitransformer.metrics import Sum

if TYPE_CHECKING:
    from minitransformer.training.trainer import Trainer


@dataclass(frozen=True)
class StepMetrics:
    """What one optimizer step did."""

    loss: Sum  # over the target's tokens, without label smoothing
    accuracy: Sum
    learning_rate: float
    gradient_norm: float
    seconds: float


class Callback:
    """Something that looks at a run; the trainer calls it and knows nothing else of it."""

    def on_start(self, trainer: "Trainer") -> None:
        """Everything is loaded; the first step comes next."""

    def on_step(self, trainer: "Trainer", report: StepMetrics) -> None:
        """An optimizer step was taken."""

    def on_evaluation(self, trainer: "Trainer", evaluations: dict[str, Evaluation]) -> None:
        """The splits were scored at this step."""

    def on_warning(self, trainer: "Trainer", warning: str) -> None:
        """The run goes on, but somebody should know this."""

    def on_save(self, trainer: "Trainer") -> None:
        """A checkpoint is about to be written: what it must know goes into the state now."""

    def on_end(self, trainer: "Trainer", exit_code: int) -> None:
        """The run is finished (0), or was stopped by a signal and saved."""
