"""Hostile input for the real commands: python -m benchmarks.fuzzing --minutes 10 --seed 1

Each case is a process of its own, forked from one that has torch loaded. A traceback, a signal, a
wrong exit code, a line too many or too few, and 30 seconds of silence are findings; each is kept
with its files in runs/fuzzing, and `--seed N --case M` makes it again.
"""

import argparse
import importlib
import io
import os
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from benchmarks.hostile import INPUTS, ROOT, SMALL, Case
from benchmarks.hostile_runs import damaged_run_case

KINDS = INPUTS | {"run": damaged_run_case}
MOST_SECONDS = 30
MOST_MEMORY = 6 * 2**30  # bytes of address space, most of which torch only reserves
PRELOADED = ("minitransformer.prompt", "minitransformer.console", "torchtext.vocab",
             "minitransformer.explain.tensorboard", "minitransformer.evaluate",
             "minitransformer.worked.documents", "minitransformer.explain.command",
             "minitransformer.explain.heatmaps", "minitransformer.export",
             "minitransformer.explain.page", "pyarrow.parquet", "sacrebleu")  # fmt: skip


class Terminal(io.TextIOWrapper):
    """A file that says that somebody sits in front of it."""

    def isatty(self) -> bool:
        return True


def run_as_main(case: Case, folder: Path) -> None:
    """In a forked process: become the command."""
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    streams = (("in", os.O_RDONLY), *((name, os.O_WRONLY | os.O_CREAT) for name in ("out", "err")))
    for number, (name, flags) in enumerate(streams):
        os.dup2(os.open(f".{name}", flags, 0o600), number)
    stream = Terminal if case.is_prompt else io.TextIOWrapper
    sys.stdin = stream(open(0, "rb", closefd=False))  # noqa: SIM115
    sys.stdout = stream(open(1, "wb", closefd=False))  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), line_buffering=True)  # noqa: SIM115
    sys.argv = [case.command, *case.arguments]
    code = 1
    try:
        if case.command.endswith(".py"):
            runpy.run_path(str(ROOT / case.command), run_name="__main__")
        else:
            runpy.run_module(case.command, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # whatever comes out of a command is what is looked for
        import traceback

        traceback.print_exc()
    finally:
        for each in (sys.stdout, sys.stderr):
            each.flush()
        os._exit(code)


def outcome(case: Case, folder: Path) -> tuple[int | None, str, str]:
    """The exit code (None: it hung), what was printed, and what was complained."""
    (folder / ".in").write_bytes(case.stdin)
    child = os.fork()
    if not child:
        run_as_main(case, folder)
    deadline = time.monotonic() + MOST_SECONDS
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


def finding(case: Case, code: int | None, out: str, err: str) -> str:
    """What is wrong about an outcome; nothing, if all is well."""
    if code is None:
        return f"hung for {MOST_SECONDS} s"
    if "Traceback (most recent" in err:
        last = [line for line in err.splitlines() if line and not line.startswith(" ")][-1]
        return f"traceback: {last[:150]}"
    if code < 0:
        return f"ended by signal {-code}"
    if code not in case.codes:
        return f"exit code {code} instead of {' or '.join(map(str, case.codes))}: {err[-150:]}"
    if code and "error: " not in err and "\nFAIL " not in out and not is_verdict(case, code):
        return f"exit code {code} without a word of why: {err[-150:]}"
    if not code and "\nerror: " in f"\n{err}":
        return f"exit code 0 with an error: {err[-150:]}"
    if case.lines is not None and out.count("\n") != case.lines:
        return f"{out.count(chr(10))} lines out for {case.lines} lines in"
    return ""


def is_verdict(case: Case, code: int) -> bool:
    """A sheet with a slip in it exits with 1, and the slip is what it prints."""
    return case.command.endswith("worked") and code == 1


def make_runs(folder: Path) -> None:
    """The two small runs that cases translate with, or damage."""
    pieces = ["--set", "tokenizer.kind=bpe", "--set", "tokenizer.vocab_size=50", "--set",
              "tokenizer.joint=true", "--set", "evaluation.best_metric=loss"]  # fmt: skip
    for name, more in (("words", []), ("bpe", pieces)):
        settings = ["--set", "model.d_model=8", "--set", "logging.tensorboard=false", *more]
        case = Case("train.py", ["--config", "tiny.yaml", "--run", name, *SMALL, *settings])
        code, _, err = outcome(case, folder)
        assert code == 0, err


def try_case(
    seed: int, number: int, kinds: list[str], runs: Path, findings: Path
) -> tuple[str, int | None, str]:
    """Make a case and run it; returns its kind, its exit code and what is wrong with it."""
    kind = kinds[number % len(kinds)]
    random = Random(f"{seed} {number}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run in ("words", "bpe"):
            shutil.copytree(runs / run, folder / run)
        case = KINDS[kind](folder, random)
        code, out, err = outcome(case, folder)
        problem = finding(case, code, out, err)
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
    parser.add_argument("--cases", type=int, help="stop after so many, however long it takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="make this one again")
    parser.add_argument("--only", choices=KINDS, help="inputs of one kind")
    parser.add_argument("--findings", type=Path, default=Path("runs/fuzzing"))
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
        ends = ", ".join(
            f"{count:,} with {code}"
            for (of, code), count in sorted(codes.items(), key=str)
            if of == kind
        )
        print(f"  {kind:10} {tried[kind]:6,} inputs, exit codes: {ends}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
