"""What a check found: in what state a thing is, by which number, and what to do about it."""

import math
from dataclasses import dataclass
from textwrap import wrap

OK, WARNING, FAILED = "ok", "warn", "FAIL"
NAME_WIDTH = 20


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    name: str
    verdict: str
    measured: str
    advice: str = ""  # what usually causes it, or what to do; told unless all is well

    def lines(self) -> list[str]:
        """As the report shows it."""
        margin = " " * (8 + NAME_WIDTH)
        lines = in_columns(self.measured, f"{self.verdict:5} {self.name:{NAME_WIDTH}}  ", margin)
        if self.advice and self.verdict != OK:
            lines += in_columns(self.advice, f"{margin}→ ", f"{margin}  ")
        return lines

    def sentence(self) -> str:
        """In one line, for a training that does not begin or that begins with a warning."""
        return f"{self.name}: {self.measured}" + (f"; {self.advice}" if self.advice else "")


def in_columns(text: str, first: str, others: str) -> list[str]:
    """A text in lines of at most 100 columns, with what its lines begin with."""
    return wrap(
        text, 100, initial_indent=first, subsequent_indent=others,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def judged(name: str, is_well: bool, measured: str, advice: str) -> Finding:
    """A finding that is well, or has failed."""
    return Finding(name, OK if is_well else FAILED, measured, advice)


def shown(value: float) -> str:
    """A measured number in few digits: 0, 3.2e-07, 0.041, 12.3."""
    if math.isnan(value):
        return "not-a-number"
    return "0" if value == 0 else f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"


def summary(findings: list[Finding]) -> str:
    """How many of the findings are well, and how many are not."""
    counts = {
        verdict: sum(finding.verdict == verdict for finding in findings)
        for verdict in (OK, WARNING, FAILED)
    }
    parts = [f"{counts[OK]} ok"]
    if counts[WARNING]:
        parts.append(f"{counts[WARNING]} warning{'s' * (counts[WARNING] > 1)}")
    parts.append(f"{counts[FAILED]} failed")
    return ", ".join(parts)
