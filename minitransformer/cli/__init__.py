"""The command line: `minitransformer COMMAND`, with a module for each command.

This one runs them, with their exit codes, streams and interrupts, and has the options that several
share. None of it loads torch, so that --help and mistakes are answered at once.
"""

import argparse
import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from minitransformer import __version__
from minitransformer.errors import (
    CheckpointError,
    OutputError,
    UsageError,
    UserError,
    did_you_mean,
    printable_word,
)

if TYPE_CHECKING:
    from minitransformer.translator import Translator

COMMANDS = {
    "train": "train a model on pairs of sentences",
    "translate": "translate sentences, files or lines of a pipe, or answer at a prompt",
    "explain": "show how a sentence is translated: in the terminal, as a page, file or picture",
    "evaluate": "score a run on held-out pairs or files, compare two, measure how heads align",
    "worked": "list, show and check attention that was calculated by hand",
    "doctor": "check this machine, a config or a run, or show what a classic mistake does",
    "export": "write a run's weights for CTranslate2",
}
OTHER_NAMES = {  # that people try
    "walkthrough": "explain",
    "score": "evaluate",
    "test": "evaluate",
    "list": "worked list",
    "show": "worked show",
    "check": "worked check",
}
RUNS = Path("runs")


def main(command: str = "") -> int:
    """Run a command and return its exit code; without `command`, the first argument names it."""
    end_on_interrupt()
    return run_command(lambda: dispatch([*([command] * bool(command)), *sys.argv[1:]]))


