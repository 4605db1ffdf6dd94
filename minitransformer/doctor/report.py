"""The doctor's report: a result for each check, printed as soon as it is known, and a summary."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap

OK, WARNING, FAILED = "ok", "warn", "FAIL"
LINE_LENGTH, NAME_WIDTH = 100, 20


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check, the measured value, and what to do about it."""

    name: str
    status: str  # OK, WARNING or FAILED
    measured: str
    advice: str = ""  # the usual cause or the remedy; not printed if the status is OK

    def lines(self) -> list[str]:
        """Return the result as the report prints it."""
        margin = " " * (8 + NAME_WIDTH)
        parts = [(self.measured, f"{self.status:5} {self.name:{NAME_WIDTH}}  ", margin)]
        if self.advice and self.status != OK:
            parts.append((self.advice, f"{margin}→ ", f"{margin}  "))
        return [
            line
            for text, first_indent, indent in parts
            for line in wrap(
                text, LINE_LENGTH, initial_indent=first_indent, subsequent_indent=indent,
                break_on_hyphens=False, break_long_words=False,
            )
        ]  # fmt: skip

    def sentence(self) -> str:
        """Return the result in one line, for an error message or a note of a run."""
        return f"{self.name}: {self.measured}" + (f"; {self.advice}" if self.advice else "")


class DoctorReport:
    """Print results as they come, and count them."""

    def __init__(self) -> None:
        self.results: list[CheckResult] = []

    def section(self, title: str) -> None:
        print(f"\n{title}")

    def add(self, results: Iterable[CheckResult]) -> None:
        for result in results:
            self.results.append(result)
            print(*result.lines(), sep="\n", flush=True)

    def finish(self) -> int:
        """Print how many checks passed and failed; return the exit code."""
        statuses = [result.status for result in self.results]
        parts = [f"{statuses.count(OK)} ok"]
        if warnings := statuses.count(WARNING):
            parts.append(f"{warnings} warning{'s' * (warnings > 1)}")
        failures = statuses.count(FAILED)
        print(f"\n{', '.join(parts)}, {failures} failed")
        return int(failures > 0)


def format_number(value: float) -> str:
    """Return a measured number in few digits: 0, 3.2e-07, 0.041, 12.3, nan."""
    if math.isnan(value) or value == 0:
        return f"{value:g}"
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"
