"""Run the real commands on hostile input: python -m benchmarks.fuzzing --minutes 10 --seed 1

Each case runs in a process of its own, forked from one that has imported torch. A traceback, a
signal, a wrong exit code, a missing or superfluous line, and a run of 30 seconds are findings; each
is kept with its files in runs/fuzzing, and `--seed N --case M` reproduces it.
"""

import argparse
import importlib
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from benchmarks.hostile import FAST_RUN, INPUTS, Case
from benchmarks.hostile_runs import damaged_run_case
from minitransformer import cli

KINDS = INPUTS | {"run": damaged_run_case}
TIMEOUT = 30  # seconds
MAX_MEMORY = 6 * 2**30  # bytes of address space, most of which torch only reserves
PRELOADED = ("minitransformer.cli.prompt", "minitransformer.cli.console", "torchtext.vocab",
             "minitransformer.explain.tensorboard", "minitransformer.cli.scores",
             "minitransformer.worked.documents", "minitransformer.cli.walkthroughs",
             "minitransformer.explain.heatmaps", "minitransformer.export",
             "minitransformer.explain.page", "pyarrow.parquet", "sacrebleu")  # fmt: skip


class FakeTerminal(io.TextIOWrapper):
    """A file that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def run_as_main(case: Case, folder: Path) -> None:
    """Run the command in this forked process, and exit with its code."""
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    streams = (("in", os.O_RDONLY), *((name, os.O_WRONLY | os.O_CREAT) for name in ("out", "err")))
    for descriptor, (name, flags) in enumerate(streams):
        os.dup2(os.open(f".{name}", flags, 0o600), descriptor)
    stream = FakeTerminal if case.is_prompt else io.TextIOWrapper
    sys.stdin = stream(open(0, "rb", closefd=False))  # noqa: SIM115
    sys.stdout = stream(open(1, "wb", closefd=False))  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), line_buffering=True)  # noqa: SIM115
    sys.argv = ["minitransformer", case.command, *case.arguments]
    code = 1
    try:
        code = cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # printed as Python does, for find_problem
        import traceback

        traceback.print_exc()
    finally:
        for each in (sys.stdout, sys.stderr):
            each.flush()
        os._exit(code)


def run_case(case: Case, folder: Path) -> tuple[int | None, str, str]:
    """Return the exit code (None after a timeout), standard output and standard error."""
    (folder / ".in").write_bytes(case.stdin)
    child = os.fork()
    if not child:
        run_as_main(case, folder)
    deadline = time.monotonic() + TIMEOUT
    code: int | None = None
    while code is None and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.005)
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    texts = (
        (folder / name).read_bytes().decode("utf-8", "replace") if (folder / name).exists() else ""
        for name in (".out", ".err")
    )
    out, err = texts
    return code, out, err


def find_problem(case: Case, code: int | None, out: str, err: str) -> str:
    """Return what is wrong with the result of a case, or "" if it is right."""
    if code is None:
        return f"hung for {TIMEOUT} s"
    if "Traceback (most recent" in err:
        last = [line for line in err.splitlines() if line and not line.startswith(" ")][-1]
        return f"traceback: {last[:150]}"
    if code < 0:
        return f"ended by signal {-code}"
    if code not in case.codes:
        return f"exit code {code} instead of {' or '.join(map(str, case.codes))}: {err[-150:]}"
    if code and "error: " not in err and "\nFAIL " not in out and not is_wrong_sheet(case, code):
        return f"exit code {code} without an error message: {err[-150:]}"
    if not code and "\nerror: " in f"\n{err}":
        return f"exit code 0 with an error: {err[-150:]}"
    if case.lines is not None and out.count("\n") != case.lines:
        return f"{out.count(chr(10))} lines out for {case.lines} lines in"
    return ""


def is_wrong_sheet(case: Case, code: int) -> bool:
    """Return whether this is a sheet with a wrong number, which is reported on standard output."""
    return case.command == "worked" and code == 1


def make_runs(folder: Path) -> None:
    """Train the two small runs that cases translate with or damage."""
    bpe = ["--set", "tokenizer.kind=bpe", "--set", "tokenizer.vocab_size=50", "--set",
              "tokenizer.joint=true", "--set", "evaluation.best_metric=loss"]  # fmt: skip
    for name, tokenizer in (("words", []), ("bpe", bpe)):
        settings = ["--set", "model.d_model=8", "--set", "logging.tensorboard=false", *tokenizer]
        case = Case("train", ["--config", "tiny.yaml", "--run", name, *FAST_RUN, *settings])
        code, _, err = run_case(case, folder)
        assert code == 0, err


def try_case(
    seed: int, number: int, kinds: list[str], runs: Path, findings: Path
) -> tuple[str, int | None, str]:
    """Run a case, and return its kind, its exit code and what is wrong with it."""
    kind = kinds[number % len(kinds)]
    random = Random(f"{seed} {number}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run in ("words", "bpe"):
            shutil.copytree(runs / run, folder / run)
        case = KINDS[kind](folder, random)
        code, out, err = run_case(case, folder)
        problem = find_problem(case, code, out, err)
        if problem:
            kept = findings / f"seed-{seed}-case-{number}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)
            (kept / ".command").write_text(repr([case.command, *case.arguments]) + "\n")
            problem += f"\n    {case.command} {case.arguments}\n    {kept}"
        return kind, code, problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--cases", type=int, help="stop after this many cases, whatever --minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="reproduce the case of this number")
    parser.add_argument("--only", choices=KINDS, help="cases of one kind")
    parser.add_argument("--findings", type=Path, default=Path("runs/fuzzing"), help="a folder")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)  # a forked process has no other threads
    tried: Counter[str] = Counter()
    codes: Counter[tuple[str, int | None]] = Counter()
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder))
        end = time.monotonic() + 60 * options.minutes
        number = options.case or 0
        kinds = [options.only] if options.only else [*KINDS, "run"]
        while options.case is not None or time.monotonic() < end or options.cases:
            kind, code, problem = try_case(
                options.seed, number, kinds, Path(folder), options.findings
            )
            tried[kind] += 1
            codes[kind, code] += 1
            if problem:
                problems.append(problem)
                print(f"case {number} ({kind}): {problem}", flush=True)
            number += 1
            if options.case is not None or number == options.cases:
                break
    print(f"seed {options.seed}: {tried.total():,} inputs, {len(problems)} findings")
    for kind in sorted(tried):
        counts = ", ".join(
            f"{count:,} with {code}"
            for (other, code), count in sorted(codes.items(), key=str)
            if other == kind
        )
        print(f"  {kind:10} {tried[kind]:6,} inputs, exit codes: {counts}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
