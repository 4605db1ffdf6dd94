"""minitransformer train --config tiny.yaml"""

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from minitransformer.cli import RUNS, Parser, add_device_option, raise_on_interrupt, run_command
from minitransformer.config import find_config, load_config
from minitransformer.errors import UsageError
from minitransformer.settings import Config
from minitransformer.training.launcher import Workers, is_worker, launch_workers, launched_processes

# A worker finds the modules that this process has found, however this process was started.
WORKER = """\
import sys
sys.path[:] = {path!r}
from minitransformer.cli import main
sys.exit(main("train"))
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser("train", "Train a translation model.")
    parser.add_argument(
        "--config",
        help="a YAML file of yours, or one that ships, such as tiny, tiny-bn, tiny-rnn or reverse",
    )
    parser.add_argument("--run", type=Path, help="the run's folder (default: runs/<config name>)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="change a setting, such as training.steps=50 (repeatable); the config.yaml of any run "
        "has all of them",
    )  # fmt: skip
    add_device_option(parser)
    parser.add_argument(
        "--fresh", action="store_true", help="start over; an old run is moved aside, not deleted"
    )
    options = parser.parse(arguments)
    if options.config is None:
        raise UsageError("name a config, such as --config tiny.yaml")
    return options


def main(arguments: list[str]) -> int:
    """Train; of the processes that torchrun starts on a machine, the first reports errors."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    code = run_command(lambda: train(arguments), is_quiet=not is_first and not is_worker())
    # torch takes a second to end, and would print a traceback
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not is_first:  # torch's threads do not always end as quietly as they should
        sys.stderr.flush()
        os._exit(code)
    return code


def train(arguments: list[str]) -> int:
    options = parse(arguments)
    config_path = find_config(options.config)
    config = load_config(config_path, options.set)
    if (launched := launched_processes()) > 1:
        config = replace(config, training=replace(config.training, processes=launched))
    run_path = options.run or RUNS / config_path.stem

    command = [sys.executable, "-c", WORKER.format(path=sys.path), *arguments]
    with launch_workers(config.training.processes, command) as workers:
        return fit(config, run_path, options, workers)


def fit(
    config: Config, run_path: Path, options: argparse.Namespace, workers: Workers | None
) -> int:
    # torch takes seconds to load, so mistakes on the command line are reported before
    from minitransformer.cli.console import Console
    from minitransformer.doctor.model_checks import CheckModel
    from minitransformer.doctor.source_dependence import WatchSource
    from minitransformer.model.base import choose_device
    from minitransformer.run import RunFolder
    from minitransformer.training.distributed import init_distributed, local_device
    from minitransformer.training.trainer import Callback, Trainer

    if not workers:  # inside a collective, Python would not notice Ctrl-C: it ends the process
        raise_on_interrupt()
    run = RunFolder(run_path)
    if workers:
        workers.before_exit = run.release
    device = local_device(choose_device(options.device), config.training.processes)
    with init_distributed(workers, device, config.training.join_timeout) as ranks:
        callbacks: list[Callback] = [CheckModel()]
        if ranks.is_first:
            callbacks += [Console(), WatchSource()]
            if config.logging.tensorboard:
                from minitransformer.explain.tensorboard import TensorBoard

                callbacks.append(TensorBoard())
        with ranks.propagate_errors():
            if ranks.is_first:
                run.hold()
        try:
            return Trainer(config, run, device, callbacks, fresh=options.fresh, ranks=ranks).fit()
        finally:
            run.release()
