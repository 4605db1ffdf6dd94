"""Count the injected faults of the torture benchmark and the runs that did not survive them."""

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import print_table

RANDOM_KILL = "SIGKILL at a random moment"


@dataclass
class Tally:
    """Numbers of faults and finished runs, and the folders of lost runs."""

    tried: Counter[str] = field(default_factory=Counter)  # by the kind of the fault
    lost: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    losses: list[str] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    last_printed: float = 0.0
    slowest_end: float = 0.0  # seconds from the end of one process to that of all

    def print_progress(self, start_time: float) -> None:
        """Print a line, at most every ten seconds."""
        if time.monotonic() > self.last_printed + 10:
            self.last_printed = time.monotonic()
            minutes = (self.last_printed - start_time) / 60
            print(
                f"{minutes:5.1f} minutes: {self.finished} runs finished, "
                f"{self.tried.total()} faults, {self.tried[RANDOM_KILL]} of them kills at random "
                f"moments, {len(self.losses)} runs lost",
                flush=True,
            )

    def report(self, seconds: float) -> None:
        """Print a table of the faults, and a line for each lost run."""
        print()
        rows = [
            [kind, count, count - self.lost[kind], self.lost[kind]]
            for kind, count in sorted(self.tried.items())
        ]
        all_lost = self.lost.total()
        total = ["all", self.tried.total(), self.tried.total() - all_lost, all_lost]
        print_table(["fault", "tried", "survived", "lost"], [*rows, total])
        tracebacks = sum("Traceback" in loss for loss in self.losses)
        print(
            f"\n{self.finished} runs finished in {seconds / 60:.1f} minutes, "
            f"{self.tried[RANDOM_KILL]} kills at random moments, {tracebacks} tracebacks, "
            f"{len(self.losses)} runs lost"
        )
        if self.slowest_end:
            print(f"after a kill, all processes had ended within {self.slowest_end:.2f} s")
        for loss in self.losses:
            print(f"lost: {loss}")

    def clean_up(self, workspace: Path) -> None:
        """Delete everything but the folders of lost runs."""
        for path in workspace.iterdir():
            if path not in self.kept:
                shutil.rmtree(path, ignore_errors=True)
        if not self.kept:
            workspace.rmdir()
