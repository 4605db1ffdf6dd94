"""The trainer steps, resumes, saves and calls its callbacks as its settings say."""

import dataclasses
import os
import signal

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from minitransformer import Translator, evaluation
from minitransformer.data.batching import make_batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import EOS_ID, PAD_ID
from minitransformer.errors import CheckpointError, ConfigError, DataError
from minitransformer.metrics import Sum
from minitransformer.model.loss import TrainingLoss
from minitransformer.run import RunFolder
from minitransformer.training.trainer import Callback
from tests.support.corpus_files import counts
from tests.support.run_results import metrics_without_clock
from tests.support.small_runs import KINDS, NO_DROPOUT, RECURRENT, same_bits, trainer_for, weights


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path):
    first, second, other = (
        trainer_for(tmp_path / name, f"training.seed={seed}")
        for name, seed in (("first", 5), ("second", 5), ("other", 6))
    )
    for trainer in (first, second, other):
        assert trainer.fit() == 0
    assert same_bits(weights(first), weights(second))
    assert not same_bits(weights(first), weights(other))
    assert metrics_without_clock(first.run_folder.path) == metrics_without_clock(
        second.run_folder.path
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Train a run of every kind without interruption."""
    trainers = {
        kind: trainer_for(tmp_path_factory.mktemp(kind) / "run", *changes)
        for kind, changes in KINDS.items()
    }
    for trainer in trainers.values():
        trainer.fit()
    return trainers


@pytest.mark.parametrize(
    ("kind", "stop_at"),
    [("transformer", 1), ("transformer", 7), ("transformer", 11), ("recurrent", 7)],
)
def test_run_resumed_in_mid_epoch_equals_an_uninterrupted_run(
    tmp_path, uninterrupted, kind, stop_at
):
    expected = uninterrupted[kind]
    first = trainer_for(tmp_path / "parts", *KINDS[kind])
    first.evaluate()
    while first.state.step < stop_at:
        first.step()
        if first.state.step % 5 == 0:
            first.evaluate()
    first.save()
    torch.manual_seed(999)
    second = trainer_for(tmp_path / "parts", *KINDS[kind])
    assert second.state.step == stop_at
    second.fit()
    assert same_bits(weights(expected), weights(second))
    assert metrics_without_clock(expected.run_folder.path) == metrics_without_clock(
        second.run_folder.path
    )
    states = [dataclasses.asdict(trainer.state) for trainer in (expected, second)]
    for state in states:
        del state["seconds"], state["metrics_bytes"]  # depend on the wall clock
    assert states[0] == states[1]


def test_metrics_after_the_last_checkpoint_are_truncated(tmp_path):
    trainer = trainer_for(tmp_path / "run")
    trainer.fit()
    kept = trainer.run_folder.metrics.read_bytes()
    with trainer.run_folder.metrics.open("ab") as file:
        file.write(b'{"step": 99, half a li')
    trainer_for(tmp_path / "run")
    assert trainer.run_folder.metrics.read_bytes() == kept


@pytest.mark.parametrize(
    ("kind", "smoothing"), [("transformer", 0.0), ("transformer", 0.1), ("recurrent", 0.1)]
)
def test_micro_batches_equal_one_batch(tmp_path, kind, smoothing):
    settings = (
        *KINDS[kind],
        *NO_DROPOUT,
        "data.limit=30",
        "training.clip_norm=0",
        f"training.label_smoothing={smoothing}",
    )
    one = trainer_for(tmp_path / "one", *settings, "training.batch_tokens=100000")
    many = trainer_for(tmp_path / "many", *settings, "training.batch_tokens=40")
    batches = len(many.stream.order)
    assert batches > 2
    many = trainer_for(
        tmp_path / "accumulated", *settings, "training.batch_tokens=40",
        f"training.gradient_accumulation={batches}",
    )  # fmt: skip
    one.model.double()
    many.model.double()
    single, accumulated = one.step(), many.step()
    assert single.loss.count == accumulated.loss.count
    assert single.loss.total == pytest.approx(accumulated.loss.total, rel=1e-12)
    assert single.accuracy == accumulated.accuracy
    assert single.gradient_norm == pytest.approx(accumulated.gradient_norm, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_step_is_adamw_on_the_mean_loss_per_token(tmp_path, kind):
    plain = (
        *KINDS[kind],
        *NO_DROPOUT,
    )
    trainer = trainer_for(
        tmp_path / "run", *plain, "training.schedule=constant", "training.label_smoothing=0.1",
        "training.clip_norm=0.05",
    )  # fmt: skip
    reference = trainer_for(tmp_path / "reference", *plain).model
    reference.load_state_dict(trainer.model.state_dict())
    indices = trainer.stream.order[0]
    batch = make_batch(
        [trainer.encoded["train"][index] for index in indices.tolist()],
        trainer.tokenizer.start_id,
    )
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in reference.parameters() if p.dim() > 1], "weight_decay": 0.3},
            {"params": [p for p in reference.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=0.01,
    )
    logits = reference(batch.source, batch.target_input)
    smoothed, plain = (
        functional.cross_entropy(
            logits.transpose(1, 2), batch.target_output,
            ignore_index=PAD_ID, label_smoothing=smoothing,
        )
        for smoothing in (0.1, 0.0)
    )  # fmt: skip
    smoothed.backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    optimizer.step()
    report = trainer.step()
    assert report.loss.mean == pytest.approx(float(plain.detach()), rel=1e-5)
    mask = batch.target_output != PAD_ID
    is_correct = logits.argmax(-1)[mask] == batch.target_output[mask]
    assert report.accuracy == Sum(int(is_correct.sum()), int(mask.sum()))
    assert report.gradient_norm == pytest.approx(float(norm), rel=1e-5)
    assert report.gradient_norm > 0.05
    for ours, theirs in zip(trainer.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_callbacks_are_called_in_order(tmp_path):
    class CallRecorder(Callback):
        def __init__(self):
            self.calls = []

        def on_start(self, trainer):
            self.calls.append("start")

        def on_step(self, trainer, report):
            self.calls.append(trainer.state.step)
            assert report.loss.count > 0

        def on_evaluation(self, trainer, evaluations):
            self.calls.append(f"evaluation {'+'.join(evaluations)}")

        def on_save(self, trainer):
            self.calls.append("save")

        def on_end(self, trainer, exit_code):
            self.calls.append(f"end {exit_code}")

    recorder = CallRecorder()
    trainer_for(tmp_path / "run", callbacks=[recorder]).fit()
    scores = "evaluation train+valid"
    assert recorder.calls == [
        "start", scores, 1, 2, 3, "save", 4, 5, scores, "save", 6, "save", 7, 8, 9, "save",
        10, scores, "save", 11, 12, scores, "save", "end 0",
    ]  # fmt: skip


def test_finished_run_continues_only_with_more_steps(tmp_path):
    trainer_for(tmp_path / "run").fit()
    again = trainer_for(tmp_path / "run")
    before = weights(again)
    assert again.is_finished
    again.fit()
    assert same_bits(before, weights(again))
    longer = trainer_for(tmp_path / "run", "training.steps=15")
    longer.fit()
    assert longer.state.step == 15


def test_changed_settings_and_changed_data_are_refused(tmp_path):
    trainer_for(tmp_path / "run").fit()
    with pytest.raises(
        CheckpointError, match=r"settings \(model.d_model: 16, now 8; training.seed: 1, now 9\)"
    ):
        trainer_for(tmp_path / "run", "model.d_model=8", "training.seed=9")
    data = tmp_path / "own.tsv"
    data.write_bytes(b"a b\tc d\ne\tf\n")
    settings = (f"data.train={data}",)
    trainer_for(tmp_path / "own", *settings).fit()
    data.write_bytes(b"a b\tc d\ne\tg\n")
    with pytest.raises(CheckpointError, match="other sentence pairs"):
        trainer_for(tmp_path / "own", *settings)


def test_best_checkpoint_survives_a_worse_end(tmp_path):
    trainer = trainer_for(tmp_path / "run", "evaluation.best_metric=loss")
    losses = {}

    class SpoilWeights(Callback):
        def on_evaluation(self, trainer, evaluations):
            losses[trainer.state.step] = evaluations["valid"].loss.mean
            if trainer.state.step == 5:
                with torch.no_grad():
                    trainer.model.head.weight.mul_(-50)

    trainer.callbacks.append(SpoilWeights())
    trainer.fit()
    assert losses[5] < losses[10]
    folder = RunFolder(tmp_path / "run")
    assert folder.pointed("best") == 5
    assert folder.pointed("last") == 12
    assert folder.load_best().state.best_value == pytest.approx(losses[5])
    assert folder.steps() == [12, 10, 5]


def test_missing_best_checkpoint_falls_back_to_the_recorded_best_step(tmp_path):
    trainer_for(tmp_path / "run", "evaluation.best_metric=loss").fit()
    folder = RunFolder(tmp_path / "run")
    best = folder.best_step
    folder.point("best", 99)
    assert folder.best_step == best
    assert Translator.load(folder.path).checkpoint == f"step-{best:06d}"


def test_capped_length_allows_every_reference(tmp_path, monkeypatch):
    trainer = trainer_for(tmp_path / "run", "model.max_length=64")
    pairs = [EncodedPair([4], [5] * 40 + [EOS_ID]), EncodedPair([4] * 30, [EOS_ID])]
    max_lengths = []
    monkeypatch.setattr(
        evaluation, "translate_ids", lambda *given: max_lengths.append(given[3]) or [[1]] * 2
    )
    for longest in (64, 200):
        evaluation.score_batches(trainer.model, pairs, [[0, 1]], EOS_ID, longest, is_capped=True)
    assert max_lengths == [[64, 64], [2 * 41 + 10, 2 * 30 + 10]]


def test_without_held_out_pairs_only_training_pairs_are_evaluated(tmp_path):
    data = tmp_path / "own.tsv"
    data.write_bytes(b"Good morning\tBuenos d\xc3\xadas\nGood night\tBuenas noches\n")
    trainer = trainer_for(tmp_path / "run", f"data.train={data}")
    trainer.fit()
    assert {row["split"] for row in metrics_without_clock(trainer.run_folder.path)} == {"train"}
    with pytest.raises(DataError, match="has no held-out pairs to measure it on"):
        trainer_for(tmp_path / "best", f"data.train={data}", "evaluation.best_metric=loss")


def test_too_long_pairs_are_dropped_and_counted(tmp_path):
    data = tmp_path / "own.tsv"
    data.write_bytes(b"a\tb\n" + b"x " * 70 + b"\tlong\nc\td\n" + b'"\t""\n')
    trainer = trainer_for(tmp_path / "run", f"data.train={data}", "tokenizer.words=basic_english")
    assert counts(trainer.corpus.train) == {"too_long": (1, 2), "one_sided": (1, 4)}
    assert trainer.corpus.train.report.dropped == 2
    assert len(trainer.encoded["train"]) == len(trainer.corpus.train) == 2
    with pytest.raises(DataError, match="no usable sentence pairs"):
        trainer_for(tmp_path / "none", f"data.train={data}", "model.max_length=1",
                    "model.positional_encoding=none")  # fmt: skip


def test_init_from_loads_weights_and_trainable_freezes_the_rest(tmp_path):
    donor = trainer_for(tmp_path / "donor")
    donor.fit()
    given = {name: value for name, value in weights(donor).items() if not name.startswith("head")}
    save_file(given, tmp_path / "given.safetensors")
    settings = (
        f"training.init_from={tmp_path / 'given.safetensors'}", "training.trainable=[head]",
    )  # fmt: skip
    trainer = trainer_for(tmp_path / "run", *settings)
    before = weights(trainer)
    assert same_bits({name: before[name] for name in given}, given)
    trainer.fit()
    after = weights(trainer)
    assert same_bits({name: after[name] for name in given}, given)
    assert not torch.equal(after["head.weight"], before["head.weight"])
    resumed = trainer_for(tmp_path / "run", *settings, "training.steps=20")
    assert same_bits(weights(resumed), after)
    resumed.fit()


@pytest.mark.parametrize("name", ["absent.safetensors", "school", "lets-go-printed"])
def test_init_from_refuses_an_unknown_name(tmp_path, name):
    message = f"training.init_from: there is no file '{name}'.*ship: lets-go, lets-go-as-printed"
    with pytest.raises(ConfigError, match=message):
        trainer_for(tmp_path / "run", f"training.init_from={name}")


def test_init_from_and_trainable_accept_parts_of_a_recurrent_model(tmp_path):
    part = "encoder.layers.0.backward_rnn"
    given = {f"{part}.input_proj.weight": torch.full((24, 16), 0.5)}
    save_file(given, tmp_path / "given.safetensors")
    trainer = trainer_for(
        tmp_path / "run", "model.kind=recurrent", "model.bidirectional=true",
        "model.attention=multiplicative", f"training.trainable=[{part}, decoder.attention]",
        f"training.init_from={tmp_path / 'given.safetensors'}",
    )  # fmt: skip
    before = weights(trainer)
    assert torch.equal(before[f"{part}.input_proj.weight"], given[f"{part}.input_proj.weight"])
    trainer.step()
    after = weights(trainer)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    own = {
        f"{part}.input_proj.weight",
        f"{part}.hidden_proj.weight",
        "decoder.attention.key.weight",
    }
    assert changed == own


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"haed.weight": torch.zeros(2)},
            "has a tensor 'haed.weight' that the model does not have",
        ),
        ({"head.bias": torch.zeros(2)}, r"'head.bias' is \(2,\) torch.float32, the model has"),
    ],
)
def test_init_from_refuses_other_names_and_shapes(tmp_path, tensors, message):
    save_file(tensors, tmp_path / "given.safetensors")
    with pytest.raises(CheckpointError, match=message):
        trainer_for(tmp_path / "run", f"training.init_from={tmp_path / 'given.safetensors'}")


def test_rdrop_brings_two_dropout_passes_closer(tmp_path):
    divergence = {}
    for rdrop_alpha in (1e-9, 20.0):  # 1e-9: also two passes, but a negligible weight
        trainer = trainer_for(
            tmp_path / str(rdrop_alpha), f"training.rdrop_alpha={rdrop_alpha}",
            "training.steps=30", "model.dropout=0.3",
        )  # fmt: skip
        trainer.fit()
        batch = trainer.stream.next()
        sums = []
        for weight in (1e-9, 1.0):
            training_loss = TrainingLoss(
                trainer.model, dataclasses.replace(trainer.config.training, rdrop_alpha=weight)
            ).train()
            torch.manual_seed(1)
            sums.append(float(training_loss(*batch).objective.detach()))
        divergence[rdrop_alpha] = sums[1] - sums[0]
    assert divergence[1e-9] > 2 * divergence[20.0] > 0


def test_rdrop_resumes_to_the_same_bits(tmp_path):
    uninterrupted = trainer_for(tmp_path / "uninterrupted", "training.rdrop_alpha=2")
    uninterrupted.fit()
    first = trainer_for(tmp_path / "parts", "training.rdrop_alpha=2")
    while first.state.step < 7:
        first.step()
    first.save()
    second = trainer_for(tmp_path / "parts", "training.rdrop_alpha=2")
    second.fit()
    assert same_bits(weights(uninterrupted), weights(second))


def test_rdrop_without_dropout_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="compares two passes with different dropout"):
        trainer_for(
            tmp_path,
            "training.rdrop_alpha=1",
            *NO_DROPOUT,
        )


def test_trainable_refuses_a_part_that_does_not_exist(tmp_path):
    with pytest.raises(ConfigError, match="no part 'hed'; parts begin with decoder, encoder, head"):
        trainer_for(tmp_path / "run", "training.trainable=[hed]")


def test_tokenizer_sees_only_the_training_split(tmp_path):
    (tmp_path / "train.tsv").write_bytes(b"a\tb\n")
    (tmp_path / "valid.tsv").write_bytes(b"a zebra\tb cebra\n")
    trainer = trainer_for(
        tmp_path / "run", f"data.train={tmp_path / 'train.tsv'}",
        f"data.valid={tmp_path / 'valid.tsv'}",
    )  # fmt: skip
    assert "zebra" not in trainer.tokenizer.source.tokens
    assert "cebra" not in trainer.tokenizer.target.tokens


def test_reference_with_unknown_words_is_never_an_exact_match(tmp_path):
    (tmp_path / "train.tsv").write_bytes(b"a\tb\n")
    (tmp_path / "valid.tsv").write_bytes(b"a\tcebra\n")
    trainer = trainer_for(
        tmp_path / "run", f"data.train={tmp_path / 'train.tsv'}",
        f"data.valid={tmp_path / 'valid.tsv'}",
    )  # fmt: skip
    with torch.no_grad():
        trainer.model.head.weight.zero_()
        trainer.model.head.bias.copy_(torch.tensor([0.0, 50.0, 0.0, 0.0, 0.0]))  # always <UNK>
    trainer.evaluate()
    assert [row["exact_match"] for row in metrics_without_clock(trainer.run_folder.path)] == [
        0.0,
        0.0,
    ]


def test_fresh_moves_nothing_until_the_new_run_can_start(tmp_path):
    trainer_for(tmp_path / "run").fit()
    with pytest.raises(DataError):
        trainer_for(tmp_path / "run", "data.train=absent.tsv", fresh=True)
    assert trainer_for(tmp_path / "run").is_finished
    fresh = trainer_for(tmp_path / "run", fresh=True)
    assert fresh.notes == [f"moved the old run to {tmp_path / 'run.old-1'}"]
    assert fresh.state.step == 0


def test_trainable_head_trains_tied_embeddings(tmp_path):
    trainer = trainer_for(
        tmp_path / "run", "model.tie_embeddings=target", "training.trainable=[head]"
    )
    trained = [name for name, value in trainer.model.named_parameters() if value.requires_grad]
    assert trained == ["decoder.embedding.weight", "head.bias"]


def test_finished_run_keeps_its_config(tmp_path):
    trainer_for(tmp_path / "run").fit()
    again = trainer_for(tmp_path / "run", "training.steps=5")
    again.fit()
    assert again.run_folder.load_config().training.steps == 12


def test_signal_between_two_saves_causes_a_save(tmp_path):
    class InterruptAtStep4(Callback):
        def on_step(self, trainer, report):
            if trainer.state.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    trainer = trainer_for(tmp_path / "run", callbacks=[InterruptAtStep4()])
    assert trainer.fit() == 143
    assert trainer.run_folder.steps()[0] == 4


def test_bleu_is_none_for_sentences_too_short(tmp_path):
    data = tmp_path / "own.tsv"
    data.write_bytes(b"Good night\tBuenas noches\n")
    trainer = trainer_for(tmp_path / "run", f"data.train={data}")
    trainer.evaluate()
    (row,) = metrics_without_clock(trainer.run_folder.path)
    assert row["bleu"] is None
    assert "tok:13a" in row["bleu_signature"]


@pytest.mark.parametrize(
    "shape",
    [("model.norm=pre", "model.d_ff=32"), RECURRENT, (*RECURRENT, "model.cell=lstm")],
    ids=["transformer", "gru", "lstm"],
)
def test_bf16_trains_nearly_the_same_and_keeps_float32_weights(tmp_path, shape):
    shape = (
        *shape,
        *NO_DROPOUT,
    )
    full = trainer_for(tmp_path / "full", *shape)
    half = trainer_for(tmp_path / "half", *shape, "training.precision=bf16")
    for step in range(5):
        losses = [trainer.step().loss.mean for trainer in (full, half)]
        assert losses[1] == pytest.approx(losses[0], rel=0.02)
        assert losses[1] != losses[0], step
    assert {value.dtype for value in weights(half).values()} == {torch.float32}
    assert {value.dtype for value in half.optimizer.state.values()} == {torch.float32}
    half.save()
    again = trainer_for(tmp_path / "half", *shape, "training.precision=bf16")
    assert half.step().loss == again.step().loss
    assert same_bits(weights(half), weights(again))
