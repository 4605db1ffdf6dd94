"""Exported models produce the same tokens and probabilities in CTranslate2."""

import sys
from pathlib import Path

import pytest
import torch

from minitransformer.data.batching import pad
from minitransformer.data.corpus import Pair
from minitransformer.data.dataset import prepare_dataset
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK
from minitransformer.errors import UsageError, UserError
from minitransformer.export import write_ctranslate2
from minitransformer.settings import Config
from minitransformer.translator import Translation, Translator
from tests.support.small_runs import small_config, trainer_for, translator_for

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs: pip install -e '.[export]'")

LONGEST = 12
MODERN = (
    "model.num_heads=4", "model.num_encoder_layers=2", "model.num_decoder_layers=3",
    "model.d_ff=24", "model.norm=pre", "model.output_projection=true", "model.bias=true",
    "model.embedding_std=1.0", f"model.max_length={LONGEST}",
)  # fmt: skip
LEARNING = (
    "model.d_model=32", "model.num_encoder_layers=1", "model.num_decoder_layers=1",
    "model.dropout=0", "model.positional_encoding=learned", "training.batch_tokens=900",
    "training.steps=60", "training.save_every=60", "logging.tensorboard=false",
)  # fmt: skip
SHAPES = {
    "pre-norm": (),
    "post-norm": ("model.norm=post", "model.activation=gelu"),
    "gelu": ("model.activation=gelu", "model.source_eos=true"),
    "no-bias": ("model.bias=false", "model.head_bias=false", "model.decoder_start_token=bos"),
    "no-bias-post-norm": ("model.bias=false", "model.norm=post", "model.scale_embeddings=true"),
    "learned": ("model.positional_encoding=learned", "model.source_eos=true"),
    "rotary": ("model.positional_encoding=rotary",),
    "no-position": ("model.positional_encoding=none", "model.tie_embeddings=target"),
    "no-output": ("model.output_projection=false", "model.scale_scores=false"),
    "no-feed-forward": ("model.d_ff=0", "model.bias=false", "model.output_projection=false"),
    "joint-words": ("tokenizer.joint=true", "model.tie_embeddings=all"),
    "joint-pieces": (
        "tokenizer.kind=bpe", "tokenizer.joint=true", "tokenizer.vocab_size=90",
        "model.tie_embeddings=all", "model.scale_embeddings=true", "model.head_bias=false",
        "model.source_eos=true", "model.decoder_start_token=bos",
    ),
    "pieces": ("tokenizer.kind=bpe", "tokenizer.vocab_size=60", "model.norm=post"),
}  # fmt: skip
QUICK = ("no-bias-post-norm", "learned", "joint-pieces")


def sentences(translator: Translator, config: Config) -> list[str]:
    """Return training sentences, unknown words, and sentences around the maximum length."""
    pairs: list[Pair] = list(prepare_dataset(config, translator.tokenizer).corpus.splits["train"])
    long = ["I " * length for length in range(LONGEST - 2, LONGEST + 3)]
    return [*(pair.source for pair in pairs), "Ωmega", "I ωo to <EOS>", *long]


def export(translator: Translator, config: Config, folder: Path, **options: str) -> None:
    sides = translator.tokenizer.source.tokens, translator.tokenizer.target.tokens
    write_ctranslate2(translator.model, config.model, *sides, folder, **options)


def translate(folder: Path, translator: Translator, texts: list[str]) -> list:
    """Translate with CTranslate2, with the options that the export command prints."""
    source = translator.tokenizer.source
    rows = [[source.tokens[id] for id in source.encode(text, end=False).ids] for text in texts]
    return ctranslate2.Translator(str(folder), intra_threads=1).translate_batch(
        rows, beam_size=1, max_input_length=LONGEST, min_decoding_length=0,
        max_decoding_length=LONGEST, return_end_token=True, return_scores=True, length_penalty=0,
    )  # fmt: skip


