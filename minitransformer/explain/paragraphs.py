"""Paragraphs in 80 columns."""

import textwrap

WIDTH = 80


def wrapped(text: str, first: str, later: str) -> str:
    """A text in lines, words never broken; `first` and `later` begin them."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
