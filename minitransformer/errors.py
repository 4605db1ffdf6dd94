"""Errors that users see as a single line, their exit codes, and helpers that format such lines."""

import difflib
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """An error that the user can fix; shown as its message alone, never as a traceback."""

    exit_code = 1


class UsageError(UserError):
    """A command line that asks for something impossible."""

    exit_code = 2


class ConfigError(UserError):
    """All mistakes found in a config, one line each."""

    exit_code = 2


class SheetError(UserError):
    """A worked sheet that cannot be computed; the message says where."""

    exit_code = 2


class DataError(UserError):
    """A corpus or an input file that cannot be used."""


class DivergedError(UserError):
    """A training run that produced NaN or Inf."""


class ModelError(UserError):
    """A model that violates an invariant, such as attending to future tokens."""


class OutputError(UserError):
    """An output that cannot be written to."""


class CheckpointError(UserError):
    """A run folder or a checkpoint that cannot be used."""


class ProcessError(UserError):
    """A failure of the processes of a run to work together, or an error of another process."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def output_errors() -> Iterator[None]:
    """Raise OutputError where output fails: else it would look like an error of the run folder."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror}") from None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a hint for a misspelt word, empty if none is similar."""
    names, folded = list(choices), word.casefold()  # once: it may be a megabyte
    near = [name for name in names if name.casefold() == folded]
    near = near or difflib.get_close_matches(word, names, n=1, cutoff=0.75)
    near = near or [name for name in names if min(len(name), len(word)) > 3 and word in name]
    return f": did you mean '{near[0]}'?" if near else ""


def printable_word(word: str) -> str:
    """Return a word for a message: control characters escaped, at most 40 characters."""
    return escape_controls(word) if len(word) <= 40 else f"{escape_controls(word[:40])}…"


def escape_controls(text: str) -> str:
    """Replace control characters and lone surrogates by \\x and their code."""
    return "".join(
        f"\\x{ord(each):02x}" if unicodedata.category(each) in ("Cc", "Cs") else each
        for each in text
    )