def dispatch(arguments: list[str]) -> int:
    """Call the command that the first argument names with the others."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0 if arguments else UsageError.exit_code
    name, *others = arguments
    if name == "--version":
        print(f"minitransformer {__version__}")
        return 0
    if name not in COMMANDS:
        hint = f" (there are: {', '.join(COMMANDS)})"
        if near := did_you_mean(name, COMMANDS):
            hint = near
        elif name in OTHER_NAMES:
            hint = f": did you mean {typed_as(OTHER_NAMES[name])}?"
        elif " " in name:
            hint = f': to translate it: {typed_as("translate")} "{printable_word(name)}"'
        raise UsageError(f"there is no command '{printable_word(name)}'{hint}")
    command: Callable[[list[str]], int] = import_module(f"{__name__}.{name}").main
    return command(others)


def overview() -> str:
    """Return what `minitransformer --help` prints."""
    lines = [f"  {name:10} {what}" for name, what in COMMANDS.items()]
    more = "minitransformer COMMAND --help lists the options of a command."
    return "\n".join(["usage: minitransformer COMMAND …", "", *lines, "", more])


def typed_as(name: str) -> str:
    """Return how to type a command, given how this one was: `python translate.py`, for one."""
    started = Path(sys.argv[0]).name
    scripts = {
        "train": "python train.py",
        "translate": "python translate.py",
        "explain": "python translate.py --walkthrough",
    }
    if started in ("train.py", "translate.py") and name in scripts:
        return scripts[name]
    return f"{'python -m ' * (started == '__main__.py')}minitransformer {name}"


def run_command(command: Callable[[], int], *, is_quiet: bool = False) -> int:
    """Run a command; print errors that its user can fix as one line and return their exit code.

    With `is_quiet`, print none, since another process of the same run prints them.
    """
    prepare_streams()
    try:
        try:
            code = command()
        except SystemExit as end:  # of argparse, after --help
            code = int(end.code or 0)
        sys.stdout.flush()
        return code
    except UserError as error:
        if isinstance(error, OutputError):
            silence_stdout()
        return error.exit_code if is_quiet else fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        silence_stdout()
        return 0
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:  # it is stdout that cannot be written
            silence_stdout()
        name = f"{error.filename}: " if error.filename else ""
        return fail(f"{name}{error.strerror or error}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("minitransformer"):
            raise  # a bug, not the wrong environment
        return fail(
            f"{error.name} is not installed for {sys.executable}; activate the environment in "
            "which minitransformer is installed"
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
    with suppress(OSError):  # of a full disk
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


def replace_invalid_bytes(argument: str) -> str:
    """Replace bytes of an argument that are not UTF-8 by U+FFFD, as in files."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def silence_stdout() -> None:
    """Discard what is still buffered for stdout, which Python would try to write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_on_interrupt() -> None:
    """Let Ctrl-C end the process at once while modules load: imports may catch an exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_on_interrupt() -> None:
    """From now on, raise KeyboardInterrupt on Ctrl-C, which run_command prints as one line."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# What people type for options that a command may have.
OTHER_OPTIONS = {
    "--output": "--to", "--out": "--to", "-o": "--to", "--html": "--to", "--json": "--to",
    "--file": "--input", "-i": "--input",
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with a hint for what it does not know."""

    def __init__(self, command: str, description: str, moved: dict[str, str] | None = None) -> None:
        """`moved` says of options that this command does not have what to type instead."""
        super().__init__(prog=typed_as(command), description=description, allow_abbrev=False)
        self.moved = moved or {}
        version = f"minitransformer {__version__}"
        self.add_argument("--version", action="version", version=version)

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse options and other arguments in any order."""
        end = arguments.index("--") if "--" in arguments else len(arguments)
        for name in (argument.partition("=")[0] for argument in arguments[:end]):
            if name in self.moved:
                raise UsageError(f"{name} {self.moved[name]}")
        # Options may stand between sentences; such parsing does not know "--".
        options, unknown = self.parse_known_intermixed_args(arguments[:end])
        rest = unknown if "sentences" not in options else options.sentences
        rest += arguments[end + 1 :]
        if unknown:
            self.error(self.describe_unknown(unknown[0]))
        return options

    def describe_unknown(self, argument: str) -> str:
        """Say what is wrong with an argument that no option takes, and what may be meant."""
        from minitransformer.config import settings_called

        known, shown = self._option_string_actions, printable_word(argument)
        if argument.startswith("-"):
            name = argument.partition("=")[0]
            setting = settings_called(name.lstrip("-").replace("-", "_"))
            if (other := OTHER_OPTIONS.get(name)) in known:
                hint = f": did you mean '{other}'?"
            elif "--set" in known and setting:
                hint = f": did you mean --set {setting[0]}=VALUE?"
            else:
                hint = did_you_mean(name, known)
            return f"there is no option {printable_word(name)}{hint}"
        option = next((name for name, fits in self.values() if fits(argument)), "")
        hint = f": did you mean {option} {shlex.quote(argument)}?" if option else ""
        return f"unexpected '{shown}'{hint}"

    def values(self) -> Iterator[tuple[str, Callable[[str], bool]]]:
        """Yield this command's options that have recognizable values, with a test for these."""
        known = self._option_string_actions
        for name, action in known.items():
            if action.choices:
                yield name, list(action.choices).__contains__
        for name, fits in (("--config", is_config), ("--run", is_run), ("--input", os.path.isfile)):
            if name in known:
                yield name, fits

    def error(self, message: str) -> NoReturn:
        more = "" if message.endswith("?") else f"; see {self.prog} --help"
        raise UsageError(f"{message}{more}")


def is_config(name: str) -> bool:
    from minitransformer.config import CONFIGS

    return name.endswith((".yaml", ".yml")) or os.path.isfile(CONFIGS / f"{name}.yaml")


def is_run(name: str) -> bool:
    return bool(name) and os.path.isdir(os.path.join(name, "checkpoints"))


def add_run_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", type=Path, help="a run's folder (default: the one in runs/ that was trained last)"
    )


def chosen_run(options: argparse.Namespace) -> Path:
    """Return the run of --run, or the one that was trained last, whose name is printed."""
    from minitransformer.run import runs_newest_first

    if options.run:
        return named_run(options.run)
    runs = runs_newest_first(RUNS)
    if not runs:
        raise CheckpointError(
            f"there is no trained run in {RUNS.resolve()}; "
            f"make one with: {typed_as('train')} --config tiny.yaml"
        )
    print(f"using {runs[0]}", file=sys.stderr)
    return runs[0]


