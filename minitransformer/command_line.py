"""What the commands share: exit codes, streams, interrupts, options for weights and search."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from minitransformer.errors import OutputError, UsageError, UserError

if TYPE_CHECKING:
    from minitransformer.translator import Translator


def run_command(command: Callable[[], int], *, is_quiet: bool = False) -> int:
    """Run a command; print errors that its user can fix as one line and return their exit code.

    With `is_quiet`, print none, since another process of the same run prints them.
    """
    prepare_streams()
    try:
        code = command()
        sys.stdout.flush()
        return code
    except UserError as error:
        if isinstance(error, OutputError):
            silence_stdout()
        return error.exit_code if is_quiet else fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        silence_stdout()
        return 1
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return fail(f"{name}{error.strerror or error}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("minitransformer"):
            raise  # a bug, not the wrong environment
        return fail(
            f"{error.name} is not installed for {sys.executable}; "
            "use the environment of: pip install -c constraints.txt -e ."
        )
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise  # a bug, not a full machine
        return fail("not enough memory; make the model or the batches smaller")
    except KeyboardInterrupt:
        if not is_quiet:
            print("\ninterrupted", file=sys.stderr)
        return 130


def fail(message: str, exit_code: int = 1) -> int:
    """Print an error; return the exit code."""
    print(f"error: {message}", file=sys.stderr)
    return exit_code


def prepare_streams() -> None:
    """Use UTF-8 whatever the locale, and replace closed streams by the null device."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream, errors in (
        (sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace"),
    ):  # fmt: skip
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def silence_stdout() -> None:
    """Discard what is still buffered for stdout, which Python would try to write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def output_errors() -> Iterator[None]:
    """Raise OutputError where output fails: else it would look like an error of the run folder."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror}") from None


def end_on_interrupt() -> None:
    """Let Ctrl-C end the process at once while modules load: imports may catch an exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_on_interrupt() -> None:
    """From now on, raise KeyboardInterrupt on Ctrl-C, which run_command prints as one line."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def add_weights_options(parser: argparse.ArgumentParser, **others: str) -> None:
    """Add --checkpoint and --average; `others` are more choices of the former, with their help."""
    parser.add_argument(
        "--checkpoint", choices=("last", "best", *others),
        help="default: what the run's config selects (average_checkpoints, best_metric), else last"
        + "".join(f"; {name}: {meaning}" for name, meaning in others.items()),
    )  # fmt: skip
    parser.add_argument(
        "--average", type=int, metavar="N", help="use the mean of the last N checkpoints' weights"
    )


def check_weights_options(options: argparse.Namespace) -> None:
    if options.average is not None and not 1 <= options.average <= 1000:
        raise UsageError(f"--average {options.average}: must be from 1 to 1000")
    if options.average and options.checkpoint:
        raise UsageError("--average does not go with --checkpoint: it uses the last checkpoints")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beam", type=int, default=1, metavar="N",
        help="beam search with N hypotheses (default: 1, which is greedy search)",
    )  # fmt: skip
    parser.add_argument(
        "--length-penalty", type=float, metavar="A",
        help="with --beam: divide scores by length ** A (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto",
        help="default: auto, which is cuda if available, else cpu",
    )  # fmt: skip


def check_search_options(options: argparse.Namespace) -> None:
    if not 1 <= options.beam <= 1000:
        raise UsageError(f"--beam {options.beam}: must be from 1 to 1000")
    check_weights_options(options)
    penalty = options.length_penalty
    if penalty is not None and options.beam == 1:
        raise UsageError("--length-penalty needs a --beam of at least 2")
    if penalty is not None and not 0 <= penalty <= 10:
        raise UsageError(f"--length-penalty {penalty}: must be from 0 to 10")


def load_translator(run: Path, options: argparse.Namespace) -> "Translator":
    """Load a run's translator with the weights, device and search of a command's options."""
    # Imported here: usage errors are found without torch, whose import takes seconds.
    from minitransformer.search import SearchConfig
    from minitransformer.translator import Translator

    translator = Translator.load(
        run, device=options.device, checkpoint=options.checkpoint, average=options.average
    )
    penalty = 1.0 if options.length_penalty is None else options.length_penalty
    translator.search = SearchConfig(options.beam, penalty)
    return translator
