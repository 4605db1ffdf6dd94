"""Ctrl-C while a command imports torch ends it without a traceback."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import ROOT

COMMANDS = {
    "train": ["train.py", "--config", "tiny.yaml"],
    "translate": ["translate.py", "--run", "absent", "hi"],
    "evaluate": ["-m", "minitransformer", "evaluate", "--run", "absent"],
    "explain": ["-m", "minitransformer", "explain", "--run", "absent", "hi"],
    "worked": ["-m", "minitransformer", "worked"],
    "doctor": ["-m", "minitransformer", "doctor", "--run", "absent"],
    "export": ["-m", "minitransformer", "export", "--run", "absent", "--to", "x"],
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("library", ["multiarray", "libtorch_cpu", "libtorch_python"])
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_during_imports_ends_the_command_without_traceback(name, library, tmp_path):
    process = subprocess.Popen(
        [sys.executable, *COMMANDS[name], *(["--run", tmp_path / "run"] * (name == "train"))],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
        # A shell starts background jobs with SIGINT ignored, which would be inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and library not in maps.read_text(errors="replace"):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130), err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()
