"""Compare what the README's commands do: python -m benchmarks.readme_outputs --compare COMMIT

Runs the commands of the README's bash blocks, in their order and in one folder, and after them its
Python blocks, with the code of a commit and with that of this work tree. Each tree runs the
commands of its own README, because names may have changed in between. Then compares what was
printed, the exit codes, and all files that were written.

Left out is what two runs of the same code need not have in common: seconds and speeds, progress
bars, paths of temporary folders, what TensorBoard's events say about time, and sizes and checksums
that follow from these. Of checkpoints, the values of tensors are compared, not their names.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from benchmarks.bits import ROOT, clone, tensor_hashes
from tests.support.events import CLOCK, points

LINKS = ("train.py", "translate.py", "configs", "minitransformer")  # what commands need of a clone
INSTALLING = re.compile(r"^pip install .*? && ")
SKIPPED = re.compile(r"pip install|pytest|python translate\.py$|.*bentrevett")  # a prompt; the hub
PYTHON = "the Python blocks"
SHOWN = 20  # lines of a difference
VARYING = [
    (r"took [\d.,]+ s, [\d,]+ target tokens a second", "took N s, N target tokens a second"),
    (r"(?m)^([^\n]*\[\d\d:\d\d[<,][^\n]*/\w+\][ \r\n]*)+", "(progress)\n"),
    (r'("(?:seconds|tokens_per_second|metrics_bytes)": )[\d.e+-]+', r"\1N"),
    (r'("(?:sha256|\w+\.safetensors)": )"[0-9a-f]{64}"', r"\1N"),
]


class Outcome(NamedTuple):
    """What a command did."""

    number: int
    command: str
    code: int
    text: str  # what it printed on both streams, and its exit code


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare what the README's commands do.")
    parser.add_argument("--compare", default="HEAD", metavar="COMMIT", help="default: HEAD")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER",
        help="keep what was printed (as it is compared) and written in FOLDER/then and FOLDER/now",
    )  # fmt: skip
    return parser.parse_args(arguments)


def blocks(readme: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)


def shell_commands(readme: str) -> list[str]:
    """Return the commands to run, without comments, and without what installs or tests."""
    lines = [line for block in blocks(readme, "bash") for line in block.splitlines() if line]
    commands = [INSTALLING.sub("", re.split(r" {2,}# ", line)[0].strip()) for line in lines]
    return [command for command in commands if not SKIPPED.match(command)]


class Tree:
    """The code of one commit, and a folder in which the commands of its README run."""

    def __init__(self, root: Path, place: Path, cache: Path) -> None:
        self.root, self.files, self.printed = root, place / "files", place / "printed"
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(root),  # before an installed package
            "OMP_NUM_THREADS": "1",
            "HF_HOME": str(cache),  # who finds a copy there prints less
            "SOURCE_DATE_EPOCH": "0",  # the date in the fonts of pages
        }

    def outcomes(self) -> list[Outcome]:
        """Run all commands, and return what they did."""
        readme = (self.root / "README.md").read_text("utf-8")
        calls = [
            (command, ["bash", "-euo", "pipefail", "-c", command])
            for command in shell_commands(readme)
        ]
        calls.append((PYTHON, ["python", "-c", "".join(blocks(readme, "python"))]))
        for folder in (self.files, self.printed):
            folder.mkdir(parents=True)
        for name in LINKS:
            (self.files / name).symlink_to(self.root / name)
        found = []
        for number, (command, words) in enumerate(calls, start=1):
            done = subprocess.run(
                words, cwd=self.files, env=self.environment, capture_output=True,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            out, err = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
            text = self.without_varying(f"{out}[stderr]\n{err}[exit code {done.returncode}]\n")
            (self.printed / f"{number:03}.txt").write_text(f"$ {command}\n{text}", "utf-8")
            found.append(Outcome(number, command, done.returncode, text))
        for name in LINKS:
            (self.files / name).unlink()
        return found

    def without_varying(self, text: str) -> str:
        """Return a text with placeholders for what two runs of the same code may differ in."""
        text = text.replace(str(self.files), "FOLDER").replace(str(self.root), "TREE")
        for pattern, placeholder in VARYING:
            text = re.sub(pattern, placeholder, text)
        return text

    def contents(self) -> dict[str, object]:
        """Return what is compared of each file that the commands wrote."""
        return {
            str(path.relative_to(self.files)): self.content(path)
            for path in sorted(self.files.rglob("*"))
            if path.is_file()
        }

    def content(self, path: Path) -> object:
        if path.suffix == ".safetensors":
            return tensor_hashes(path.parent)  # those of weights and optimizer together
        if path.name.startswith("events.out.tfevents"):
            return repr([point for point in points(path) if point.tag not in CLOCK])
        content = path.read_bytes()
        try:
            return self.without_varying(content.decode())
        except UnicodeDecodeError:
            return content


def pair(then: list[Outcome], now: list[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Pair outcomes in their order, or by their commands where one README has more of these."""
    if len(then) == len(now):
        return list(zip(then, now, strict=True))
    print(f"The README had {len(then)} commands and has {len(now)}: only equal ones are compared.")
    earlier, later = ({each.command: each for each in side} for side in (then, now))
    for word, commands in (("then", earlier.keys() - later), ("now", later.keys() - earlier)):
        for command in sorted(commands):
            print(f"only {word}, not compared: {command}")
    return [(earlier[name], each) for name, each in later.items() if name in earlier]


def show_difference(then: Outcome, now: Outcome) -> None:
    print(f"command {now.number} differs: {now.command}")
    lines = difflib.unified_diff(
        then.text.splitlines(), now.text.splitlines(),
        f"then: {then.command}", f"now: {now.command}", lineterm="", n=1,
    )  # fmt: skip
    for line in islice(lines, SHOWN):
        print(f"    {line}")
    if more := sum(1 for _ in lines):
        print(f"    ... and {more} lines more")


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="readme-outputs-") as name:
        folder = Path(name).resolve()
        place = options.keep.resolve() if options.keep else folder
        if any((place / name).exists() for name in ("then", "now")):
            sys.exit(f"{place} has outputs of an earlier comparison")
        clone(options.compare, folder / "commit")
        trees = (
            Tree(folder / "commit", place / "then", folder / "cache-then"),
            Tree(ROOT, place / "now", folder / "cache-now"),
        )
        with ThreadPoolExecutor(2) as pool:
            pairs = pair(*pool.map(Tree.outcomes, trees))
        then_files, now_files = (tree.contents() for tree in trees)
    differing = [(then, now) for then, now in pairs if then.text != now.text]
    for then, now in differing:
        show_difference(then, now)
    for then, now in pairs:
        if then.code and now.code:
            print(f"command {now.number} fails with both: {now.command}")
    paths = sorted(then_files.keys() | now_files)
    differing_paths = [path for path in paths if then_files.get(path) != now_files.get(path)]
    for path in differing_paths:
        only = "then" * (path not in now_files) or "now" * (path not in then_files)
        print(f"{path} {f'was written only {only}' if only else 'differs'}")
    print(
        f"{len(differing)} of {len(pairs)} commands and "
        f"{len(differing_paths)} of {len(paths)} files differ"
    )
    if differing or differing_paths:
        return 1
    print("no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
