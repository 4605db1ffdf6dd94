"""Runs that nothing interrupts, to compare others with."""

import time
from pathlib import Path

import pytest

from tests.support.processes import run
from tests.support.survival import INTERRUPTIBLE, Uninterrupted, run_in, uninterrupted_in


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory) -> Uninterrupted:
    """A short run, with the changes that it made to the disk."""
    return uninterrupted_in(tmp_path_factory.mktemp("uninterrupted"))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> tuple[Path, float]:
    """An INTERRUPTIBLE run that was not interrupted, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("finished")
    start = time.monotonic()
    assert run(*INTERRUPTIBLE, folder=folder).code == 0
    return run_in(folder), time.monotonic() - start
