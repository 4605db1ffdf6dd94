"""What can be wrong with a sentence pair, how often it is, and what the config does about it."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from minitransformer.data.readers import Columns, Row
from minitransformer.data.tokenizer import normalize
from minitransformer.settings import FiltersConfig

DEFECTS = {  # after a count; {s} is an s in the plural
    "malformed": "cannot be read",
    "not_utf8": "not UTF-8, or with U+FFFD (iconv -f latin1 -t utf-8 may help)",
    "empty": "empty",
    "one_sided": "with one side empty",
    "header": "with the column names instead of sentences",
    "nul": "with NUL characters",
    "control": "with control characters",
    "not_nfc": "not in Unicode's form NFC",
    "same_text": "with the same text on both sides",
    "duplicate": "duplicate{s}",
    "several_targets": "repeated source{s} with another target",
    "overlap": "whose source is also in a held-out split",
    "too_long": "too long",
    "unknown": "with words or characters that training does not have",
}
OUTCOMES = {"keep": "kept", "skip": "skipped", "error": "refused"}
NOT_UTF8 = re.compile("[\ud800-\udfff\ufffd]")  # readers turn damaged bytes into lone surrogates
CONTROL = re.compile(r"[\x01-\x08\x0a-\x1f\x7f-\x9f]")  # all but NUL and the tab, which is a space


@dataclass
class DefectCount:
    """How often a defect occurs in a split, in which row first, and the policy for such pairs."""

    policy: str
    count: int
    first: int
    detail: str = ""


@dataclass
class FilterReport:
    """The defects of one split, by name."""

    split: str
    policies: FiltersConfig
    unit: str = "line"
    dropped: int = 0  # pairs, each counted once whatever its defects
    set_aside: str = ""  # usable pairs that this split leaves out, such as ", 90 split off"
    defects: dict[str, DefectCount] = field(default_factory=dict)

    def add(self, defect: str, number: int, detail: str = "", count: int = 1) -> bool:
        """Count a defect; return whether its policy drops the pair."""
        policy: str = getattr(self.policies, defect)
        entry = self.defects.setdefault(defect, DefectCount(policy, 0, number, detail))
        entry.count += count
        if number < entry.first:  # a later pass may find it in an earlier row
            entry.first, entry.detail = number, detail
        return policy != "keep"

    def lines(self) -> list[str]:
        """Return a line for each defect: "2 empty, skipped (first: line 7)"."""
        return [
            f"{entry.count:,} {DEFECTS[defect].format(s='s' * (entry.count != 1))}, "
            f"{OUTCOMES[entry.policy]} "
            f"(first: {self.unit} {entry.first:,}{'; ' * bool(entry.detail)}{entry.detail})"
            for defect, entry in self.defects.items()
        ]

    def errors(self) -> list[str]:
        """Return the lines of the defects whose policy is error."""
        return [
            f"{self.split}: {line}; filters.{defect} is error"
            for (defect, entry), line in zip(self.defects.items(), self.lines(), strict=True)
            if entry.policy == "error"
        ]


def find_defects(row: Row, columns: Columns, max_characters: int) -> Iterable[str]:
    """Return the defects of a row's text; one that leaves no pair to check comes alone."""
    if row.problem:
        return ("malformed",)
    both = f"{row.source}\t{row.target}"
    if not both.isascii() and NOT_UTF8.search(both):
        return ("not_utf8",)
    if not (row.source and row.target):
        return ("one_sided",) if row.source or row.target else ("empty",)
    if (row.source, row.target) == columns:
        return ("header",)
    if max(len(row.source), len(row.target)) > max_characters:
        return ("too_long",)
    found = {
        "nul": "\0" in both,
        "control": CONTROL.search(both) is not None,
        "not_nfc": not (both.isascii() or unicodedata.is_normalized("NFC", both)),
        "same_text": normalize(row.source) == normalize(row.target),
    }
    return [defect for defect, is_found in found.items() if is_found]
