"""Every module can be imported, and the commands run, where a system lacks what Linux has."""

import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT
from tests.support.small_runs import SMALL

# What Windows does not have, and what a process without a terminal cannot use.
HIDDEN = {
    "fcntl": {"modules": ["fcntl"]},
    "fork": {"os": ["fork", "forkpty", "register_at_fork", "posix_spawn"]},
    "prctl": {"modules": ["prctl"]},
    "resource": {"modules": ["resource"]},
    "terminal": {"modules": ["curses", "pty", "readline", "termios", "tty"]},
    "signals": {"signal": ["SIGKILL", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGUSR1", "SIGPIPE"]},
    "files": {
        "os": ["O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "set_blocking", "sysconf", "mkfifo",
               "sched_getaffinity", "killpg", "setsid", "getpgid", "getuid"],
    },
}  # fmt: skip
HIDDEN["all of these"] = {
    kind: [name for each in HIDDEN.values() for name in each.get(kind, ())]
    for kind in ("modules", "os", "signal")
}
SETTINGS = [
    part
    for change in (*SMALL, "training.steps=2", "logging.tensorboard=false")
    for part in ("--set", change)
]
COMMANDS = [
    ["train", "--config", "tiny", *SETTINGS],
    ["train", "--config", "tiny", "--run", "runs/with-tensorboard", *SETTINGS[:-2]],
    ["translate", "I go"],
    ["explain", "I go", "--to", "page.html"],
    ["explain", "I go", "--to", "maps.png"],
    ["evaluate", "--split", "valid"],
    ["worked", "show", "lets-go"],
]
# The parent loads what others have written, which may need any of it, and its children our modules.
PROGRAM = """
import os, pkgutil, sys, traceback
from importlib import import_module
import matplotlib.font_manager, pyarrow.parquet, sacrebleu, tokenizers, torch, torchtext.vocab
import torch.distributed, torch.nn.parallel, torch.utils.tensorboard, tqdm, yaml

def hide(kinds):
    import signal
    for name in kinds.get("modules", ()):
        sys.modules[name] = None
    for owner in (os, signal):
        for name in kinds.get(owner.__name__, ()):
            if hasattr(owner, name):
                delattr(owner, name)

def run_commands(title):
    import minitransformer
    from minitransformer.cli import main
    for each in pkgutil.walk_packages(minitransformer.__path__, "minitransformer."):
        if not each.name.endswith("__main__"):
            import_module(each.name)
    for command in COMMANDS[: None if title == "all of these" else 1]:
        sys.argv = ["minitransformer", *command]
        assert main() == 0, command

fork, wait = os.fork, os.waitpid
for title, kinds in HIDDEN.items():
    child = fork()
    if child:
        code = wait(child, 0)[1]
        if code:
            sys.exit(f"without {title}: status {code}")
        continue
    try:
        os.mkdir(title)
        os.chdir(title)
        hide(kinds)
        run_commands(title)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a child for each system")
def test_commands_run_without_what_other_systems_lack(tmp_path):
    names = f"HIDDEN, COMMANDS = {HIDDEN!r}, {COMMANDS!r}\n"
    result = subprocess.run(
        [sys.executable, "-c", names + PROGRAM], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
