"""The HTML page has every number of a walk-through in one file and needs no network."""

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
from fontTools.ttLib import TTFont

from minitransformer.explain.interventions import Experiment
from minitransformer.explain.page import anchor_of, page_html, page_style
from minitransformer.explain.rendering import as_json
from minitransformer.explain.walkthrough import walk_through
from minitransformer.translator import Translator
from tests.support.pages import read_page
from tests.support.processes import run
from tests.support.small_runs import translator_for
from tests.support.translator_shapes import (
    RECURRENT_SHAPES,
    SENTENCE,
    SHAPES,
    translator_of_shape,
)

DERIVED = {"scaled", "allowed", "hidden"}  # computed by the page


def numbers_of(reference: list[int], floats: np.ndarray) -> np.ndarray:
    offset, *shape = reference
    return floats[offset : offset + int(np.prod(shape))].reshape(shape)


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {
        shape: walk_through(translator_of_shape(shape, folder), SENTENCE)
        for shape in SHAPES | RECURRENT_SHAPES
    }


@pytest.mark.parametrize("shape", SHAPES | RECURRENT_SHAPES)
def test_page_has_every_number_of_the_json(shape, walks):
    data, floats = read_page(page_html({"step 1": [walks[shape]]}, 3))
    [[ours]] = data["walks"]
    [expected] = as_json([walks[shape]])["walkthroughs"]
    compared = 0
    pairs = list(zip(ours["encoder"], expected["encoder"], strict=True))
    for step, other in zip(ours["steps"], expected["steps"], strict=True):
        pairs += zip([*step["stages"], step["head"]], other["stages"], strict=True)
        assert step["probability"] == other["produced"]["probability"]
        assert step["why"] == other["why"]
        assert (step["fed"], step["produced"]) == (
            other["fed"]["token"],
            other["produced"]["token"],
        )
    for stage, other in pairs:
        assert (stage["kind"], stage["path"]) == (other["kind"], other["path"])
        for name, values in other.items():
            is_matrix = isinstance(values, list) and values and isinstance(values[0], list | float)
            if not is_matrix or name in DERIVED:
                continue
            stored, wanted = numbers_of(stage[name], floats), np.array(values, dtype=np.float32)
            if name in ("key", "value"):
                wanted = wanted[:, wanted.shape[1] - stored.shape[1] :]  # the new token's
            if stage["kind"] == "head" and name != "state":
                wanted = wanted[stage["ids"]]
            assert np.array_equal(stored, wanted), (stage["path"], name)
            compared += stored.size
    assert compared > 1000


@pytest.mark.parametrize(
    ("path", "anchor"),
    [
        ("encoder.embedding", "embedding"),
        ("encoder.layers.0.self_attention", "self.0"),
        ("decoder.layers.1.self_attention_residual", "self.1.add"),
        ("decoder.layers.1.cross_attention_residual.pre_norm", "cross.1.norm"),
        ("decoder.layers.0.feed_forward", "ff.0"),
        ("decoder.norm", "norm"),
        ("head", "head"),
        ("encoder.layers.0.forward_rnn", "rnn.0"),
        ("encoder.layers.1.backward_rnn", "rnn.1.back"),
        ("encoder.layers.1.joined", "rnn.1.join"),
        ("decoder.layers.1", "rnn.1"),
        ("decoder.attention", "cross.0"),
        ("decoder.attention.joined", "join"),
        ("decoder.attention.output", "proj"),
    ],
)
def test_page_has_a_short_anchor_for_each_stage(path, anchor):
    assert anchor_of(path) == anchor


