"""What goes wrong for people, in one line each, and the exit code that goes with it."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """Trouble that a person can mend; shown as its message alone, never as a traceback."""

    exit_code = 1


class UsageError(UserError):
    """A command line that cannot be carried out."""

    exit_code = 2


class ConfigError(UserError):
    """Every mistake found in a config, one line each."""

    exit_code = 2


class DataError(UserError):
    """A corpus or an input file that cannot be used."""


class CheckpointError(UserError):
    """A run folder or a checkpoint that cannot be used."""


def run_command(command: Callable[[], int]) -> int:
    """Run a command and turn what goes wrong for its user into one line and an exit code."""
    try:
        return command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.filename is None:  # no file is to blame, so it is not the user's to mend
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
