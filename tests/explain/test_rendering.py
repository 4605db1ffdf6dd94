"""A walk-through is shown as text of 80 columns with exact sums, as JSON and as Markdown."""

import json
import re
from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitransformer.cli.prompt import Prompt
from minitransformer.errors import UsageError
from minitransformer.explain.narration import Table, format_number, narrate, rounding_row
from minitransformer.explain.rendering import (
    TextRenderer,
    as_json,
    as_markdown,
    is_plain,
    wants_colour,
)
from minitransformer.explain.walkthrough import walk_through
from minitransformer.translator import Translator
from tests.support.small_runs import translator_for
from tests.support.translator_shapes import (
    SENTENCE,
    SHAPES,
    SMALLEST_RECURRENT,
    every_shape,
    long_for_every_shape,
    translator_of_shape,
)

LONG = " ".join([SENTENCE, "and the children live in a small house"] * 2)


@pytest.fixture(scope="module")
def translators(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walks")
    return {shape: translator_of_shape(shape, folder, max_length=30) for shape in SHAPES}


@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=9), st.integers(0, 6))
def test_rounding_row_makes_displayed_terms_add_up(terms, precision):
    texts = [format_number(term, precision) for term in terms]
    total = format_number(sum(terms), precision)
    rest = rounding_row([[text] for text in texts], [total])
    rounding = Decimal(rest[0]) if rest else 0
    assert sum(map(Decimal, texts)) + rounding == Decimal(total)
    assert abs(rounding) <= Decimal(len(terms) + 1).scaleb(-precision) / 2
    assert format_number(-0.0001, 2) == "0.00"


def columns_that_add_up(table: Table) -> int:
    """Check that each sum of a table is exact at its precision; return the number of sums."""
    sums, terms = 0, []
    for row in table.rows:
        if row.name != "=":
            terms.append(row.numbers)
            continue
        for column, total in enumerate(row.numbers):
            if total:
                found = sum(Decimal(term[column]) for term in terms)
                assert found == Decimal(total), (column, terms, total)
                sums += 1
        terms = []
    return sums


@long_for_every_shape
def test_narration_sums_are_exact(shape, translators):
    walk = walk_through(translators[shape], LONG)
    precision = 1 if shape == "bpe" else 3
    tables = [table for block in narrate(walk, precision) for table in block.tables]
    minimum = 100 if shape.startswith(("gru", "lstm")) else 1000  # fewer sums in a recurrent model
    assert sum(columns_that_add_up(table) for table in tables) > minimum


@long_for_every_shape
def test_text_of_long_sentences_fits_80_columns(shape, translators):
    walk = walk_through(translators[shape], LONG)
    view = TextRenderer()
    all_lines = [view.compact(walk), view.full(walk, step=1), view.why(walk),
                 view.full(walk, path="encoder.layers.0")]  # fmt: skip
    all_lines += [view.attention(walk)] * walk.has_attention
    for lines in all_lines:
        single_lines = "\n".join(lines).splitlines()
        assert single_lines
        assert [line for line in single_lines if len(line) > 80] == []


def test_narration_follows_the_sheet_of_school(tiny_bn):
    walk = walk_through(Translator.load(tiny_bn.path), "I go to school")
    sentences = [block.sentence for block in narrate(walk, 3)]
    in_order = [
        "Start with embeddings of I, go, to, school",
        "Add positional encoding to determine the order of the words",
        "Transform I, go, to, school into Q, K and V embedding with the matrices of the encoder",
        "Calculate the attention between I and I, I and go, I and to, I and school, and update",
        "Calculate the attention between school and I, school and go, school and to,",
        "Add the V embedding of I, go, to, school to their original embedding",
        "Transform <EOS> into Q, K and V embedding with the matrices of the decoder",
        "Calculate the attention between <EOS> and <EOS>, and update the V embedding",
        "Add the V embedding of <EOS> to its original embedding",
        "Convert the latest embedding of <EOS> to a Q embedding with the matrices of cross",
        "Calculate the attention between <EOS> and I, <EOS> and go, <EOS> and to, <EOS> and school",
        "Add the V embedding of <EOS> to its latest embedding",
        "Feed the latest embedding of <EOS> to a dense network to produce আমি",
        "Transform আমি into Q, K and V embedding with the matrices of the decoder",
        "Calculate the attention between আমি and <EOS>, আমি and আমি, and update the V embedding",
        "Feed the latest embedding of আমি to a dense network to produce স্কুলে",
        "Calculate the attention between স্কুলে and <EOS>, স্কুলে and আমি, স্কুলে and স্কুলে,",
        "Feed the latest embedding of স্কুলে to a dense network to produce যাই",
        "Feed the latest embedding of যাই to a dense network to produce <EOS>",
    ]
    rest = iter(sentences)
    for beginning in in_order:
        assert any(sentence.startswith(beginning) for sentence in rest), beginning


