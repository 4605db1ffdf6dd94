"""Runs of the shipped configs, trained with the command in the README."""

import json
import shutil
from pathlib import Path

from filelock import FileLock

from tests.support.processes import Finished, Running

CONFIGS = ("tiny", "tiny-bn", "tiny-rnn")


class TrainedRun:
    """A run in the folder in which the command was called."""

    def __init__(self, config: str, folder: Path, result: Finished) -> None:
        self.folder, self.path, self.result = folder, folder / "runs" / config, result


def trained_runs(shared: Path, own: Path) -> list[TrainedRun]:
    """Return copies, in a folder of one's own, of runs that all test processes share.

    The first process trains all of them at the same time, each on one thread.
    """
    with FileLock(shared / "lock"):
        if not (shared / "results.json").exists():
            train(shared)
    results = json.loads((shared / "results.json").read_text())
    return [
        TrainedRun(config, Path(shutil.copytree(shared / config, own / config)), Finished(*result))
        for config, result in zip(CONFIGS, results, strict=True)
    ]


def train(shared: Path) -> None:
    running = []
    for config in CONFIGS:
        (shared / config).mkdir()
        running.append(Running("train.py", "--config", f"{config}.yaml", folder=shared / config))
    results = [each.finish() for each in running]
    (shared / "results.json").write_text(json.dumps(results))
