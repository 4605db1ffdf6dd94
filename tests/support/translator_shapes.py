"""Small translators of every shape, for tests of what shows how they translate."""

from pathlib import Path

import pytest

from minitransformer.translator import Translator
from tests.support.small_runs import translator_for

MODERN = ("model.num_heads=4", "model.num_encoder_layers=2", "model.num_decoder_layers=2",
          "model.d_ff=24", "model.output_projection=true", "model.bias=true")  # fmt: skip
SHAPES = {
    "tiny": (),
    "pre-norm": (
        *MODERN,
        "model.norm=pre",
        "model.source_eos=true",
        "model.decoder_start_token=bos",
    ),
    "post-norm": (*MODERN, "model.norm=post", "model.positional_encoding=learned"),
    "rotary": (*MODERN, "model.norm=pre", "model.positional_encoding=rotary"),
    "bpe": (
        *MODERN,
        "model.positional_encoding=none",
        "tokenizer.kind=bpe",
        "tokenizer.vocab_size=60",
        "tokenizer.joint=true",
        "model.tie_embeddings=all",
    ),
}
SMALLEST_RECURRENT = ("model.kind=recurrent", "model.positional_encoding=none")
SHAPES |= {
    "gru": (*SMALLEST_RECURRENT, "model.scale_scores=false"),
    "gru-bidirectional": (
        *SMALLEST_RECURRENT,
        "model.bidirectional=true",
        "model.attention=multiplicative",
        "model.num_encoder_layers=2",
        "model.num_decoder_layers=2",
    ),
    "lstm": (
        *SMALLEST_RECURRENT,
        "model.cell=lstm",
        "model.output_projection=true",
        "model.bias=true",
        "model.num_encoder_layers=2",
        "model.num_decoder_layers=2",
    ),
    "lstm-none": (
        *SMALLEST_RECURRENT,
        "model.cell=lstm",
        "model.attention=none",
        "model.positional_encoding=learned",
        "model.bidirectional=true",
    ),
}
RECURRENT_SHAPES = {
    **{name: changes for name, changes in SHAPES.items() if changes[:2] == SMALLEST_RECURRENT},
    "gru-none": (*SMALLEST_RECURRENT, "model.attention=none", "model.bias=true"),
}
SENTENCE = "My brother has a red car"
every_shape = pytest.mark.parametrize("shape", SHAPES)
long_for_every_shape = pytest.mark.parametrize(
    "shape",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "tiny")) for name in SHAPES],
)  # fmt: skip


def translator_of_shape(shape: str, folder: Path, max_length: int = 12) -> Translator:
    """Return an untrained translator that has the words of a whole corpus."""
    changes = (SHAPES | RECURRENT_SHAPES)[shape]
    return translator_for(
        folder / shape, *changes, f"model.max_length={max_length}", "data.limit=0"
    )
