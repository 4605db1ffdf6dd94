"""Random faults on real runs, none of which may lose anything: python -m benchmarks.torture

Short runs are killed, torn off while they write, stopped by signals, deprived of disk, damaged
between two sittings and started twice; the same command is given again until the run is finished.
Then its weights, optimizer, metrics and TensorBoard events must be those of a run that nothing
befell, the wall clock apart. The plan follows from --seed; moments are as random as the machine.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Random faults on real runs.")
    parser.add_argument("--minutes", type=float, default=20, help="how long new runs are begun")
    parser.add_argument("--seed", type=int, default=1, help="decides what befalls which run")
    parser.add_argument("--at-once", type=int, default=2, help="runs side by side")
    parser.add_argument(
        "--several", type=float, default=0.03, metavar="SHARE",
        help="share of runs with several processes, which take long: workers load torch anew",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    # Each process that is started imports this file, and none of them needs what torture needs.
    from benchmarks.torture_lives import lives, references
    from benchmarks.torture_tally import Tally
    from tests.survival import side_by_side

    options = parse(arguments)
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    tally = Tally()
    workspace = Path(tempfile.mkdtemp(prefix="torture-"))
    began = time.monotonic()
    expected = references(workspace, options.several)
    seconds = 60 * options.minutes
    runs = lives(workspace, options.seed, expected, tally, seconds, options.several)
    side_by_side(runs, options.at_once, is_over=lambda: bool(stopped))
    if stopped:
        print("stopped; until then:")
    tally.report(time.monotonic() - began)
    tally.clear_away(workspace)
    return 1 if tally.losses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
