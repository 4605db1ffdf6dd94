"""The torch.nn.Transformer baseline is trained and evaluated like our model."""

import subprocess
import sys

import pytest
import torch

from benchmarks import baseline
from benchmarks.quality import load_test_set
from benchmarks.torch_model import TorchModel
from minitransformer import Translator
from minitransformer.data.batching import Batch, BatchStream
from minitransformer.data.dataset import Dataset, prepare_dataset
from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import ConfigError, DataError
from minitransformer.model.base import build_model
from minitransformer.model.loss import TrainingLoss
from minitransformer.model.transformer import Transformer
from minitransformer.run import RunFolder
from minitransformer.settings import Config
from tests.support.overrides import overrides
from tests.support.processes import ROOT
from tests.support.small_runs import NO_DROPOUT, small_config, trainer_for
from tests.support.torch_weights import copy_weights

MODERN = (
    "tokenizer.joint=true", "model.norm=pre", "model.d_ff=24", "model.num_heads=2",
    "model.output_projection=true", "model.bias=true", "model.head_bias=false",
    "model.tie_embeddings=all", "model.scale_embeddings=true", "model.decoder_start_token=bos",
    "model.source_eos=true", "training.label_smoothing=0.1", "training.schedule=constant",
)  # fmt: skip


def prepare_with(*changes: str) -> tuple[Config, Dataset]:
    config = small_config(*MODERN, *changes)
    return config, prepare_dataset(config)


