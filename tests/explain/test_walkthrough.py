"""A walk-through has the values that the model computed, and its check finds changed ones."""

import dataclasses
import re

import pytest
import torch
from torch import Tensor

from minitransformer.data.tokenizer import PAD_ID
from minitransformer.errors import DataError
from minitransformer.explain.attention_maps import attention_views
from minitransformer.explain.checking import Mismatch, check
from minitransformer.explain.interventions import Experiment, log_probabilities
from minitransformer.explain.stages import AttentionStage, EmbeddingStage, ResidualStage
from minitransformer.explain.walkthrough import walk_through
from minitransformer.model.trace import record
from minitransformer.translator import Translator
from minitransformer.worked.engine import check_sheet
from minitransformer.worked.reader import load_shipped
from minitransformer.worked.sheet import is_rounded
from tests.support.processes import run
from tests.support.translator_shapes import (
    SENTENCE,
    SHAPES,
    every_shape,
    long_for_every_shape,
    translator_of_shape,
)


@pytest.fixture(scope="module")
def translators(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walks")
    return {shape: translator_of_shape(shape, folder) for shape in SHAPES}


@every_shape
def test_walkthrough_equals_the_translation_and_passes_its_check(shape, translators):
    translator = translators[shape]
    walk = walk_through(translator, SENTENCE)
    translation = translator.translate([SENTENCE])[0]
    assert [step.produced for step in walk.steps] == translation.tokens
    assert walk.translation == translation.text
    assert [step.probability for step in walk.steps] == pytest.approx(
        [score.probability for score in translation.token_scores], abs=1e-5
    )
    assert check(walk) > 1000


@every_shape
def test_walkthrough_step_t_is_row_t_of_the_teacher_forced_trace(shape, translators):
    translator = translators[shape]
    translator.model.double()
    try:
        walk = walk_through(translator, SENTENCE)
        fed = torch.tensor([[step.fed_id for step in walk.steps]])
        with torch.no_grad(), record(translator.model) as forced:
            translator.model(torch.tensor([walk.source_ids]), fed)
    finally:
        translator.model.float()
    for step in walk.steps:
        row = step.number - 1
        assert torch.allclose(step.head.logits, forced["logits"][0, row], atol=1e-10)
        for stage in step.stages:
            if isinstance(stage, AttentionStage):
                num_keys = len(stage.keys)
                for name in ("query", "context"):
                    expected = forced[f"{stage.path}.{name}"][0, :, row]
                    assert torch.allclose(getattr(stage, name)[:, 0], expected, atol=1e-10)
                expected = forced[f"{stage.path}.weights"][0, :, row, :num_keys]
                assert torch.allclose(stage.weights[:, 0], expected, atol=1e-10)
            elif isinstance(stage, ResidualStage):
                expected = forced[f"{stage.path}.total"][0, row]
                assert torch.allclose(stage.total[0], expected, atol=1e-10)


@long_for_every_shape
def test_check_names_any_changed_tensor(shape, translators):
    walk = walk_through(translators[shape], SENTENCE)
    for number, stage in walk.stages():
        if number > (2 if shape == "tiny" else 1):  # later steps are like the second
            break
        for field in dataclasses.fields(stage):
            tensor = getattr(stage, field.name)
            if not isinstance(tensor, Tensor):
                continue
            index = tuple(size // 2 for size in tensor.shape)
            kept = tensor[index].clone()
            tensor[index] = ~kept if tensor.dtype == torch.bool else kept + 0.01 * (1 + abs(kept))
            with pytest.raises(Mismatch) as caught:
                check(walk)
            step = "encoder" if number == 0 else f"decoding step {number}"
            assert str(caught.value).startswith(f"{step}: {stage.path}.{field.name}")
            tensor[index] = kept
    check(walk)


@long_for_every_shape
def test_check_names_any_changed_word_or_choice(shape, translators):
    walk = walk_through(translators[shape], SENTENCE, expected="Voy a casa",
                        experiment=Experiment(forced="Voy", hidden=frozenset({2})))  # fmt: skip
    check(walk)
    step = walk.steps[1]
    changes = {
        "produced": {"produced_id": step.produced_id + 1}, "fed": {"fed_id": step.fed_id + 1},
        "candidates.id": {"candidates": step.candidates[::-1]},
        "is_forced": {"is_forced": not step.is_forced},
        "candidates.token": {"candidates": [each._replace(token="?") for each in step.candidates]},
        "why": {"why": [None if change is None else change + 1 for change in step.why]},
        "fed is": {"fed": "?"}, "produced is": {"produced": "?"}, "expected": {"expected": "?"},
    }  # fmt: skip
    for name, change in changes.items():
        steps = [walk.steps[0], dataclasses.replace(step, **change), *walk.steps[2:]]
        with pytest.raises(Mismatch, match=rf"decoding step [23]: {re.escape(name)}"):
            check(dataclasses.replace(walk, steps=steps))
    for change in ({"hidden": walk.hidden[::-1]}, {"translation": "?"}, {"source": ["?"] * 9},
                   {"is_finished": not walk.is_finished}, {"source_ids": walk.source_ids[::-1]},
                   {"expected": ["?"]}):  # fmt: skip
        with pytest.raises(Mismatch):
            check(dataclasses.replace(walk, **change))
    for number, stage in enumerate(walk.encoder):
        for field in ("tokens", "ids", "queries", "keys"):
            if hasattr(stage, field):
                other = dataclasses.replace(stage, **{field: getattr(stage, field)[::-1]})
                encoder = [*walk.encoder[:number], other, *walk.encoder[number + 1 :]]
                with pytest.raises(Mismatch):
                    check(dataclasses.replace(walk, encoder=encoder))


def test_check_finds_small_probabilities_and_single_weights(translators):
    translator = translators["pre-norm"]
    walk = walk_through(translator, SENTENCE)
    small = walk.steps[0].head.probabilities
    index = int(small.argmin())
    kept = small[index].clone()
    small[index] += 2e-5
    with pytest.raises(Mismatch, match=r"step 1: head\.probabilities"):
        check(walk)
    small[index] = kept
    for name, parameter in translator.model.named_parameters():
        if "layers.0" not in name or name.endswith("fc2.weight"):  # the unit may be inactive
            continue
        index = tuple(size // 2 for size in parameter.shape)
        kept = parameter.detach()[index].clone()
        with torch.no_grad():
            parameter[index] += 0.05
        with pytest.raises(Mismatch):
            check(walk)
        with torch.no_grad():
            parameter[index] = kept
    check(walk)


@long_for_every_shape
def test_check_finds_any_changed_parameter(shape, translators):
    translator = translators[shape]
    walk = walk_through(translator, SENTENCE)
    for name, parameter in translator.model.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(1.1).add_(0.1)
        with pytest.raises(Mismatch) as caught:
            check(walk)
        block = name.rsplit(".", 2)[0]  # of decoder.layers.0.cross_attention.query.weight
        assert block in str(caught.value) or "embedding" in str(caught.value)
        with torch.no_grad():
            parameter.copy_(kept)
    check(walk)


def test_walkthrough_why_is_the_change_when_a_word_is_hidden(translators):
    translator = translators["pre-norm"]
    walk = walk_through(translator, SENTENCE)
    fed, produced = ([getattr(step, name) for step in walk.steps]
                     for name in ("fed_id", "produced_id"))  # fmt: skip
    for index in range(len(walk.source)):
        ids = list(walk.source_ids)
        ids[index] = PAD_ID
        sources = [walk.source_ids, ids]
        full, without = log_probabilities(translator.model, sources, fed, produced).tolist()
        expected = [b - a for a, b in zip(full, without, strict=True)]
        assert [step.why[index] for step in walk.steps] == pytest.approx(expected, abs=1e-5)
    one_word = walk_through(translators["tiny"], "Ana")
    assert one_word.steps[0].why == [None]
    check(one_word)


def test_walkthrough_hidden_word_gets_no_attention(translators):
    for translator in translators.values():
        walk = walk_through(translator, SENTENCE, experiment=Experiment(hidden=frozenset({2})))
        check(walk)
        for view in attention_views(walk):
            if view.kind != "masked self-attention":
                assert view.weights[:, :, 1].abs().max() == 0
                assert not view.allowed[:, 1].any()
    with pytest.raises(DataError, match="every source word is hidden"):
        walk_through(translators["tiny"], "Ana", experiment=Experiment(hidden=frozenset({1})))


def test_walkthrough_can_turn_off_heads_and_positions(translators):
    translator = translators["post-norm"]
    before = {name: value.clone() for name, value in translator.model.named_parameters()}
    off = Experiment(heads_off=frozenset({"encoder.1.2", "cross.0.3"}), positions_off=True)
    walk = walk_through(translator, SENTENCE, experiment=off)
    check(walk)
    stages = {stage.path: stage for _, stage in walk.stages()}
    assert stages["encoder.layers.1.self_attention"].context[2].abs().max() == 0
    assert stages["encoder.layers.1.self_attention"].context[1].abs().max() > 0
    assert stages["decoder.layers.0.cross_attention"].context[3].abs().max() == 0
    assert all(each.positions is None for each in walk.encoder if isinstance(each, EmbeddingStage))
    for name, value in translator.model.named_parameters():
        assert torch.equal(value, before[name])  # the model itself is unchanged


def test_walkthrough_begins_with_forced_tokens(translators):
    translator = translators["tiny"]
    walk = walk_through(translator, SENTENCE, experiment=Experiment(forced="Voy a"))
    check(walk)
    assert [step.produced for step in walk.steps[:2]] == ["Voy", "a"]
    assert [step.is_forced for step in walk.steps[:3]] == [True, True, False]
    assert walk.steps[1].fed == "Voy"


def test_attention_views_label_every_row_and_column(translators):
    walk = walk_through(translators["pre-norm"], SENTENCE)
    views = list(attention_views(walk))
    assert [view.kind for view in views] == ["self-attention"] * 2 + [
        "masked self-attention", "cross-attention"] * 2  # fmt: skip
    for view in views:
        assert view.weights.sum(-1) == pytest.approx(torch.ones(view.weights.shape[:2]).numpy())
    assert views[3].queries == ["<BOS>", *views[3].produced[:-1]]
    with pytest.raises(ValueError, match="words for"):
        dataclasses.replace(views[0], keys=views[0].keys[1:])
    with pytest.raises(ValueError, match="tokens produced"):
        dataclasses.replace(views[3], produced=["a"])


@pytest.fixture(scope="module")
def lets_go(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lets-go")
    run("train.py", "--config", "lets-go.yaml", "--set", "training.init_from=lets-go-as-printed",
        folder=folder)  # fmt: skip
    return Translator.load(folder / "runs" / "lets-go")


def test_walkthrough_of_lets_go_equals_the_sheet(lets_go):
    """Compare every value of the sheet's steps (1) to (5) that is not a slip, at its precision."""
    walk = walk_through(lets_go, "Let's go", expected="Vamos")
    assert [step.produced for step in walk.steps] == ["Vamos", "<EOS>"]
    recorded = {}
    for number, stage in walk.stages():
        for name in ("output", "query", "key", "value", "scores", "weights", "context", "total"):
            if isinstance(getattr(stage, name, None), Tensor):
                rows = getattr(stage, name).reshape(-1, getattr(stage, name).shape[-1])
                new = rows if number == 0 or "cross" in stage.path else rows[-1:]
                path = f"{stage.path}.{name}".replace("_residual.total", "_residual.output")
                recorded.setdefault(path, []).append((number, new))
    # There is no norm, so the last sums are the outputs of encoder and decoder.
    recorded["encoder.output"] = recorded["encoder.layers.0.self_attention_residual.output"]
    recorded["decoder.output"] = recorded["decoder.layers.0.cross_attention_residual.output"]
    compared = 0
    for each in check_sheet(load_shipped("lets-go-as-printed")).steps:
        if not each.step.traced:
            continue
        path, row, column = re.fullmatch(r"([\w.]+)\[(\d+)(?:,(\d+))?\]", each.step.traced).groups()
        tables = recorded[path]
        is_by_step = tables[0][0] > 0 and not re.search(r"cross_attention\.(key|value)", path)
        found = tables[int(row) - 1][1][-1] if is_by_step else tables[0][1][int(row) - 1]
        found = found[int(column) - 1 :][:1] if column else found
        assert found.tolist() == pytest.approx(each.values["exact"][0].tolist(), abs=2e-5)
        for cell, verdict in each.verdicts.items():
            if verdict.text in ("agrees", "nearest", "half-down", "truncated"):
                value, printed = float(found[cell[1]]), verdict.printed
                rounding = "nearest" if verdict.text == "agrees" else verdict.text
                assert is_rounded(printed, value, rounding) or is_rounded(printed, value, "")
                compared += 1
    assert compared > 45


def test_walkthrough_of_school_has_the_order_of_the_sheet(tiny_bn):
    walk = walk_through(Translator.load(tiny_bn.path), "I go to school")
    assert [step.produced for step in walk.steps] == ["আমি", "স্কুলে", "যাই", "<EOS>"]
    assert [step.fed for step in walk.steps] == ["<EOS>", "আমি", "স্কুলে", "যাই"]
