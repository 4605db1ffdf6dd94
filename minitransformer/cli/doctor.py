"""minitransformer doctor --run runs/tiny"""

import argparse
from pathlib import Path

from minitransformer.cli import RUNS, Parser, raise_on_interrupt
from minitransformer.config import find_config, load_config
from minitransformer.errors import UsageError

PITFALL_NAMES = ("causal", "padding", "shift", "positions", "scale", "softmax", "eval")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "doctor",
        "Check this machine, and a config with its corpus or a trained run; without options, the "
        "newest run in runs/.",
    )
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--config", help="a YAML file, here or one that ships: check its corpus and a new model"
    )
    target.add_argument(
        "--run", type=Path, help="the folder of a run: check its files and its trained model"
    )
    target.add_argument(
        "--replay", type=Path, metavar="FOLDER",
        help="recompute, stage by stage, a saved batch with which training stopped at NaN or Inf",
    )  # fmt: skip
    parser.add_argument(
        "--break", choices=(*PITFALL_NAMES, "all"), dest="pitfall",
        help="train tiny.yaml, or the --config, without and with this classic mistake: shows its "
        "effect, and the check that finds it",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="change a setting of the config, such as model.norm=pre (repeatable)",
    )  # fmt: skip
    options = parser.parse(arguments)
    if options.pitfall and (options.run or options.replay):
        raise UsageError("--break goes with a --config, or alone")
    if options.set and not (options.config or options.run):
        raise UsageError("--set goes with a --config or a --run")
    if options.run and not all(change.startswith("data.") for change in options.set):
        raise UsageError(
            "--set: with --run, only data.… can be changed, for a corpus that has moved"
        )
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    config = load_config(find_config(options.config), options.set) if options.config else None
    # torch takes seconds to load, so mistakes on the command line are reported before
    if options.pitfall:
        from minitransformer.doctor.pitfalls import show_pitfalls

        raise_on_interrupt()
        names = PITFALL_NAMES if options.pitfall == "all" else (options.pitfall,)
        return show_pitfalls(names, find_config(options.config or "tiny.yaml"), options.set)
    if options.replay:
        from minitransformer.doctor.replay import replay

        raise_on_interrupt()
        return replay(options.replay)

    from minitransformer.doctor.report import DoctorReport
    from minitransformer.doctor.run_checks import check_config, check_run, print_machine
    from minitransformer.run import runs_newest_first

    raise_on_interrupt()
    report = DoctorReport()
    print_machine()
    if config:
        check_config(report, config)
    elif options.run:
        check_run(report, options.run, options.set)
    elif newest := runs_newest_first(RUNS):
        check_run(report, newest[0], [])
    else:
        print("\nno runs here yet: name a config to check, such as --config tiny.yaml")
        return 0
    return report.finish()
