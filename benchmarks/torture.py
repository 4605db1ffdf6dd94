"""Inject random faults into real runs, which may not lose anything: python -m benchmarks.torture

Short runs are killed, interrupted in the middle of a write, stopped by signals, run out of disk
space, have their checkpoints damaged, and are started twice; the same command is repeated until the
run is finished. Then its weights, optimizer, metrics and TensorBoard events must be those of an
uninterrupted run, except for times. --seed decides the faults; their exact timing is the machine's.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Inject random faults into real runs.")
    parser.add_argument("--minutes", type=float, default=20, help="how long new runs are started")
    parser.add_argument("--seed", type=int, default=1, help="seed of the choice of faults")
    parser.add_argument("--at-once", type=int, default=2, help="number of concurrent runs")
    parser.add_argument(
        "--several", type=float, default=0.03, metavar="SHARE",
        help="share of multi-process runs, which are slow: every worker imports torch",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    # Imported here because every spawned process imports this file, without using these.
    from benchmarks.torture_runs import faulty_runs, reference_runs
    from benchmarks.torture_tally import Tally
    from tests.support.survival import side_by_side

    options = parse(arguments)
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    tally = Tally()
    workspace = Path(tempfile.mkdtemp(prefix="torture-"))
    start_time = time.monotonic()
    references = reference_runs(workspace, options.several)
    seconds = 60 * options.minutes
    jobs = faulty_runs(workspace, options.seed, references, tally, seconds, options.several)
    side_by_side(jobs, options.at_once, is_over=lambda: bool(stopped))
    if stopped:
        print("stopped; until then:")
    tally.report(time.monotonic() - start_time)
    tally.clean_up(workspace)
    return 1 if tally.losses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