def rows(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Return the sentences of a batch without padding, sorted."""
    pairs = zip(batch.source.tolist(), batch.target_output.tolist(), strict=True)
    return sorted(([id for id in one if id], [id for id in other if id]) for one, other in pairs)


def test_baseline_has_the_same_batches_for_any_number_of_processes(tmp_path):
    config, dataset = prepare_with("training.seed=3")
    theirs = baseline.BaselineTrainer(config, RunFolder(tmp_path / "theirs"), dataset).stream
    ours = trainer_for(tmp_path / "ours", *MODERN, "training.seed=3").stream
    halves = [
        BatchStream(
            dataset.encoded["train"], batch_tokens=config.training.batch_tokens, seed=3,
            start_id=dataset.tokenizer.start_id, rank=rank, world_size=2,
        )
        for rank in range(2)
    ]  # fmt: skip
    for _ in range(9):
        expected = rows(theirs.next())
        assert rows(ours.next()) == expected
        assert sorted(row for half in halves for row in rows(half.next())) == expected


def models_with_the_same_weights(
    config: Config, dataset: Dataset
) -> tuple[Transformer, TorchModel]:
    sizes = len(dataset.tokenizer.source), len(dataset.tokenizer.target)
    ours = build_model(config.model, *sizes, PAD_ID)
    theirs = baseline.build(config, dataset.tokenizer)
    copy_weights(ours, theirs.transformer, "pre")
    with torch.no_grad():
        theirs.generator.weight.copy_(ours.head.weight)
    return ours, theirs


def test_baseline_with_the_same_weights_translates_the_same():
    config, dataset = prepare_with()
    ours, theirs = models_with_the_same_weights(config, dataset)
    translator = Translator(ours.eval(), dataset.tokenizer, config)
    sources = ["I go", "We drink tea"]
    ids = [dataset.tokenizer.encode_source(text).ids for text in sources]
    start, longest = dataset.tokenizer.start_id, config.model.max_length
    translated = baseline.translate(theirs.eval(), ids, start, longest, 2)
    assert any(translated)
    assert [dataset.tokenizer.target.decode(each) for each in translated] == [
        each.text for each in translator.translate(sources)
    ]


@pytest.mark.parametrize("inner_rate", [0.0, 0.3])
def test_baseline_has_the_same_dropout_rates(inner_rate):
    config, dataset = prepare_with(
        "model.dropout=0.2",
        f"model.self_attention_dropout={inner_rate}",
        f"model.cross_attention_dropout={inner_rate}",
        f"model.activation_dropout={inner_rate}",
    )
    model = baseline.build(config, dataset.tokenizer)
    for layer in (*model.transformer.encoder.layers, *model.transformer.decoder.layers):
        assert layer.dropout.p == layer.self_attn.dropout == inner_rate
        assert layer.dropout1.p == layer.dropout2.p == 0.2
    assert model.transformer.decoder.layers[0].multihead_attn.dropout == inner_rate


def test_baseline_with_the_same_weights_has_the_same_loss():
    config, dataset = prepare_with(*NO_DROPOUT)
    ours, theirs = models_with_the_same_weights(config, dataset)
    stream = BatchStream(
        dataset.encoded["train"], batch_tokens=200, seed=1, start_id=dataset.tokenizer.start_id
    )
    batch = stream.next()
    loss = baseline.summed_loss(theirs, batch, config.training.label_smoothing)
    torch.testing.assert_close(TrainingLoss(ours, config.training)(*batch).objective, loss)
    sizes = [sum(each.numel() for each in model.parameters()) for model in (ours, theirs)]
    assert sizes[0] == sizes[1]


def test_baseline_resumes_to_the_same_weights(tmp_path):
    config, dataset = prepare_with()
    uninterrupted = baseline.BaselineTrainer(config, RunFolder(tmp_path / "uninterrupted"), dataset)
    uninterrupted.fit()
    stopped = baseline.BaselineTrainer(config, RunFolder(tmp_path / "parts"), dataset)
    for _ in range(4):
        stopped.step()
    stopped.save()
    resumed = baseline.BaselineTrainer(config, RunFolder(tmp_path / "parts"), dataset)
    assert resumed.state.step == 4
    resumed.fit()
    for one, other in zip(
        uninterrupted.model.parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)
    config, others = prepare_with("data.limit=30")
    with pytest.raises(DataError, match="begun with other sentence pairs"):
        baseline.BaselineTrainer(config, RunFolder(tmp_path / "parts"), others)


def test_baseline_translations_do_not_depend_on_the_batch(tmp_path):
    config, dataset = prepare_with("training.steps=40", "training.learning_rate=0.01")
    trainer = baseline.BaselineTrainer(config, RunFolder(tmp_path), dataset)
    trainer.fit()
    sources = [pair.source for pair in dataset.encoded["valid"]][:6]
    batched, single = (
        baseline.translate(trainer.model, sources, dataset.tokenizer.start_id, 20, batch_size)
        for batch_size in (6, 1)
    )
    assert batched == single
    assert any(batched)


def test_baseline_refuses_settings_that_torch_lacks():
    config, dataset = prepare_with("model.positional_encoding=rotary", "model.norm=none")
    with pytest.raises(ConfigError, match=r"pre or post; model\.positional_encoding is sinusoidal"):
        baseline.build(config, dataset.tokenizer)


def test_references_are_matched_to_the_test_sentences(tmp_path):
    test, several = tmp_path / "test.tsv", tmp_path / "several.tsv"
    test.write_text("We eat\tComemos\nI go\tVoy\n")
    several.write_text("I go\tVoy\tYo voy\nWe sleep\tDormimos\nWe eat\tComemos\n")
    _, dataset = prepare_with(f"data.test={test}")
    found = load_test_set(dataset.corpus.splits, several)
    assert found.sources == ["We eat", "I go"]
    assert found.references == [["Comemos"], ["Voy", "Yo voy"]]
    several.write_text("I go\tVoy\n")
    with pytest.raises(DataError, match=r"no translation of 1 of the 2 .* 'We eat'"):
        load_test_set(dataset.corpus.splits, several)


@pytest.mark.slow
def test_quality_benchmark_trains_only_once(tmp_path):
    config = (*MODERN, f"data.test={ROOT / 'minitransformer/data/corpora/en-es.valid.tsv'}")
    command = [
        sys.executable, "-m", "benchmarks.quality", "--config", "tiny", "--steps", "30",
        "--seeds", "1", "--runs", tmp_path,
        *overrides(*config),
    ]  # fmt: skip
    tables = []
    for _ in range(2):
        finished = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False
        )
        assert finished.returncode == 0, finished.stderr
        tables.append(finished.stdout)
    assert "| torch.nn.Transformer |" in tables[0]
    assert tables[0] == tables[1]
    assert "30 steps took" not in finished.stderr