def test_narration_follows_the_sheets_of_seq2seq_attention(translators):
    walk = walk_through(translators["gru"], "I go")
    blocks = [block for block in narrate(walk, 3) if block.step == 1]
    sentences = [block.sentence for block in blocks]
    assert sentences[:5] == [
        "Take the embedding of <EOS>",
        "Read <EOS> with a GRU; its state s is (1-z)·n + z·(state before)",
        "Compare the state s of <EOS> with the states h of I, go: e = s · h",
        "Softmax of the scores of <EOS> gives α of I, go; the context vector is the sum of α·h",
        "Concatenate the context vector and the state of <EOS>: [context ; s]",
    ]
    assert sentences[5].startswith("Feed [context ; s] of <EOS> to a dense network to produce ")
    compared, weighed, joined = (block.tables[0] for block in blocks[2:5])
    assert [row.name for row in compared.rows] == ["s", "h", "h"]
    assert weighed.headings == ["e", "α", "α·h"]
    assert [row.name for row in joined.rows] == ["context", "s", "[context ; s]"]
    assert joined.rows[0].numbers + joined.rows[1].numbers == joined.rows[2].numbers
    bidirectional = walk_through(translators["gru-bidirectional"], "I go")
    sentences = [block.sentence for block in narrate(bidirectional, 3)]
    assert "Compare the state s of <EOS> with the states h of I, go: e = s · W h" in sentences
    assert "Put both states of I, go side by side: h = [left to right ; right to left]" in sentences
    [backward_rnn] = [
        block for block in narrate(bidirectional, 3) if block.path.endswith("0.backward_rnn")
    ]
    assert [table.rows[0].word for table in backward_rnn.tables] == ["go", "I"]
    assert "from right to left; the state after a word is (1-z)·n + z·(state before)" in (
        backward_rnn.sentence
    )


def test_text_shows_the_shift_and_ends_lines_with_bangla_words(tiny, tiny_bn):
    spanish = walk_through(Translator.load(tiny.path), "Let's go", expected="Vamos")
    assert list(TextRenderer().shift(spanish)) == [
        "decoder input  <EOS>  Vamos", "expected       Vamos  <EOS>", "produced       Vamos  <EOS>",
    ]  # fmt: skip
    bangla = walk_through(Translator.load(tiny_bn.path), "I go to school")
    assert list(TextRenderer().shift(bangla))[:4] == [
        "1   decoder input  <EOS>", "    produced       আমি", "2   decoder input  আমি",
        "    produced       স্কুলে",
    ]  # fmt: skip
    longer = walk_through(Translator.load(tiny.path), "Let's go", expected="Voy a la escuela")
    assert (
        list(TextRenderer().shift(longer))[1] == "expected       Voy    a      la  escuela  <EOS>"
    )
    words = {step.produced for step in bangla.steps} - {"<EOS>"}
    for line in TextRenderer().compact(bangla):
        for word in words:
            if word in line and "embedding" not in line and "Why" not in line:
                assert line.endswith(word)
    assert not is_plain("স্কুলে")
    assert not is_plain("日本")
    assert not is_plain("شكرا")
    assert not is_plain("এক")
    assert is_plain("España")