def log_probabilities(translator: Translator, translations: list[Translation]) -> list[float]:
    """Return log probabilities of translations by teacher forcing, without PAD and BOS."""
    rows = [[choice.id for choice in each.token_scores] for each in translations]
    source = pad([translator.truncate(each.source.ids) for each in translations])  # [B, S]
    given = pad([[translator.tokenizer.start_id, *ids[:-1]] for ids in rows])  # [B, T]
    logits = translator.model(source, given).detach()  # [B, T, V]
    logits[..., [PAD_ID, BOS_ID]] = float("-inf")
    each = logits.log_softmax(dim=-1)
    return [each[row, range(len(ids)), ids].sum().item() for row, ids in enumerate(rows)]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, changes in SHAPES.items()
    ],
)
def test_export_gives_the_same_tokens_and_probabilities(tmp_path, changes):
    config = small_config(*MODERN, *changes)
    translator = translator_for(tmp_path / "run", *MODERN, *changes)
    with torch.no_grad():
        for layer in translator.model.decoder.layers:
            layer.cross_attention.value.weight *= 3  # so that the source matters
        if translator.model.head.bias is not None:
            translator.model.head.bias[EOS_ID] += 0.5  # so that some translations end
            translator.model.head.bias[[PAD_ID, BOS_ID]] += 2  # which must not be produced
    export(translator, config, tmp_path / "out")
    texts = sentences(translator, config)
    ours, theirs = translator.translate(texts), translate(tmp_path / "out", translator, texts)
    assert [each.tokens for each in ours] == [each.hypotheses[0] for each in theirs]
    assert len({tuple(each.tokens) for each in ours}) > 2, "all translations are the same"
    expected = pytest.approx(log_probabilities(translator, ours), abs=1e-4)
    assert [each.scores[0] for each in theirs] == expected


def test_export_takes_unknown_and_long_input(tmp_path):
    translator = translator_for(tmp_path / "run", *MODERN)
    export(translator, small_config(*MODERN), tmp_path / "out")
    model = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    rows = [["I", "Ωmega"], ["I", UNK], ["I"] * 2000]
    results = model.translate_batch(rows, beam_size=1, min_decoding_length=256, return_scores=True)
    unknown, marked, long = ((each.hypotheses, each.scores) for each in results)
    assert unknown == marked
    assert len(long[0][0]) == 256


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run that can be exported and has learned its sentences."""
    folder = tmp_path_factory.mktemp("trained")
    trainer_for(folder / "run", *MODERN, *LEARNING, "evaluation.every=60").fit()
    return folder


def test_export_as_int8_is_smaller(trained, tmp_path):
    translator = Translator.load(trained / "run")
    config = small_config(*MODERN, *LEARNING)
    before = [parameter.clone() for parameter in translator.model.parameters()]
    texts = sentences(translator, config)[:24]
    ours, agreement = [each.tokens for each in translator.translate(texts)], {}
    for kind in ("float32", "int8"):
        export(translator, config, tmp_path / kind, quantization=kind)
        theirs = [each.hypotheses[0] for each in translate(tmp_path / kind, translator, texts)]
        agreement[kind] = sum(map(list.__eq__, ours, theirs)) / len(texts)
    assert agreement["float32"] == 1
    assert agreement["int8"] >= 0.9
    sizes = {kind: (tmp_path / kind / "model.bin").stat().st_size for kind in agreement}
    assert sizes["int8"] < 0.5 * sizes["float32"]
    assert all(map(torch.equal, before, translator.model.parameters()))


def test_export_of_post_norm_needs_a_feed_forward_layer(tmp_path):
    changes = (*MODERN, "model.norm=post", "model.d_ff=0")
    with pytest.raises(UsageError, match=r"no model\.d_ff: 0 with norm: post;"):
        export(translator_for(tmp_path / "run", *changes), small_config(*changes), tmp_path / "out")


def test_export_that_fails_keeps_the_earlier_one(tmp_path, monkeypatch):
    translator, config = translator_for(tmp_path / "run", *MODERN), small_config(*MODERN)
    folder = tmp_path / "models" / "out"
    export(translator, config, folder)
    before = (folder / "model.bin").read_bytes()

    def full(self, path):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ctranslate2.specs.TransformerSpec, "_serialize", full)
    with pytest.raises(OSError, match="No space left"):
        export(translator, config, folder)
    assert (folder / "model.bin").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def test_export_names_a_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match="ctranslate2 is not installed: pip install") as raised:
        export(translator_for(tmp_path / "run", *MODERN), small_config(*MODERN), tmp_path / "out")
    assert raised.value.exit_code == 1