def named_run(run: Path) -> Path:
    """Return a run's folder; refuse one that does not exist if there is a similar one in runs/."""
    runs = [str(path) for path in RUNS.glob("*") if is_run(str(path))]
    if not run.exists() and (hint := did_you_mean(str(run), runs)):
        raise CheckpointError(f"{run} is not a run folder{hint}")
    return run


def check_output(
    path: Path | None, suffixes: Iterable[str] = (), inputs: Iterable[Path] = ()
) -> None:
    """Refuse a file of --to that cannot be written, is read as well, or has another ending."""
    if path is None:
        return
    for other in inputs:
        if path.exists() and other.exists() and path.samefile(other):
            raise UsageError(f"{other} would be read and written; choose another --to")
    endings = list(suffixes)
    if endings and path.suffix.lower() not in endings:
        allowed = " or ".join([", ".join(endings[:-1]), endings[-1]] if endings[1:] else endings)
        raise UsageError(f"--to {path}: the name must end in {allowed}")
    if path.is_dir():
        raise UsageError(f"--to {path}: a folder, not a file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--to {path}: there is no folder {path.parent}")


def add_input_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE")
    parser.add_argument("--input", type=Path, metavar="FILE", help="sentences, one per line")


def check_input(options: argparse.Namespace) -> None:
    """Refuse sentences from two places, an --input that is no file, and a run as a sentence."""
    for sentence in options.sentences:
        if is_run(sentence):
            raise UsageError(f"'{sentence}' is a run: did you mean --run {shlex.quote(sentence)}?")
        if os.path.isfile(sentence):
            name = printable_word(sentence)
            print(f"note: there is a file '{name}'; --input reads its lines", file=sys.stderr)
    if options.sentences and options.input:
        raise UsageError("give sentences or --input, not both")
    if len(options.sentences) > 1 and not any(" " in each.strip() for each in options.sentences):
        together = printable_word(" ".join(options.sentences))
        print(f'note: {len(options.sentences)} sentences; for one, write "{together}"',
              file=sys.stderr)  # fmt: skip
    if options.input and not options.input.exists():
        raise UsageError(f"--input {options.input}: no such file")
    if options.input and options.input.is_dir():
        raise UsageError(f"--input {options.input}: a folder, not a file")


@contextmanager
def open_lines(options: argparse.Namespace) -> Iterator[Iterator[str]]:
    """Yield the sentences, the lines of --input, or those of standard input as they arrive."""
    from minitransformer.translator import read_lines

    if options.sentences:
        yield map(replace_invalid_bytes, options.sentences)
    elif options.input:
        with options.input.open("rb") as file:
            yield read_lines(file)
    else:
        yield read_lines(sys.stdin.buffer)


def add_weights_options(parser: argparse.ArgumentParser, **others: str) -> None:
    """Add --checkpoint and --average; `others` are more choices of the former, with their help."""
    parser.add_argument(
        "--checkpoint", choices=("last", "best", *others),
        help="default: as the run's config says (average_checkpoints, best_metric), else last"
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


def add_device_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto",
        help="default: auto, which is cuda if available, else cpu",
    )  # fmt: skip


def add_search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beam", type=int, default=1, metavar="N",
        help="beam search with N hypotheses (default: 1, which is greedy search)",
    )  # fmt: skip
    parser.add_argument(
        "--length-penalty", type=float, metavar="A",
        help="with --beam: divide scores by length ** A (default: 1)",
    )  # fmt: skip
    add_device_option(parser)


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
    from minitransformer.search import SearchConfig
    from minitransformer.translator import Translator

    translator = Translator.load(
        run, device=options.device, checkpoint=options.checkpoint, average=options.average
    )
    penalty = 1.0 if options.length_penalty is None else options.length_penalty
    translator.search = SearchConfig(options.beam, penalty)
    return translator
