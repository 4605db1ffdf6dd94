"""Count the modules and lines of each package: python -m benchmarks.modules [--compare COMMIT]

Also counts the modules of ours that two commands load: a translation, and a training without
TensorBoard. Files are those that have code in them: most `__init__.py` are empty. With --compare,
prints the same for a commit first. With --write-counts, updates the counts in docs/reading.md.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.bits import ROOT, clone
from benchmarks.measuring import print_table

PACKAGE = "minitransformer"
READING = ROOT / "docs" / "reading.md"
COUNT = re.compile(r"\]\(\.\./(?P<path>[\w/]+\.py)\) \| (?P<lines>\d+) \|")
WINGS = {"cli", "doctor", "explain", "worked"}  # packages, and below the modules beside the core's
WING_MODULES = {"__main__", "api", "export", "moved"}
TRAIN = ["train.py", "--config", "tiny.yaml", "--run", "{folder}/tiny"]
COMMANDS = {
    "train.py --config tiny.yaml --set logging.tensorboard=false": [
        *TRAIN, "--set", "logging.tensorboard=false",
    ],
    'translate.py "Let\'s go"': ["translate.py", "--run", "{folder}/tiny", "Let's go"],
}  # fmt: skip
RUN_AND_LIST = f"""
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    assert not end.code
files = [getattr(sys.modules[name], "__file__", None) or "" for name in sorted(sys.modules)
         if name.partition(".")[0] == "{PACKAGE}"]
print("loaded:", *files, sep="\\n")
"""


def modules(root: Path) -> dict[str, list[Path]]:
    """Return the files of each package that have code in them."""
    found: dict[str, list[Path]] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        if path.read_text("utf-8").strip():
            parts = path.relative_to(root / PACKAGE).parts
            package = parts[0] if len(parts) > 1 else "(beside the packages)"
            found.setdefault(package, []).append(path)
    return found


def is_core(path: Path, root: Path) -> bool:
    first = path.relative_to(root / PACKAGE).parts[0].removesuffix(".py")
    return first not in WINGS | WING_MODULES


def num_lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def write_counts() -> None:
    """Update the line counts in docs/reading.md, rounded to tens."""

    def updated(match: re.Match[str]) -> str:
        return f"](../{match['path']}) | {round(num_lines(ROOT / match['path']), -1)} |"

    READING.write_text(COUNT.sub(updated, READING.read_text("utf-8")), "utf-8", newline="\n")


def loaded(root: Path, command: list[str]) -> tuple[int, int]:
    """Return how many of our modules a command loads, and how many of their files have code."""
    result = subprocess.run(
        [sys.executable, "-c", RUN_AND_LIST, *command], cwd=root, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(root)}, check=False,
    )  # fmt: skip
    if result.returncode:
        sys.exit(result.stderr)
    files = [Path(line) for line in result.stdout.partition("loaded:\n")[2].splitlines()]
    return len(files), sum(path.stat().st_size > 0 for path in files)


def report(title: str, root: Path) -> None:
    found = modules(root)
    core = [path for paths in found.values() for path in paths if is_core(path, root)]
    everything = [path for paths in found.values() for path in paths]
    lines = Counter({name: sum(map(num_lines, paths)) for name, paths in found.items()})
    print(f"{title}\n")
    rows: list[tuple[object, ...]] = [
        (name, len(found[name]), f"{lines[name]:,}") for name in sorted(found)
    ]
    for name, paths in (("the core", core), ("all", everything)):
        rows.append((name, len(paths), f"{sum(map(num_lines, paths)):,}"))
    print_table(("package", "modules", "lines"), rows)
    print()
    with tempfile.TemporaryDirectory() as folder:
        counts = {
            name: loaded(root, [part.format(folder=folder) for part in command])
            for name, command in COMMANDS.items()
        }
    print_table(
        ("command", "modules loaded", "files executed"),
        [(f"`{name}`", *count) for name, count in counts.items()],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Count modules, lines, and what commands load.")
    parser.add_argument("--compare", metavar="COMMIT", help="a commit to count first")
    parser.add_argument("--write-counts", action="store_true", help="update docs/reading.md only")
    options = parser.parse_args()
    if options.write_counts:
        write_counts()
        return
    if options.compare:
        with tempfile.TemporaryDirectory(prefix="modules-") as name:
            clone(options.compare, Path(name) / "commit")
            report(options.compare, Path(name) / "commit")
        print()
    report("This work tree", ROOT)


if __name__ == "__main__":
    main()
