"""Runs of the shipped configs."""

from pathlib import Path

from tests.support.processes import Finished, Running


class TrainedRun:
    """A run of a shipped config, trained with the command in the README."""

    def __init__(self, config: str, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "runs" / config
        self.running = Running("train.py", "--config", f"{config}.yaml", folder=folder)

    def finish(self) -> "TrainedRun":
        self.result: Finished = self.running.finish()
        return self
