"""Answers to the commands of version 0.1 that were modules: python -m minitransformer.doctor

To run a module, Python imports its package first, and sys.argv[0] is "-m" while it does.
"""

import sys

MOVED = {
    "doctor": "doctor",
    "evaluate": "evaluate --run RUN",
    "evaluation": "evaluate --run RUN",
    "explain.alignment": "evaluate --run RUN --alignment",
    "explain.worked": "worked list | show NAME | check FILE",
    "export": "export --run RUN --to FOLDER",
    "worked": "worked list | show NAME | check FILE",
}


def answer() -> None:
    """End with the new name of the command, if the module that Python was told to run has moved."""
    module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    if command := MOVED.get(module.removeprefix("minitransformer.")):
        print(f"error: python -m {module} is now: minitransformer {command}", file=sys.stderr)
        sys.exit(2)