@pytest.mark.parametrize("attention", ["multiplicative", "none"])
def test_text_of_a_recurrent_model_shows_its_attention_if_it_has_one(tmp_path, attention):
    translator = translator_for(
        tmp_path / "run", *SMALLEST_RECURRENT, "data.limit=0",
        f"model.attention={attention}", "model.max_length=12",
    )  # fmt: skip
    walk = walk_through(translator, SENTENCE)
    lines = list(TextRenderer().attention(walk))
    assert [line for line in lines if "attention" in line] == (
        [] if attention == "none" else ["cross-attention  [decoder.attention]"]
    )
    text = "\n".join(TextRenderer().compact(walk))
    assert ("Attention, and the change" in text) == walk.has_attention == (attention != "none")
    prompt = Prompt(translator, scores=False)
    prompt.answer(SENTENCE)
    if attention == "none":
        with pytest.raises(UsageError, match="this model has no attention"):
            prompt.answer(":attention")


def test_text_colour_is_optional(tiny):
    walk = walk_through(Translator.load(tiny.path), "Let's go")
    plain, coloured = (list(TextRenderer(colour=colour).compact(walk)) for colour in (False, True))
    assert not any("\x1b" in line for line in plain)
    assert any("\x1b" in line for line in coloured)
    assert [re.sub(r"\x1b\[\d*m", "", line) for line in coloured] == plain


def test_wants_colour_on_terminals_without_no_color(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert wants_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert not wants_colour()


def test_text_escapes_control_characters(translators):
    walk = walk_through(translators["tiny"], "go \x1b[31mred\x07", expected="voy \x1b[31m")
    for lines in (
        TextRenderer().compact(walk),
        TextRenderer().full(walk),
        TextRenderer().attention(walk),
    ):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", "\n".join(lines))


@every_shape
def test_walkthrough_json_has_every_number(shape, translators):
    walk = walk_through(translators[shape], SENTENCE)
    data = json.loads(json.dumps(as_json([walk]), allow_nan=False))
    assert (data["format"], data["version"]) == ("minitransformer-walkthrough", 2)
    [walk_json] = data["walkthroughs"]
    assert [step["produced"]["token"] for step in walk_json["steps"]] == [
        step.produced for step in walk.steps
    ]
    assert data["vocabulary"][walk.steps[0].produced_id] == walk.steps[0].produced
    assert set(data["parameters"]) == {name for name, _ in walk.model.named_parameters()}
    stages = list(walk_json["encoder"])
    stages += [stage for step in walk_json["steps"] for stage in step["stages"]]
    assert len(stages) == len(list(walk.stages()))
    for (number, stage), written in zip(walk.stages(), stages, strict=True):
        assert written["path"] == stage.path
        if written["kind"] == "attention":
            assert (written["key"] is None) == (number > 1 and stage.is_cross)
            assert torch.tensor(written["weights"]).allclose(stage.weights)
        if written["kind"] == "head":
            assert len(written["logits"]) == len(stage.logits)
    kinds = {
        "gru": {"gru", "attention", "joined"},
        "gru-bidirectional": {"gru", "attention", "joined"},
        "lstm": {"lstm", "attention", "joined", "output_projection"},
        "lstm-none": {"lstm", "joined"},
    }
    assert {stage["kind"] for stage in stages} >= {"embedding", "head"} | kinds.get(
        shape, {"attention", "residual"}
    )


def test_walkthrough_markdown_has_whole_tables(tiny_bn):
    walk = walk_through(Translator.load(tiny_bn.path), "I go to school")
    text = as_markdown(walk, 2)
    assert text.startswith("# I go to school → আমি স্কুলে যাই\n\n## Encoder\n")
    assert text.count("## Decoder, step") == 4
    assert "<EOS>" not in text.replace(r"\<EOS\>", "")
    for table in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        bars = {line.count("|") for line in table.replace(r"\|", "").splitlines()}
        assert len(bars) == 1
