"""The prompt's colon commands explain the last translation and run experiments on it."""

from dataclasses import replace

import pytest
import torch

from minitransformer.cli.prompt import Prompt
from minitransformer.errors import UsageError, UserError
from minitransformer.explain.interventions import NOTHING, changed_model
from minitransformer.model.trace import record
from minitransformer.translator import Translator
from tests.support.small_runs import translator_for
from tests.support.variants import ids


@pytest.fixture
def prompt(tiny):
    return Prompt(Translator.load(tiny.path), scores=False)


def answer(prompt, capsys, *lines: str) -> str:
    for line in lines[:-1]:
        prompt.answer(line)
    capsys.readouterr()
    prompt.answer(lines[-1])
    return capsys.readouterr().out


def test_prompt_translates_and_explains(prompt, capsys):
    assert answer(prompt, capsys, "I go to school") == "Voy a la escuela\n"
    walk = answer(prompt, capsys, ":walk")
    assert "checked: " in walk
    assert walk.count("Step ") == 5
    assert len(answer(prompt, capsys, ":full")) > 4 * len(walk)
    attention = answer(prompt, capsys, ":attention")
    assert "masked self-attention" in attention
    assert "<EOS> → Voy" in attention
    assert answer(prompt, capsys, ":why").count("without it") == 5
    for command in (":walk", ":hide", ":head", ":position", ":force", ":reset", ":why"):
        assert command in answer(prompt, capsys, ":help")


def test_prompt_experiments_show_change_and_undo(prompt, capsys):
    before = answer(prompt, capsys, "I go to school", ":walk")
    hidden = answer(prompt, capsys, ":hide 4")
    assert "token 4 hidden" in hidden
    assert "before  Voy a la escuela\n" in hidden
    assert "now     Voy a la escuela\n" not in hidden
    off = answer(prompt, capsys, ":hide 4", ":head cross.0.0 off")
    assert "head cross.0.0 off" in off
    assert "hidden" not in off
    none = answer(prompt, capsys, ":head cross.0.0 on", ":position off")
    assert "positions off" in none
    forced = answer(prompt, capsys, ":position on", ":force Vamos")
    assert "now     Vamos" in forced
    assert "produced       (forced) Vamos" in answer(prompt, capsys, ":walk")
    other = answer(prompt, capsys, "We drink tea")  # the experiment applies to later sentences, too
    assert "forced: Vamos" in other
    assert "probability of each token that is produced now" in other
    assert "all changes undone" in answer(prompt, capsys, ":reset")
    assert answer(prompt, capsys, "I go to school", ":walk") == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (":wlak", "no command ':wlak': did you mean ':walk'?"),
        (":", "no command ':'"),
        (":walk now", "unexpected 'now'"),
        (":hide", "from 1 to 2"),
        (":hide 3", "from 1 to 2"),
        (":hide two", "from 1 to 2"),
        (f":hide {'1' * 5000}", "from 1 to 2"),
        (":head encoder.0.1 off", "encoder.0.1: no head 1; the last one is 0"),
        (":head encoder.4.0 off", "encoder.4.0: no layer 4; the last one is 0"),
        (":head middle off", "'middle' is not a head"),
        (":head encoder.0.0", "give a head and on or off"),
        (":position", "give on or off"),
        (":force vamoz", "the target vocabulary has no word 'vamoz'"),
    ],
)
def test_prompt_wrong_command_changes_nothing(prompt, line, message):
    prompt.answer("Let's go")
    with pytest.raises(UserError) as caught:
        prompt.answer(line)
    assert message in str(caught.value)
    assert str(prompt.experiment) == ""


@pytest.mark.parametrize("has_projection", ["true", "false"])
def test_prompt_head_off_zeroes_the_context_of_a_recurrent_model(tmp_path, has_projection):
    model = translator_for(
        tmp_path, "model.kind=recurrent", f"model.output_projection={has_projection}"
    ).model
    source, target = ids(2, 5), ids(2, 4, seed=2)
    off = changed_model(model, NOTHING.with_head("cross.0.0", is_on=False))
    with record(model) as before:
        logits = model(source, target)
    with record(off) as tensors:
        changed = off(source, target)
    assert tensors["decoder.attention.context"].count_nonzero() == 0
    assert torch.equal(tensors["decoder.attention.weights"], before["decoder.attention.weights"])
    assert not torch.allclose(changed, logits)
    assert torch.equal(model(source, target), logits)  # the model itself is unchanged


@pytest.mark.parametrize(
    ("attention", "name", "message"),
    [
        ("dot", "encoder.0.0", "encoder.0.0: the only head of a recurrent model is cross.0.0"),
        ("dot", "decoder.0.0", "decoder.0.0: the only head of a recurrent model is cross.0.0"),
        ("dot", "cross.0.1", "cross.0.1: the only head of a recurrent model is cross.0.0"),
        ("dot", "middle", "'middle' is not a head"),
        ("none", "cross.0.0", "cross.0.0: this model has no heads (model.attention is none)"),
    ],
)
def test_prompt_refuses_an_unknown_head_of_a_recurrent_model(tmp_path, attention, name, message):
    translator = translator_for(tmp_path, "model.kind=recurrent", f"model.attention={attention}")
    with pytest.raises(UsageError) as caught:
        Prompt(translator, scores=False).answer(f":head {name} off")
    assert message in str(caught.value)


def test_prompt_positions_off_changes_only_models_with_positions(tmp_path):
    source, target = ids(2, 5), ids(2, 4, seed=2)
    off = replace(NOTHING, positions_off=True)
    for position, is_same in (("sinusoidal", False), ("none", True)):
        model = translator_for(
            tmp_path / position, "model.kind=recurrent", f"model.positional_encoding={position}"
        ).model
        without = changed_model(model, off)
        assert torch.equal(model(source, target), without(source, target)) == is_same


def test_prompt_position_off_needs_positional_encoding(tmp_path):
    prompt = Prompt(translator_for(tmp_path, "model.positional_encoding=none"), scores=False)
    with pytest.raises(
        UsageError, match=r"no positional encoding \(model.positional_encoding is none\)"
    ):
        prompt.answer(":position off")


def test_prompt_commands_need_a_sentence(prompt):
    for line in (":walk", ":full", ":attention", ":why", ":hide 1", ":reset", ":position off"):
        with pytest.raises(UserError, match="type a sentence first"):
            prompt.answer(line)


def test_prompt_quits_by_command(prompt):
    for line in (":quit", ":exit", ":q"):
        with pytest.raises(EOFError):
            prompt.answer(line)


def test_prompt_normalizes_the_name_of_a_head(prompt, capsys):
    answer(prompt, capsys, "Let's go", ":head encoder.00.0 off")
    assert "all changes undone" in answer(prompt, capsys, ":head encoder.0.00 on")
    assert "no change" in answer(prompt, capsys, ":reset")


def test_prompt_hides_all_words_but_one(prompt):
    prompt.answer("Let's go")
    prompt.answer(":hide 1")
    with pytest.raises(UserError, match="every source word is hidden"):
        prompt.answer(":hide 2")
    assert prompt.experiment.hidden == {1}
