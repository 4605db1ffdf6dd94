from pathlib import Path

import pytest

from tests.processes import Finished, run


class TrainedRun:
    """A shipped config, trained by the command that the README shows."""

    def __init__(self, config: str, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "runs" / config
        self.result: Finished = run("train.py", "--config", f"{config}.yaml", folder=folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> TrainedRun:
    return TrainedRun("tiny", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_bn(tmp_path_factory) -> TrainedRun:
    return TrainedRun("tiny-bn", tmp_path_factory.mktemp("tiny-bn"))