@pytest.mark.parametrize("shape", RECURRENT_SHAPES)
def test_page_gates_follow_from_their_inputs(shape, walks):
    data, floats = read_page(page_html({"": [walks[shape]]}, 3))
    [[walk]] = data["walks"]
    passes = [walk["encoder"], *(step["stages"] for step in walk["steps"])]
    num_checked = 0
    for stages in passes:
        assert len({stage["anchor"] for stage in stages}) == len(stages)
        for stage in stages:
            if stage["kind"] not in ("gru", "lstm"):
                continue
            inputs, before = (numbers_of(stage[name], floats) for name in ("block_input", "before"))
            sums = 0
            for values, name in ((inputs, "input_proj"), (before, "hidden_proj")):
                weight, bias = stage["matrices"][name]
                sums = sums + values @ numbers_of(weight, floats).T
                sums = sums + (numbers_of(bias, floats) if bias else 0)
            gate = "reset" if stage["kind"] == "gru" else "input"  # the first rows of a matrix
            expected = numbers_of(stage[gate], floats)
            found = 1 / (1 + np.exp(-sums[:, : expected.shape[1]]))
            assert np.abs(found - expected).max() < 1e-5, stage["anchor"]
            num_checked += 1
    assert num_checked >= len(passes)


def test_page_stores_equal_tensors_once(walks):
    [[walk]] = read_page(page_html({"": [walks["lstm"]]}, 3))[0]["walks"]
    embedded, first, recurrence = walk["encoder"]
    assert first["block_input"] == embedded["output"]
    assert recurrence["block_input"] == first["state"]
    for number, step in enumerate(walk["steps"], start=1):
        _, _, state, cross, joined, projected = step["stages"]
        assert joined["second"] == state["state"]
        assert joined["first"][0] == cross["context"][0]
        assert projected["joined"] == joined["output"]
        assert step["head"]["state"][0] == projected["output"][0]
        assert cross["memory"] == recurrence["state"]
        if number > 1:
            assert state["before"] == walk["steps"][number - 2]["stages"][2]["state"]
    assert walk["steps"][0]["stages"][3]["value"][0] == recurrence["state"][0]


def test_page_has_the_mask_of_a_hidden_word(tmp_path):
    translator = translator_for(tmp_path / "run", *RECURRENT_SHAPES["gru-none"], "data.limit=0")
    walk = walk_through(translator, "I go home", experiment=Experiment(hidden=frozenset({2})))
    [[walk]] = read_page(page_html({"": [walk]}, 3))[0]["walks"]
    assert walk["encoder"][1]["masked"] == [1]
    assert walk["steps"][0]["stages"][1]["masked"] == []


@pytest.mark.parametrize(
    ("shape", "name"),
    [("tiny", "the latest embedding"), ("gru-bidirectional", "[context ; s]"),
     ("lstm", "the output"), ("gru-none", "the state")],
)  # fmt: skip
def test_page_names_the_input_of_the_head(shape, name, walks):
    [[walk]] = read_page(page_html({"": [walks[shape]]}, 3))[0]["walks"]
    head = walk["steps"][0]["head"]
    assert head["input_name"] == name
    assert head["sentence"].startswith(f"Feed {name} of <EOS> to a dense network")
    assert any("attention_type" in stage for stage in walk["steps"][0]["stages"]) == (
        shape != "gru-none"
    )


