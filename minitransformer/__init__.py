"""A small encoder-decoder Transformer that trains on tiny corpora and shows every number."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitransformer.translator import Translator

__version__ = "0.2.0"
__all__ = ["Translator", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Translator":  # imported when asked for, so that --help needs no torch
        from minitransformer.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# The commands of version 0.1 that were modules. To run a module, Python imports its package first,
# and sys.argv[0] is "-m" while it does.
MOVED = {
    "doctor": "doctor",
    "evaluate": "evaluate --run RUN",
    "evaluation": "evaluate --run RUN",
    "explain.alignment": "evaluate --run RUN --alignment",
    "explain.worked": "worked list | show NAME | check FILE",
    "export": "export --run RUN --to FOLDER",
    "worked": "worked list | show NAME | check FILE",
}
if sys.argv[:1] == ["-m"]:
    module = next((each for each in sys.orig_argv if each.startswith(f"{__name__}.")), "")
    if command := MOVED.get(module.removeprefix(f"{__name__}.")):
        print(f"error: python -m {module} is now: minitransformer {command}", file=sys.stderr)
        sys.exit(2)
