"""The doctor: each check passes on every sound model, and fails on a model broken in its way."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from minitransformer.command_line import run_command
from minitransformer.data.batching import Batch
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import BOS_ID, EOS_ID
from minitransformer.doctor import model_checks as examination
from minitransformer.doctor import model_checks as learning_checks
from minitransformer.doctor import model_checks as patient_module
from minitransformer.doctor.findings import FAILED, OK, WARNING, Finding
from minitransformer.doctor.model_checks import (
    CHECKS,
    LONGEST,
    CheckModel,
    Patient,
    attention_rows,
    cached_as_uncached,
    decoder_input,
    few_pairs,
    finite_everywhere,
    new_patient,
    no_look_ahead,
    no_neighbours,
    one_batch_by_heart,
    padded_batch,
    quick_checks,
    same_twice,
    start_loss,
    word_order,
)
from minitransformer.doctor.pitfalls import BREAKAGES
from minitransformer.model.base import build_model
from minitransformer.settings import Config, ModelConfig
from tests import broken_models
from tests.processes import run
from tests.small_runs import NO_TRANSFORMER_DROPOUT, SMALL, same_bits, trainer_for, weights
from tests.variants import RECURRENTS, VARIANTS, build, ids

MEANT = {  # the check behind each name
    "decoder's input": decoder_input,
    "attention": attention_rows,
    "no look ahead": no_look_ahead,
    "padding, neighbours": no_neighbours,
    "word order": word_order,
    "same twice": same_twice,
}
PAIRS = [
    EncodedPair(
        ids(1, length, seed=length)[0].tolist(),
        [*ids(1, length - 1, seed=length + 9)[0].tolist(), EOS_ID],
    )
    for length in (2, 4, 5)
]


@pytest.fixture(autouse=True)
def one_thread():
    """Models this small only wait for a second one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def patient(name: str, **changes) -> Patient:
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    settings = replace(VARIANTS[name], **layers | changes)
    batch = padded_batch(PAIRS, BOS_ID, settings.max_length)
    return Patient(build(settings), batch, BOS_ID, Config(model=settings))


def failing(someone: Patient) -> list[str]:
    return [each.name for each in quick_checks(someone, is_fresh=False) if each.verdict == FAILED]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_sound_model_of_any_shape_passes_every_check(name):
    someone = patient(name, num_encoder_layers=2, num_decoder_layers=2)
    findings = quick_checks(someone, is_fresh=False)
    assert len(findings) == len(CHECKS)
    assert [each.lines() for each in findings if each.verdict != OK] == []


@pytest.mark.parametrize("name", ["seed", "learned", "rotary", "shared-all"])
@pytest.mark.parametrize("mistake", ["causal", "padding", "shift", "positions", "softmax", "eval"])
def test_a_classic_mistake_fails_the_check_that_is_meant_for_it(name, mistake):
    check = MEANT[BREAKAGES[mistake].check]
    with BREAKAGES[mistake].made():
        assert check(patient(name, dropout=0.3)).verdict == FAILED
    assert check(patient(name, dropout=0.3)).verdict == OK  # it is undone


@pytest.mark.parametrize(
    ("mistake", "first"),
    [
        ("causal", "no look ahead"), ("padding", "attention"), ("shift", "decoder's input"),
        ("positions", "word order"), ("softmax", "attention"), ("eval", "same twice"),
    ],
)  # fmt: skip
def test_the_first_failed_check_says_what_is_wrong(mistake, first):
    with BREAKAGES[mistake].made():
        assert failing(patient("seed", dropout=0.3))[0] == first


@pytest.mark.parametrize("name", ["gru", "gru-both-ways", "lstm"])
@pytest.mark.parametrize("mistake", ["padding", "shift", "softmax", "eval"])
def test_a_recurrent_model_fails_the_check_that_is_meant_for_a_mistake_of_any_model(name, mistake):
    check = MEANT[BREAKAGES[mistake].check]
    with BREAKAGES[mistake].made():
        assert check(patient(name, dropout=0.3)).verdict == FAILED
    assert check(patient(name, dropout=0.3)).verdict == OK


