from pathlib import Path

import pytest

from tests.processes import Finished, Running


class TrainedRun:
    """A shipped config, trained by the command that the README shows."""

    def __init__(self, config: str, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "runs" / config
        self.running = Running("train.py", "--config", f"{config}.yaml", folder=folder)

    def finish(self) -> "TrainedRun":
        self.result: Finished = self.running.finish()
        return self


@pytest.fixture(scope="session")
def shipped_runs(tmp_path_factory) -> list[TrainedRun]:
    """Both at once: each trains on one thread."""
    runs = [TrainedRun(name, tmp_path_factory.mktemp(name)) for name in ("tiny", "tiny-bn")]
    return [run.finish() for run in runs]


@pytest.fixture(scope="session")
def tiny(shipped_runs) -> TrainedRun:
    return shipped_runs[0]


@pytest.fixture(scope="session")
def tiny_bn(shipped_runs) -> TrainedRun:
    return shipped_runs[1]
