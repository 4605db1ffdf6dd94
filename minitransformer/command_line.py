"""What all commands share: exit codes, streams, interrupts, options for weights and search."""

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
    """Run a command and turn what goes wrong for its user into one line and an exit code.

    A quiet one leaves to another process what both of them know.
    """
    prepare_streams()
    try:
        code = command()
        sys.stdout.flush()
        return code
    except UserError as error:
        if isinstance(error, OutputError):
            silence_stdout()  # it would be tried once more at the end
        if not is_quiet:
            say(f"error: {error}")
        return error.exit_code
    except BrokenPipeError:
        silence_stdout()
        say("error: nobody reads the output any more; stopped")
        return 1
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        say(f"error: {name}{error.strerror or error}")
        return 1
    except ModuleNotFoundError as error:
        if str(error.name).startswith("minitransformer"):
            raise  # a mistake of ours, not another Python than the one installed to
        say(
            f"error: {error.name} is not installed for {sys.executable}; "
            "use the environment of: pip install -c constraints.txt -e ."
        )
        return 1
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise  # a mistake of ours, not a full machine
        say("error: not enough memory; make the model or the batches smaller")
        return 1
    except KeyboardInterrupt:
        if not is_quiet:
            say("\ninterrupted")
        return 130


@contextmanager
def output() -> Iterator[None]:
    """Within, what cannot be written is the fault of the output, and not of a run's folder."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror}") from None


def end_on_interrupt() -> None:
    """Let Ctrl-C end the process while modules load: as an exception, an import may swallow it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def take_interrupts() -> None:
    """From now on, Ctrl-C is an exception, which run_command turns into one line."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def say(line: str) -> None:
    print(line, file=sys.stderr)


def prepare_streams() -> None:
    """UTF-8 whatever the locale says, and something to talk to where a stream was closed."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream, errors in (
        (sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace"),
    ):  # fmt: skip
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def silence_stdout() -> None:
    """Let what is still to be printed go nowhere, after its reader has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_weights_options(parser: argparse.ArgumentParser, **others: str) -> None:
    """Which checkpoint; `others` are further choices, each with what it is for."""
    parser.add_argument(
        "--checkpoint", choices=("last", "best", *others),
        help="default: what the run's config says, by average or best_metric; else last"
        + "".join(f"; {name}: {purpose}" for name, purpose in others.items()),
    )  # fmt: skip
    parser.add_argument(
        "--average", type=int, metavar="N", help="the mean of the last N checkpoints' weights"
    )


def check_weights_options(options: argparse.Namespace) -> None:
    if options.average is not None and not 1 <= options.average <= 1000:
        raise UsageError(f"--average {options.average}: from 1 to 1000")
    if options.average and options.checkpoint:
        raise UsageError("--average takes the last checkpoints; it does not go with --checkpoint")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beam", type=int, default=1, metavar="N",
        help="look at N translations side by side (default: 1, which is greedy)",
    )  # fmt: skip
    parser.add_argument(
        "--length-penalty", type=float, metavar="A",
        help="of a beam: scores are divided by length ** A (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto",
        help="auto (the default) is cuda where there is one, else cpu",
    )  # fmt: skip


def check_search_options(options: argparse.Namespace) -> None:
    if not 1 <= options.beam <= 1000:
        raise UsageError(f"--beam {options.beam}: from 1 to 1000")
    check_weights_options(options)
    penalty = options.length_penalty
    if penalty is not None and options.beam == 1:
        raise UsageError("--length-penalty goes with a --beam of 2 and more; 1 is greedy")
    if penalty is not None and not 0 <= penalty <= 10:
        raise UsageError(f"--length-penalty {penalty}: from 0 to 10")


def load_translator(run: Path, options: argparse.Namespace) -> "Translator":
    # translate.py finds mistakes on its command line before it loads torch, which takes seconds.
    from minitransformer.search import SearchConfig
    from minitransformer.translator import Translator

    translator = Translator.load(
        run, device=options.device, checkpoint=options.checkpoint, average=options.average
    )
    penalty = 1.0 if options.length_penalty is None else options.length_penalty
    translator.search = SearchConfig(options.beam, penalty)
    return translator
