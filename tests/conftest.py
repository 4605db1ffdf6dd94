"""Settings of hypothesis, and runs of the shipped configs that several tests use."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist import is_xdist_worker

from tests.support.processes import ROOT
from tests.support.trained_runs import TrainedRun, trained_runs

# A shell's background jobs ignore SIGINT, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Output of the commands is buffered, as on the machines of those who use them.
os.environ.pop("PYTHONUNBUFFERED", None)

# Processes that tests start import the package of this tree, even where another is installed.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.getenv("PYTHONPATH")])])

# Some virtual machines report AMX but stop at an illegal instruction in bf16 matrix products. This
# limit changes nothing in float32 or on processors without AMX.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Property tests draw few examples by default; `pytest -m hypothesis --hypothesis-profile=many`
# draws many, as does a slow test. Deadlines are off because run time depends on the machine.
settings.register_profile(
    "few", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("many", settings.get_profile("few"), max_examples=300)
settings.load_profile("few")


def pytest_xdist_auto_num_workers(config) -> int:
    """Share folders of tests among processes; a file or a keyword begins sooner in a single one."""
    is_shared = all(Path(arg).is_dir() for arg in config.args) and not config.option.keyword
    return min(os.cpu_count() or 1, 4) if is_shared else 0


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through all that was imported again and again."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin on one thread: models this small gain nothing from more, and the cores are shared."""
    import torch  # the process that only distributes tests does not need it

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shipped_runs(request, tmp_path_factory) -> list[TrainedRun]:
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if is_xdist_worker(request) else base) / "shipped"
    shared.mkdir(exist_ok=True)
    return trained_runs(shared, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def tiny(shipped_runs) -> TrainedRun:
    return shipped_runs[0]


@pytest.fixture(scope="session")
def tiny_bn(shipped_runs) -> TrainedRun:
    return shipped_runs[1]


@pytest.fixture(scope="session")
def tiny_rnn(shipped_runs) -> TrainedRun:
    return shipped_runs[2]


@pytest.fixture(scope="session")
def bpe_run(tmp_path_factory) -> Path:
    """A run with subwords that was trained for a few steps."""
    from tests.support.small_runs import trainer_for

    path = tmp_path_factory.mktemp("pieces") / "run"
    trainer_for(path, "tokenizer.kind=bpe", "tokenizer.vocab_size=60", "model.source_eos=true",
                "model.num_heads=2", "model.max_length=14").fit()  # fmt: skip
    return path
