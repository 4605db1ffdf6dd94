"""A corpus as the doctor sees it: what is used of each split, and what was found wrong."""

from minitransformer.data.corpus import SPLITS
from minitransformer.data.hygiene import Report
from minitransformer.data.preparation import Prepared
from minitransformer.doctor.findings import OK, WARNING, Finding

# Defects that make training or its scores other than they seem, wherever they are met.
SERIOUS = {
    "malformed": "look at these rows; data.columns may name others, or a separator is missing",
    "not_utf8": "convert the file to UTF-8, and what is lost comes back",
    "header": "the first row is taken for sentences elsewhere: remove it from the file",
    "overlap": "held-out scores are too good; hygiene.overlap: skip keeps such pairs out of "
    "training",
}


def corpus_findings(prepared: Prepared) -> list[Finding]:
    """A line for each split, and one for each kind of defect in it."""
    findings = []
    for name in SPLITS:
        if split := prepared.corpus.splits.get(name):
            count, dropped = len(split), split.report.dropped
            measured = f"{count:,} pair{'s' * (count != 1)} kept, {dropped:,} dropped"
            is_most = count >= dropped
            findings.append(
                Finding(
                    f"corpus, {name}",
                    OK if is_most else WARNING,
                    measured + split.report.elsewhere,
                    "more is dropped than kept: see why below",
                )
            )
            findings += defects(split.report)
    if "valid" not in prepared.corpus.splits:
        findings.append(
            Finding(
                "corpus, valid",
                WARNING,
                "no held-out pairs",
                "nothing will tell learning from learning by heart: data.valid, data.split_valid",
            )
        )
    return findings


def defects(report: Report) -> list[Finding]:
    return [
        Finding(
            f"corpus, {report.split}",
            WARNING if defect in SERIOUS else OK,
            line,
            SERIOUS.get(defect, ""),
        )
        for defect, line in zip(report.findings, report.lines(), strict=True)
    ]
