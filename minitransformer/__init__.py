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


if sys.argv[:1] == ["-m"]:  # Python is looking for the module to run, which may have moved
    from minitransformer.moved import answer

    answer()
