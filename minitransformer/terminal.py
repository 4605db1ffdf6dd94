"""How a command talks: UTF-8 everywhere, one line for an error, and the right exit code."""

import io
import os
import sys
from collections.abc import Callable

from minitransformer.errors import UserError


def run_command(command: Callable[[], int]) -> int:
    """Run a command and turn what goes wrong for its user into one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever the locale or the system says
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    try:
        code = command()
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, such as `head -1`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        print(f"error: {name}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
