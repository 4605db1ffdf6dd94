"""What is to be said about one printed number."""

from dataclasses import dataclass

from minitransformer.explain.worked.numbers import Printed
from minitransformer.explain.worked.sheet import Cell

Causes = frozenset[str]  # the slips that a wrong number goes back to


@dataclass(frozen=True)
class Judged:
    """A printed number, our value, and what is to be said about it."""

    cell: Cell
    printed: Printed
    exact: float | None  # None where nothing can be computed
    kind: str  # right, slip, follows, not checkable or unexplained
    chain: str = "exact"  # that gives the number
    rounding: str = ""  # by which it does; none where it is the same
    causes: Causes = frozenset()
    behind: Causes = frozenset()  # earlier slips in what a wrong number should have been
    is_scan: bool = False  # read from a damaged place

    @property
    def how(self) -> str:
        """The verdict and its reason in a few words, as sheets declare it."""
        way = [self.chain] * (self.chain not in ("exact", "printed")) + [self.rounding]
        if self.kind == "right":
            way = [self.chain] * (self.chain != "exact") + [self.rounding or "agrees"]
            return " ".join(["scan"] * self.is_scan + way)
        if self.kind in ("slip", "follows"):
            slips = "+".join(sorted(self.causes, key=slip_order))
            return " ".join([self.kind, slips, *(way if self.kind == "follows" else [])])
        return self.kind

    @property
    def verdict(self) -> str:
        """One of the names under which verdicts are counted."""
        if self.is_scan and self.kind == "right":
            return "ocr"
        return {
            "right": "rounded" if self.rounding else "agrees", "slip": "errata_origin",
            "follows": "errata_propagated", "not checkable": "not_checkable",
        }.get(self.kind, "unexplained")  # fmt: skip

    @property
    def is_origin(self) -> bool:
        """Is the number wrong without an earlier one to blame?"""
        return self.kind in ("slip", "unexplained")


def slip_order(number: str) -> tuple[int, str]:
    return (int(number), "") if number.isdecimal() else (10**9, number)
