"""What a trainer tells those who look at its run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minitransformer.evaluation import Evaluation

if TYPE_CHECKING:
    from minitransformer.training.trainer import Trainer


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step did."""

    loss: float
    learning_rate: float
    gradient_norm: float
    target_tokens: int
    seconds: float


class Watcher:
    """Something that looks at a run; the trainer calls it and knows nothing else of it."""

    def on_start(self, trainer: "Trainer") -> None:
        """Everything is loaded; the first step comes next."""

    def on_step(self, trainer: "Trainer", report: StepReport) -> None:
        """An optimizer step was taken."""

    def on_evaluation(self, trainer: "Trainer", evaluations: dict[str, Evaluation]) -> None:
        """The splits were scored at this step."""

    def on_end(self, trainer: "Trainer", exit_code: int) -> None:
        """The run is finished (0), or was stopped by a signal and saved."""
