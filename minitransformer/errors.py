"""What goes wrong for people, in one line each, and the exit code that goes with it."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """NonFinite that a person can mend; shown as its message alone, never as a traceback."""

    exit_code = 1


class UsageError(UserError):
    """A command line that cannot be carried out."""

    exit_code = 2


class ConfigError(UserError):
    """Every mistake found in a config, one line each."""

    exit_code = 2


class SheetError(UserError):
    """A worked sheet that cannot be worked through; the message names the place."""

    exit_code = 2


class DataError(UserError):
    """A corpus or an input file that cannot be used."""


class DivergedError(UserError):
    """A training whose numbers stopped being numbers."""


class ModelError(UserError):
    """A model that does what no model may do, such as looking ahead."""


class OutputError(UserError):
    """A place to write results to that takes none."""


class CheckpointError(UserError):
    """A run folder or a checkpoint that cannot be used."""


class ProcessError(UserError):
    """NonFinite among the processes of one run, or what went wrong in another one of them."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A hint for a misspelt word, empty when nothing is near."""
    names, folded = list(choices), word.casefold()  # once: it may be a megabyte
    near = [name for name in names if name.casefold() == folded]
    near = near or difflib.get_close_matches(word, names, n=1, cutoff=0.75)
    near = near or [name for name in names if min(len(name), len(word)) > 3 and word in name]
    return f": did you mean '{near[0]}'?" if near else ""
