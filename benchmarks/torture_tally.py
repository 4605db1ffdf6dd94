"""What was tried in torture, what was survived, and what was lost."""

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import print_table

RANDOM_KILL = "SIGKILL at a random moment"


@dataclass
class Tally:
    """What was tried, and what was lost."""

    tried: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    losses: list[str] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    told: float = 0.0
    slowest_end: float = 0.0  # seconds from the end of one process to that of all

    def tell(self, began: float) -> None:
        if time.monotonic() > self.told + 10:
            self.told = time.monotonic()
            print(
                f"{(self.told - began) / 60:5.1f} minutes: {self.finished} runs finished, "
                f"{self.tried.total()} faults, {self.tried[RANDOM_KILL]} of them kills at random "
                f"moments, {len(self.losses)} runs lost",
                flush=True,
            )

    def report(self, seconds: float) -> None:
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
            print(
                f"{self.slowest_end:.2f} s after each kill, at the latest, all processes had ended"
            )
        for loss in self.losses:
            print(f"lost: {loss}")

    def clear_away(self, workspace: Path) -> None:
        """Leave nothing but the folders of losses."""
        for path in workspace.iterdir():
            if path not in self.kept:
                shutil.rmtree(path, ignore_errors=True)
        if not self.kept:
            workspace.rmdir()
