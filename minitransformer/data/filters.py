"""What can be wrong with a sentence pair, how often it is, and what the config does about it."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from minitransformer.data.readers import Columns, Row
from minitransformer.data.tokenizer import normalize
from minitransformer.settings import FiltersConfig

DEFECTS = {
    "malformed": "cannot be read",
    "not_utf8": "not UTF-8, or with U+FFFD (iconv -f latin1 -t utf-8 may help)",
    "empty": "empty",
    "one_sided": "with nothing on one side",
    "header": "with the column names instead of sentences",
    "nul": "with NUL characters",
    "control": "with control characters",
    "not_nfc": "not in Unicode's form NFC",
    "same_text": "with the same text on both sides",
    "duplicate": "that stood before",
    "several_targets": "whose source stood before with another target",
    "overlap": "whose source is in a held-out split, too",
    "too_long": "too long",
    "unknown": "with words or characters that training does not have",
}
DAMAGED = re.compile(
    "[\ud800-\udfff\ufffd]"
)  # text_files turns bytes that are not UTF-8 into these
CONTROL = re.compile(r"[\x01-\x08\x0a-\x1f\x7f-\x9f]")  # all but NUL and the tab, which is a space


@dataclass
class Finding:
    """How often a defect was met in a split, where first, and what becomes of such pairs."""

    policy: str
    count: int
    first: int
    detail: str = ""


@dataclass
class Report:
    """The findings of one split by the name of the defect."""

    split: str
    policies: FiltersConfig
    unit: str = "line"
    dropped: int = 0  # pairs, each counted once whatever its defects
    elsewhere: str = ""  # usable pairs that are not in this split, such as ", 90 split off"
    findings: dict[str, Finding] = field(default_factory=dict)

    def note(self, defect: str, number: int, detail: str = "", count: int = 1) -> bool:
        """Count a defect; returns whether the pair must go."""
        policy: str = getattr(self.policies, defect)
        finding = self.findings.setdefault(defect, Finding(policy, 0, number, detail))
        finding.count += count
        if number < finding.first:  # a later reading may find it in an earlier row
            finding.first, finding.detail = number, detail
        return policy != "keep"

    def lines(self) -> list[str]:
        """A line for each defect: "2 empty, skipped (first: line 7)"."""
        done = {"keep": "kept", "skip": "skipped", "error": "refused"}
        return [
            f"{finding.count:,} {DEFECTS[defect]}, {done[finding.policy]} "
            f"(first: {self.unit} {finding.first:,}{'; ' * bool(finding.detail)}{finding.detail})"
            for defect, finding in self.findings.items()
        ]

    def refusals(self) -> list[str]:
        """The lines of the defects that the config does not let pass."""
        shown = zip(self.findings.items(), self.lines(), strict=True)
        return [
            f"{self.split}: {line}; filters.{defect} is error"
            for (defect, finding), line in shown
            if finding.policy == "error"
        ]


def defects_of(row: Row, columns: Columns, most_characters: int) -> Iterable[str]:
    """The defects of a row's text, those that leave no pair to look at alone."""
    if row.problem:
        return ("malformed",)
    both = f"{row.source}\t{row.target}"
    is_plain = both.isascii()
    if not is_plain and DAMAGED.search(both):
        return ("not_utf8",)
    if not (row.source and row.target):
        return ("one_sided",) if row.source or row.target else ("empty",)
    if (row.source, row.target) == columns:
        return ("header",)
    if max(len(row.source), len(row.target)) > most_characters:
        return ("too_long",)
    found = []
    if "\0" in both:
        found.append("nul")
    if CONTROL.search(both):
        found.append("control")
    if not (is_plain or unicodedata.is_normalized("NFC", both)):
        found.append("not_nfc")
    if normalize(row.source) == normalize(row.target):
        found.append("same_text")
    return found
