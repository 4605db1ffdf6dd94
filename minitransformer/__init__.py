"""A small encoder-decoder Transformer that trains on tiny corpora and shows every number."""

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
