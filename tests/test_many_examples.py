"""Every property again, on many more examples than each run of the tests can afford."""

import subprocess
import sys

import pytest

from tests.processes import ROOT


@pytest.mark.slow
def test_every_property_holds_for_many_examples():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", "--hypothesis-profile=many"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-5000:]
    assert " passed" in result.stdout
