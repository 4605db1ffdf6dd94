"""Each check of a model passes on correct models and fails on models with its mistake."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from minitransformer.cli import run_command
from minitransformer.cli.train import train as train_in_this_process
from minitransformer.data.batching import Batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import BOS_ID, EOS_ID
from minitransformer.doctor import model_checks
from minitransformer.doctor.model_checks import (
    MAX_TOKENS,
    CheckContext,
    CheckModel,
    check_attention,
    check_cache,
    check_causality,
    check_decoder_input,
    check_determinism,
    check_finite,
    check_initial_loss,
    check_overfitting,
    check_padding,
    check_word_order,
    make_context,
    padded_batch,
    quick_checks,
    sample_pairs,
)
from minitransformer.doctor.pitfalls import PITFALLS, patched
from minitransformer.doctor.report import FAILED, OK, WARNING, CheckResult
from minitransformer.model.base import build_model
from minitransformer.settings import Config, ModelConfig
from tests.support import broken_models
from tests.support.overrides import overrides
from tests.support.processes import run, train_command
from tests.support.small_runs import NO_TRANSFORMER_DROPOUT, SMALL, same_bits, trainer_for, weights
from tests.support.variants import RECURRENTS, VARIANTS, build, ids

CHECKS = {
    "decoder input": check_decoder_input,
    "finite values": check_finite,
    "attention weights": check_attention,
    "causality": check_causality,
    "padding": check_padding,
    "word order": check_word_order,
    "cached decoding": check_cache,
    "determinism": check_determinism,
}
PAIRS = [
    EncodedPair(
        ids(1, length, seed=length)[0].tolist(),
        [*ids(1, length - 1, seed=length + 9)[0].tolist(), EOS_ID],
    )
    for length in (2, 4, 5)
]


def context_of(name: str, **changes) -> CheckContext:
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    settings = replace(VARIANTS[name], **layers | changes)
    batch = padded_batch(PAIRS, BOS_ID, settings.max_length)
    return CheckContext(build(settings), batch, BOS_ID, Config(model=settings))


def failing(context: CheckContext) -> list[str]:
    return [each.name for each in quick_checks(context, is_fresh=False) if each.status == FAILED]


@pytest.mark.parametrize("name", VARIANTS)
def test_quick_checks_pass_on_a_correct_model_of_any_shape(name):
    context = context_of(name, num_encoder_layers=2, num_decoder_layers=2)
    results = quick_checks(context, is_fresh=False)
    assert [each.name for each in results] == list(CHECKS)
    assert [each.lines() for each in results if each.status != OK] == []


@pytest.mark.parametrize("name", ["minimal", "learned", "rotary", "shared-all"])
@pytest.mark.parametrize("mistake", ["causal", "padding", "shift", "positions", "softmax", "eval"])
def test_pitfall_fails_the_check_meant_for_it(name, mistake):
    check = CHECKS[PITFALLS[mistake].check]
    with patched(PITFALLS[mistake].patches):
        assert check(context_of(name, dropout=0.3)).status == FAILED
    assert check(context_of(name, dropout=0.3)).status == OK  # the code is restored


@pytest.mark.parametrize(
    ("mistake", "first"),
    [
        ("causal", "causality"), ("padding", "attention weights"), ("shift", "decoder input"),
        ("positions", "word order"), ("softmax", "attention weights"), ("eval", "determinism"),
    ],
)  # fmt: skip
def test_first_failed_check_names_the_cause(mistake, first):
    with patched(PITFALLS[mistake].patches):
        assert failing(context_of("minimal", dropout=0.3))[0] == first


@pytest.mark.parametrize("name", ["gru", "gru-bidirectional", "lstm"])
@pytest.mark.parametrize("mistake", ["padding", "shift", "softmax", "eval"])
def test_pitfall_in_a_recurrent_model_fails_the_check_meant_for_it(name, mistake):
    check = CHECKS[PITFALLS[mistake].check]
    with patched(PITFALLS[mistake].patches):
        assert check(context_of(name, dropout=0.3)).status == FAILED
    assert check(context_of(name, dropout=0.3)).status == OK


@pytest.mark.parametrize("name", RECURRENTS)
@pytest.mark.parametrize(
    ("mistake", "first", "cause"),
    [
        (broken_models.decoder_right_to_left, "causality", "from left to right"),
        (broken_models.padding_read, "padding", "padding must leave"),
        (broken_models.encoder_without_state, "word order", "must be computed from the one before"),
        (broken_models.cache_not_updated, "cached decoding", "carry the state of every layer"),
    ],
)
def test_mistake_of_a_recurrent_model_gets_advice_for_recurrent_models(name, mistake, first, cause):
    with mistake():
        found = [each for each in quick_checks(context_of(name), is_fresh=True)
                 if each.status == FAILED]  # fmt: skip
    assert found[0].name == first
    assert cause in found[0].advice
    sentences = " ".join(each.sentence() for each in found)
    assert not any(word in sentences for word in ("causal mask", "position", "keys", "norm"))


@pytest.mark.parametrize("name", ["gru-none", "lstm-none"])
def test_word_order_warns_if_the_decoder_ignores_the_encoders_final_state(name):
    with broken_models.decoder_starts_at_zero():
        result = check_word_order(context_of(name))
    assert result.status == WARNING
    assert "not initialized with the encoder's final state" in result.advice


def test_attention_may_be_missing_only_if_the_config_says_so():
    context = context_of("gru-none")
    assert check_attention(context).status == OK
    assert check_attention(context).measured == "the model has no attention"
    asked = replace(context.config.model, attention="dot")
    assert check_attention(context._replace(config=Config(model=asked))).status == FAILED


@pytest.mark.parametrize("name", ["minimal", "learned", "rotary"])
def test_cache_check_finds_positions_that_restart(name):
    with broken_models.positions_restart():
        assert check_cache(context_of(name)).status == FAILED
        assert check_padding(context_of(name)).status == OK


@pytest.mark.parametrize("name", ["minimal", "pre-norm", "rotary", "gru"])
def test_finite_check_finds_nan_for_unknown_words(name):
    with broken_models.unknown_masked():
        assert check_finite(context_of(name)).status == FAILED


def test_cache_check_finds_a_search_that_takes_the_second_best_token(monkeypatch):
    from minitransformer import search

    best = search.top_tokens

    def second_best(scores, count):
        values, numbers = best(scores, count + 1)
        return values[:, 1:], numbers[:, 1:]

    monkeypatch.setattr(search, "top_tokens", second_best)
    assert check_cache(context_of("minimal")).status == FAILED


def test_causality_warns_if_the_decoder_ignores_its_input():
    context = context_of("pre-norm")
    with torch.no_grad():
        context.model.head.weight.zero_()
    assert check_causality(context).status == WARNING


def test_word_order_warns_if_the_model_ignores_all_words():
    context = context_of("pre-norm")
    with torch.no_grad():
        context.model.encoder.embedding.weight.zero_()
    assert check_word_order(context).status == WARNING


def test_rounding_in_float32_is_a_warning_and_a_mistake_is_a_failure(monkeypatch):
    monkeypatch.setattr(model_checks, "RELATIVE_ROUNDING", 1e-10)  # below the precision of float32
    # Which shapes are rounded differently when padded depends on the processor.
    context = next(
        each for each in map(context_of, VARIANTS) if check_padding(each).status == FAILED
    )
    results = {each.name: each for each in quick_checks(context, is_fresh=False)}
    assert results["padding"].status == WARNING
    assert results["padding"].measured.endswith("in float32 only")
    with patched(PITFALLS["padding"].patches):
        assert "padding" in failing(context)


@pytest.mark.parametrize("norm", ["none", "pre", "post"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("std", [0.001, 0.02, 0.1])
def test_word_order_notices_positions_with_a_small_effect(position, norm, std):
    context = fresh(
        ModelConfig(d_model=16, positional_encoding=position, norm=norm, embedding_std=std)
    )
    assert check_word_order(context).status == OK
    with patched(PITFALLS["positions"].patches):
        broken = fresh(
            ModelConfig(d_model=16, positional_encoding=position, norm=norm, embedding_std=std)
        )
        assert check_word_order(broken).status == FAILED


def test_word_order_passes_if_all_sentences_are_palindromes():
    context = context_of("pre-norm")
    same = context.batch.source.new_tensor([[5, 6, 5], [7, 7, 0]])
    batch = Batch(same, *(ids[:2] for ids in context.batch[1:]))
    assert check_word_order(context._replace(batch=batch)).status == OK
    with broken_models.encoder_without_state():
        result = check_word_order(context_of("gru")._replace(batch=batch))
    assert (result.status, result.measured) == (OK, "no sentence has two different inner tokens")


def test_word_order_passes_without_positions_by_config():
    result = check_word_order(context_of("no-position"))
    assert result.status == OK
    assert "model.positional_encoding is none" in result.measured


def fresh(config: ModelConfig, size: int = 50) -> CheckContext:
    torch.manual_seed(1)
    model = build_model(config, size, size, pad_id=0)
    batch = padded_batch(PAIRS, BOS_ID, config.max_length)
    return CheckContext(model, batch, BOS_ID, Config(model=config))


def test_initial_loss_is_near_ln_v():
    result = check_initial_loss(fresh(ModelConfig()))
    assert result.status == OK
    assert "ln 50 = 3.91" in result.measured
    with patched(PITFALLS["scale"].patches):
        assert check_initial_loss(fresh(ModelConfig())).status == WARNING


def test_initial_loss_of_tied_weights_leaves_out_the_input_token():
    tied = ModelConfig(
        d_model=128, num_encoder_layers=2, num_decoder_layers=2, num_heads=4, d_ff=64, norm="pre",
        tie_embeddings="all", scale_embeddings=True, embedding_std=128**-0.5,
    )  # fmt: skip
    result = check_initial_loss(fresh(tied))
    assert result.status == OK
    assert result.measured.endswith("without the input token")
    assert check_initial_loss(fresh(replace(tied, embedding_std=1.0))).status == WARNING


def test_initial_loss_warns_if_a_new_model_predicts_the_labels():
    context = fresh(ModelConfig())
    with torch.no_grad():
        context.model.head.bias[context.batch.target_output.unique()] = 4.0
    result = check_initial_loss(context)
    assert result.status == WARNING
    assert "predicts the labels" in result.advice


def overfitting(tmp_path, *changes: str) -> CheckResult:
    trainer = trainer_for(tmp_path / "run", *changes)
    pairs = sample_pairs(trainer.encoded["train"])
    return check_overfitting(pairs, trainer.tokenizer, trainer.config)


def test_overfitting_passes_with_any_dropout(tmp_path):
    result = overfitting(tmp_path, "model.dropout=0.5", "training.label_smoothing=0.3")
    assert result.status == OK, result.lines()


def test_overfitting_passes_for_a_recurrent_model(tmp_path):
    result = overfitting(
        tmp_path, "model.kind=recurrent", "model.cell=lstm", "model.attention=none"
    )
    assert result.status == OK, result.lines()


def test_overfitting_fails_if_a_model_cannot_learn(tmp_path, monkeypatch):
    monkeypatch.setattr(model_checks, "OVERFITTING_STEPS", 30)
    no_gradient = "parameters get no gradient, the first is encoder.embedding.weight"
    with broken_models.encoder_detached():
        for changes in ([], ["model.kind=recurrent"]):
            result = overfitting(tmp_path, *changes)
            assert result.status == FAILED
            assert no_gradient in result.measured
    result = overfitting(tmp_path, "training.learning_rate=0.0000001")
    assert result.status == FAILED
    assert "learning_rate" in result.advice


def test_sample_pairs_are_short_and_different(tmp_path):
    encoded = trainer_for(tmp_path / "run", "data.limit=0").encoded["train"]
    pairs = sample_pairs(encoded)
    assert len(pairs) == 6
    assert len({tuple(pair.source) for pair in pairs}) == 6
    assert len({len(pair.target) for pair in pairs}) > 1


def test_sample_pairs_truncates_long_ones(tmp_path):
    (tmp_path / "long.tsv").write_text(f"{'a b c ' * 9}\t{'d e ' * 12}\n{'b c a ' * 9}\tf\n")
    trainer = trainer_for(tmp_path / "run", f"data.train={tmp_path / 'long.tsv'}")
    pairs = sample_pairs(trainer.encoded["train"])
    assert {max(map(len, pair)) for pair in pairs} == {MAX_TOKENS}
    assert all(pair.target[-1] == EOS_ID for pair in pairs)


@pytest.mark.parametrize("is_training", [True, False])
def test_checks_change_no_weights_modes_or_random_state(tmp_path, is_training):
    trainer = trainer_for(tmp_path / "run", "model.dropout=0.3")
    model = trainer.model.train(is_training)
    before, state = weights(trainer), torch.get_rng_state()
    pairs = sample_pairs(trainer.encoded["train"])
    quick_checks(make_context(model, pairs, trainer.tokenizer, trainer.config), is_fresh=True)
    check_overfitting(pairs, trainer.tokenizer, trainer.config)
    assert same_bits(before, weights(trainer))
    assert torch.equal(state, torch.get_rng_state())
    assert all(module.training is is_training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_checks_change_no_bits_of_training(tmp_path):
    plain, checked = (
        trainer_for(tmp_path / name, "training.steps=6") for name in ("plain", "checked")
    )
    assert plain.fit() == 0
    CheckModel().on_start(checked)
    assert checked.fit() == 0
    assert same_bits(weights(plain), weights(checked))
    assert same_bits(plain.optimizer.state, checked.optimizer.state)


def train(*arguments: str) -> int:
    settings = overrides("logging.tensorboard=false", *SMALL, *arguments)
    return run_command(lambda: train_in_this_process(["--config", "tiny", *settings]))


@pytest.mark.parametrize("mistake", ["causal", "eval"])
def test_train_refuses_a_broken_model(tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(tmp_path)
    with patched(PITFALLS[mistake].patches):
        assert train() == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: the model fails a check; ")
    assert PITFALLS[mistake].check in err
    assert len(err.splitlines()) == 1
    assert list((tmp_path / "runs" / "tiny" / "checkpoints").iterdir()) == []
    assert train("training.steps=1") == 0  # in the same folder


def test_train_refuses_a_recurrent_model_that_reads_later_tokens(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with broken_models.decoder_right_to_left():
        assert train(*NO_TRANSFORMER_DROPOUT, "model.kind=recurrent") == 1
    err = capsys.readouterr().err
    assert err.startswith("error: the model fails a check; causality: ")
    assert len(err.splitlines()) == 1
    assert train(*NO_TRANSFORMER_DROPOUT, "model.kind=recurrent", "training.steps=1") == 0


@pytest.mark.slow
def test_train_with_nan_weights_stops_all_processes_with_one_message(tmp_path):
    save_file({"head.bias": torch.full((82,), torch.nan)}, tmp_path / "w.safetensors")
    settings = (*SMALL, "data.limit=0", "model.d_model=64", "training.processes=2",
                "training.init_from=w.safetensors", "logging.tensorboard=false")  # fmt: skip
    result = run(*train_command(*settings), folder=tmp_path)
    assert result.code == 1
    assert result.err == (
        "error: the model fails a check; finite values: head.bias has NaN or infinite values; "
        "training diverged, or the file of weights is damaged\n"
    )


def test_train_prints_a_warning_as_a_note(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert train("model.embedding_std=8", "training.steps=2") == 0
    assert "note: initial loss: " in capsys.readouterr().err


def test_resumed_run_is_checked_and_a_finished_one_is_not(tmp_path, monkeypatch):
    checked = []

    def record_call(context, *, is_fresh):
        checked.append(is_fresh)
        return []

    monkeypatch.setattr(model_checks, "quick_checks", record_call)
    path = tmp_path / "run"
    trainer = trainer_for(path)
    CheckModel().on_start(trainer)
    for _ in range(3):
        trainer.step()
    trainer.save()
    trainer = trainer_for(path)
    CheckModel().on_start(trainer)
    trainer.fit()
    CheckModel().on_start(trainer_for(path))
    assert checked == [True, False]
