"""The property tests pass with many more examples than in a usual run."""

import subprocess
import sys

import pytest

from tests.support.processes import ROOT


@pytest.mark.slow
def test_properties_hold_for_many_examples():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", "--hypothesis-profile=many"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-5000:]
    assert " passed" in result.stdout