@pytest.mark.parametrize("name", RECURRENTS)
@pytest.mark.parametrize(
    ("mistake", "first", "cause"),
    [
        (broken_models.decoder_from_the_right, "no look ahead", "from left to right"),
        (broken_models.padding_read, "padding, neighbours", "padding must leave"),
        (broken_models.encoder_forgetful, "word order", "the encoder's states must be made of"),
        (broken_models.cache_forgetful, "cached, uncached", "carry the state of every layer"),
    ],
)
def test_what_only_a_recurrent_model_can_do_wrong_is_found(name, mistake, first, cause):
    with mistake():
        found = [each for each in quick_checks(patient(name), is_fresh=True)
                 if each.verdict == FAILED]  # fmt: skip
    assert found[0].name == first
    assert cause in found[0].advice
    told = " ".join(each.sentence() for each in found)
    assert not any(word in told for word in ("causal", "position", "keys", "norm"))


@pytest.mark.parametrize("name", ["gru-none", "lstm-none"])
def test_without_attention_a_decoder_that_begins_from_nothing_does_not_notice_the_source(name):
    with broken_models.decoder_deaf():
        finding = word_order(patient(name))
    assert finding.verdict == WARNING
    assert "begin where the encoder ends" in finding.advice


def test_a_model_without_attention_has_no_rows_and_one_that_lost_it_is_noticed():
    someone = patient("gru-none")
    assert attention_rows(someone).verdict == OK
    assert attention_rows(someone).measured == "the model has no attention"
    asked = replace(someone.config.model, attention="dot")
    assert attention_rows(someone._replace(config=Config(model=asked))).verdict == FAILED


@pytest.mark.parametrize("name", ["seed", "learned", "rotary"])
def test_a_cache_that_forgets_its_place_is_noticed(name):
    with broken_models.restarted():
        assert cached_as_uncached(patient(name)).verdict == FAILED
        assert no_neighbours(patient(name)).verdict == OK


@pytest.mark.parametrize("name", ["seed", "pre-norm", "rotary", "gru"])
def test_a_sentence_of_unknown_words_that_gives_no_number_is_noticed(name):
    with broken_models.unknown_as_padding():
        assert finite_everywhere(patient(name)).verdict == FAILED


def test_a_search_that_takes_the_second_best_is_noticed(monkeypatch):
    from minitransformer import search

    best = search.top_tokens

    def second_best(scores, count):
        values, numbers = best(scores, count + 1)
        return values[:, 1:], numbers[:, 1:]

    monkeypatch.setattr(search, "top_tokens", second_best)
    assert cached_as_uncached(patient("seed")).verdict == FAILED


def test_a_decoder_that_ignores_what_it_reads_is_a_warning_and_not_called_sound():
    someone = patient("pre-norm")
    with torch.no_grad():
        someone.model.head.weight.zero_()
    assert no_look_ahead(someone).verdict == WARNING


def test_a_model_that_notices_no_word_cannot_be_blamed_for_their_order():
    someone = patient("pre-norm")
    with torch.no_grad():
        someone.model.encoder.embedding.weight.zero_()
    assert word_order(someone).verdict == WARNING


def test_what_more_digits_mend_is_a_warning_and_what_they_do_not_is_a_failure(monkeypatch):
    monkeypatch.setattr(patient_module, "ROUNDING", 1e-10)  # which float32 cannot keep
    # Which shapes are rounded differently when padded depends on the processor.
    someone = next(each for each in map(patient, VARIANTS) if no_neighbours(each).verdict == FAILED)
    findings = {each.name: each for each in quick_checks(someone, is_fresh=False)}
    assert findings["padding, neighbours"].verdict == WARNING
    assert findings["padding, neighbours"].measured.endswith("in float32 alone")
    with BREAKAGES["padding"].made():
        assert "padding, neighbours" in failing(someone)