def test_page_needs_no_network(walks):
    page = page_html({"step 1": [walks["tiny"]]}, 3)
    assert set(re.findall(r"https?://[\w./]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page
    assert not re.search(r"<(img|link|iframe)(?![^>]*data:)", page)


def test_page_escapes_sentences(tmp_path):
    translator = translator_for(tmp_path / "run", "data.limit=0")
    text = "I go </script><b>home</b> {{style}}"
    page = page_html({"step 1": [walk_through(translator, text)]}, 3)
    assert read_page(page)[0]["sentences"] == [text]
    assert "<b>home" not in page
    assert page.count("</script>") == 3
    assert "<title>I go &lt;/script&gt;" in page


def embedded_letters(page: str) -> set[int]:
    fonts = re.findall(r"data:font/woff;base64,([^)]+)\)", page)
    return {
        code for font in fonts for code in TTFont(io.BytesIO(base64.b64decode(font))).getBestCmap()
    }


def test_page_embeds_a_font_for_bangla_alone(tiny_bn, walks):
    walk = walk_through(Translator.load(tiny_bn.path), "I go to school")
    page = page_html({"step 600": [walk]}, 3)
    assert {ord(letter) for letter in "আমি স্কুলে যাই" if letter != " "} <= embedded_letters(page)
    assert len(page) < 450_000
    assert "page-font," in page
    english = page_html({"step 1": [walks["tiny"]]}, 3)
    assert embedded_letters(english) == set()
    assert "page-font," not in english


def test_page_handles_logits_too_large_for_exp(tmp_path):
    translator = translator_for(tmp_path / "run", "data.limit=0")
    with torch.no_grad():
        translator.model.head.bias.fill_(2000)
    [[walk]] = read_page(page_html({"": [walk_through(translator, SENTENCE)]}, 3))[0]["walks"]
    head = walk["steps"][0]["head"]
    assert head["largest_logit"] > 1000
    assert 1 <= head["denominator"] < 1000


@pytest.mark.parametrize(("text", "has_font"), [("৩ টাকা ৳", True), ("→ √ “a” é Ω я 3", False)])
def test_page_font_covers_uncommon_letters_digits_and_signs(text, has_font):
    style = page_style(text)
    own = embedded_letters(style)
    assert bool(own) == has_font
    assert {ord(letter) for letter in "৩৳"} <= own or not has_font


def test_page_has_a_text_without_javascript(tiny_bn):
    page = page_html({"": [walk_through(Translator.load(tiny_bn.path), "I go to school")]}, 3)
    [text] = re.findall(r"<noscript>(.*?)</noscript>", page, re.DOTALL)
    assert "Step 4" in text
    assert "স্কুলে" in text
    assert "&lt;EOS&gt;" in text


def test_page_of_a_deep_model_stays_below_5_mb(tmp_path):
    translator = translator_for(
        tmp_path / "run", "model.d_model=128", "model.num_heads=4", "model.num_encoder_layers=4",
        "model.num_decoder_layers=4", "model.d_ff=256", "model.norm=pre", "model.bias=true",
        "model.output_projection=true", "data.limit=0", "model.max_length=40",
    )  # fmt: skip
    walk = walk_through(translator, " ".join([SENTENCE, "and the children live in a house"] * 4))
    assert len(walk.source) == len(walk.steps) == 40
    page = page_html({"step 1": [walk]}, 3)
    assert len(page.encode()) < 5_000_000
    [[walk]] = read_page(page)[0]["walks"]
    assert all(
        "matrices" not in stage for stage in walk["encoder"] if stage["kind"] != "norm"
    )  # more than 100,000 parameters


@pytest.mark.slow
def test_page_of_worked_sheets_has_every_printed_value(tmp_path):
    result = run("worked", "show", "lets-go", "--to", "one.html", folder=tmp_path)
    assert (result.code, result.out) == (0, "wrote one.html\n")
    one = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert run("worked", "show", "lets-go", "--to", "one.json", folder=tmp_path).code == 0
    listed = json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))
    cells = re.findall(r'<td class="(\w*)" title="[^"]*">([^<]*)', one)
    printed = [value for step in listed["steps"] for value in step["printed"]]
    assert [text for _, text in cells] == [value["printed"] for value in printed]
    wrong = [value for value in printed if value["verdict"] == "errata_origin"]
    assert [kind for kind, _ in cells].count("wrong") == len(wrong) > 0
    assert all(slip["right"][0] in one for slip in listed["slips"])
    result = run("worked", "list", "--to", "all.html", folder=tmp_path)
    assert result.code == 0
    page = (tmp_path / "all.html").read_text(encoding="utf-8")
    links = re.findall(r'href="#([\w.-]+)"', page)
    assert len(links) == 19
    assert all(f'<section class="sheet" id="{name}">' in page for name in links)
    assert "http" not in page.replace("http-equiv", "")
