"""Train a run: python train.py --config tiny.yaml"""

if __name__ == "__main__":
    from minitransformer.command_line import end_on_interrupt

    end_on_interrupt()

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from minitransformer import __version__
from minitransformer.command_line import raise_on_interrupt, run_command
from minitransformer.config import find_config, load_config
from minitransformer.settings import Config
from minitransformer.training.launcher import Workers, is_worker, launch_workers, launched_processes


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a translation model.")
    parser.add_argument("--config", required=True, help="a YAML file, here or in configs/")
    parser.add_argument("--run", type=Path, help="the run's folder (default: runs/<config name>)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="change a setting, such as training.steps=50 (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto",
        help="auto (the default) is cuda where there is one, else cpu",
    )  # fmt: skip
    parser.add_argument(
        "--fresh", action="store_true", help="start over; an old run is moved aside, not deleted"
    )
    parser.add_argument("--version", action="version", version=f"minitransformer {__version__}")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    config_path = find_config(options.config)
    config = load_config(config_path, options.set)
    if (launched := launched_processes()) > 1:
        config = replace(config, training=replace(config.training, processes=launched))
    run_path = options.run or Path("runs") / config_path.stem

    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    with launch_workers(config.training.processes, command) as workers:
        return train(config, run_path, options, workers)


def train(
    config: Config, run_path: Path, options: argparse.Namespace, workers: Workers | None
) -> int:
    # torch takes seconds to load, so mistakes on the command line are reported before
    from minitransformer.console import Console
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


if __name__ == "__main__":
    # Of torchrun's processes on a machine, the first one reports errors.
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    code = run_command(lambda: main(sys.argv[1:]), is_quiet=not is_first and not is_worker())
    # torch takes a second to end, and would print a traceback
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not is_first:  # torch's threads do not always end as quietly as they should
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