@pytest.mark.parametrize("norm", ["none", "pre", "post"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("std", [0.001, 0.02, 0.1])
def test_places_that_hardly_show_at_first_are_no_mistake(position, norm, std):
    someone = fresh(
        ModelConfig(d_model=16, positional_encoding=position, norm=norm, embedding_std=std)
    )
    assert word_order(someone).verdict == OK
    with BREAKAGES["positions"].made():
        broken = fresh(
            ModelConfig(d_model=16, positional_encoding=position, norm=norm, embedding_std=std)
        )
        assert word_order(broken).verdict == FAILED


def test_sentences_that_read_the_same_backwards_say_nothing_of_places():
    someone = patient("pre-norm")
    same = someone.batch.source.new_tensor([[5, 6, 5], [7, 7, 0]])
    batch = Batch(same, *(ids[:2] for ids in someone.batch[1:]))
    assert word_order(someone._replace(batch=batch)).verdict == OK
    with broken_models.encoder_forgetful():
        finding = word_order(patient("gru")._replace(batch=batch))
    assert (finding.verdict, finding.measured) == (OK, "no sentence has two different inner words")


def test_no_positions_by_choice_are_no_mistake():
    finding = word_order(patient("no-position"))
    assert finding.verdict == OK
    assert "model.positional_encoding is none" in finding.measured


def fresh(config: ModelConfig, size: int = 50) -> Patient:
    torch.manual_seed(1)
    model = build_model(config, size, size, pad_id=0)
    batch = padded_batch(PAIRS, BOS_ID, config.max_length)
    return Patient(model, batch, BOS_ID, Config(model=config))


def test_a_fresh_model_starts_near_the_logarithm_of_its_vocabulary():
    finding = start_loss(fresh(ModelConfig()))
    assert finding.verdict == OK
    assert "ln 50 = 3.91" in finding.measured
    with BREAKAGES["scale"].made():
        assert start_loss(fresh(ModelConfig())).verdict == WARNING


def test_a_tied_head_may_expect_the_token_just_read():
    tied = ModelConfig(
        d_model=128, num_encoder_layers=2, num_decoder_layers=2, num_heads=4, d_ff=64, norm="pre",
        tie_embeddings="all", scale_embeddings=True, embedding_std=128**-0.5,
    )  # fmt: skip
    finding = start_loss(fresh(tied))
    assert finding.verdict == OK
    assert finding.measured.endswith("the token just read apart")
    assert start_loss(fresh(replace(tied, embedding_std=1.0))).verdict == WARNING


def test_a_fresh_model_that_knows_the_answers_is_a_warning():
    someone = fresh(ModelConfig())
    with torch.no_grad():
        someone.model.head.bias[someone.batch.target_output.unique()] = 4.0
    finding = start_loss(someone)
    assert finding.verdict == WARNING
    assert "knows answers" in finding.advice


def by_heart(tmp_path, *changes: str) -> Finding:
    trainer = trainer_for(tmp_path / "run", *changes)
    pairs = few_pairs(trainer.encoded["train"])
    return one_batch_by_heart(pairs, trainer.tokenizer, trainer.config)


def test_a_sound_model_learns_a_batch_by_heart_whatever_its_dropout(tmp_path):
    finding = by_heart(tmp_path, "model.dropout=0.5", "training.label_smoothing=0.3")
    assert finding.verdict == OK, finding.lines()


def test_a_sound_recurrent_model_learns_a_batch_by_heart(tmp_path):
    finding = by_heart(tmp_path, "model.kind=recurrent", "model.cell=lstm", "model.attention=none")
    assert finding.verdict == OK, finding.lines()


def test_a_model_that_cannot_learn_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_checks, "STEPS", 30)
    no_gradient = "weights get no gradient, the first of them encoder.embedding.weight"
    with broken_models.detached():
        for changes in ([], ["model.kind=recurrent"]):
            finding = by_heart(tmp_path, *changes)
            assert finding.verdict == FAILED
            assert no_gradient in finding.measured
    finding = by_heart(tmp_path, "training.learning_rate=0.0000001")
    assert finding.verdict == FAILED
    assert "learning_rate" in finding.advice


def test_the_examined_pairs_are_short_and_different(tmp_path):
    encoded = trainer_for(tmp_path / "run", "data.limit=0").encoded["train"]
    pairs = few_pairs(encoded)
    assert len(pairs) == 6
    assert len({tuple(pair.source) for pair in pairs}) == 6
    assert len({len(pair.target) for pair in pairs}) > 1


def test_of_long_pairs_the_beginnings_are_examined(tmp_path):
    (tmp_path / "long.tsv").write_text(f"{'a b c ' * 9}\t{'d e ' * 12}\n{'b c a ' * 9}\tf\n")
    trainer = trainer_for(tmp_path / "run", f"data.train={tmp_path / 'long.tsv'}")
    pairs = few_pairs(trainer.encoded["train"])
    assert {max(map(len, pair)) for pair in pairs} == {LONGEST}
    assert all(pair.target[-1] == EOS_ID for pair in pairs)


@pytest.mark.parametrize("is_training", [True, False])
def test_an_examination_leaves_everything_as_it_was(tmp_path, is_training):
    trainer = trainer_for(tmp_path / "run", "model.dropout=0.3")
    model = trainer.model.train(is_training)
    before, state = weights(trainer), torch.get_rng_state()
    pairs = few_pairs(trainer.encoded["train"])
    quick_checks(new_patient(model, pairs, trainer.tokenizer, trainer.config), is_fresh=True)
    one_batch_by_heart(pairs, trainer.tokenizer, trainer.config)
    assert same_bits(before, weights(trainer))
    assert torch.equal(state, torch.get_rng_state())
    assert all(module.training is is_training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_examined_training_has_the_bits_of_one_that_was_not(tmp_path):
    plain, examined = (
        trainer_for(tmp_path / name, "training.steps=6") for name in ("plain", "examined")
    )
    assert plain.fit() == 0
    CheckModel().on_start(examined)
    assert examined.fit() == 0
    assert same_bits(weights(plain), weights(examined))
    assert same_bits(plain.optimizer.state, examined.optimizer.state)


def train(*arguments: str) -> int:
    import train as script

    settings = [part for setting in (*SMALL, *arguments) for part in ("--set", setting)]
    return run_command(
        lambda: script.main(["--config", "tiny", "--set", "logging.tensorboard=false", *settings])
    )


@pytest.mark.parametrize("mistake", ["causal", "eval"])
def test_a_broken_model_is_not_trained(tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(tmp_path)
    with BREAKAGES[mistake].made():
        assert train() == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: the model fails a check; ")
    assert BREAKAGES[mistake].check in err
    assert len(err.splitlines()) == 1
    assert list((tmp_path / "runs" / "tiny" / "checkpoints").iterdir()) == []
    assert train("training.steps=1") == 0  # what is left of it is no obstacle


def test_a_recurrent_model_that_looks_ahead_is_not_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with broken_models.decoder_from_the_right():
        assert train(*NO_TRANSFORMER_DROPOUT, "model.kind=recurrent") == 1
    err = capsys.readouterr().err
    assert err.startswith("error: the model fails a check; no look ahead: ")
    assert len(err.splitlines()) == 1
    assert train(*NO_TRANSFORMER_DROPOUT, "model.kind=recurrent", "training.steps=1") == 0


@pytest.mark.slow
def test_a_model_of_no_numbers_stops_all_processes_with_the_same_words(tmp_path):
    save_file({"head.bias": torch.full((82,), torch.nan)}, tmp_path / "w.safetensors")
    settings = (*SMALL, "data.limit=0", "model.d_model=64", "training.processes=2",
                "training.init_from=w.safetensors", "logging.tensorboard=false")  # fmt: skip
    changes = [part for setting in settings for part in ("--set", setting)]
    result = run("train.py", "--config", "tiny", *changes, folder=tmp_path)
    assert result.code == 1
    assert result.err == (
        "error: the model fails a check; finite: head.bias holds values that are no numbers; "
        "a training that diverged, or a damaged file of weights\n"
    )


def test_a_doubtful_start_is_a_note_of_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert train("model.embedding_std=8", "training.steps=2") == 0
    assert "note: loss at start: " in capsys.readouterr().err


def test_a_run_that_goes_on_is_examined_and_one_that_is_finished_is_not(tmp_path, monkeypatch):
    examined = []

    def look(patient, *, is_fresh):
        examined.append(is_fresh)
        return []

    monkeypatch.setattr(examination, "quick_checks", look)
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
    assert examined == [True, False]
