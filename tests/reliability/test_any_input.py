"""Any config, tokenizer file or worked sheet is read, or refused with an error for users."""

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minitransformer.config import (
    StrictLoader,
    config_from_data,
    config_to_yaml,
    load_config,
    read_yaml,
    write_yaml,
)
from minitransformer.data.tokenizer import SPECIALS, BpeTokenizer, WordTokenizer
from minitransformer.errors import CheckpointError, ConfigError, SheetError, UsageError
from minitransformer.settings import Config, TokenizerConfig
from minitransformer.worked.documents import html_page, latex_document, sheet_json, sheet_markdown
from minitransformer.worked.engine import check_sheet
from minitransformer.worked.reader import SHEETS, SHIPPED, TextLoader, read_sheet
from minitransformer.worked.report import sheet_text
from tests.support.any_config import any_sections, plain_data
from tests.support.damage import NASTY, damaged, result_or_error
from tests.support.own_sheets import FULL_SHEET
from tests.support.processes import ROOT

yaml_text = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*NASTY, b"a", b"b: ", b"  ", b"\n- ", b"\n  "]), max_size=20).map(
        lambda pieces: b"".join(pieces).decode("utf-8", "replace")
    ),
)


@given(yaml_text)
def test_any_text_is_yaml_or_a_one_line_config_error(text):
    for loader in (StrictLoader, TextLoader):
        data = result_or_error(lambda loader=loader: read_yaml(text, "here", loader), ConfigError)
        if isinstance(data, ConfigError):
            assert "\n" not in str(data)
        elif loader is StrictLoader and "inf" not in repr(data):  # 1e999 is read as inf
            assert read_yaml(write_yaml(data), "here") == data


@given(any_sections)
def test_config_survives_writing_and_reading_as_yaml(data):
    with contextlib.suppress(ConfigError):
        config = config_from_data(data | {"data": {"train": "en-es"}}, "here")
        assert config_from_data(read_yaml(config_to_yaml(config), "here"), "here") == config


CONFIG = (ROOT / "configs" / "tiny.yaml").read_bytes()
overrides = st.lists(
    st.builds(
        "{}={}".format,
        st.sampled_from(["model.d_model", "data.columns", "logging.examples", "data", "a.b.c", "."])
        | st.text(max_size=9),
        yaml_text | plain_data.map(str),
    )
    | st.text(max_size=20),
    max_size=3,
)


@given(damaged(CONFIG), overrides)
def test_any_file_with_overrides_is_a_config_or_a_usage_error(tmp_path_factory, content, sets):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    found = result_or_error(lambda: load_config(path, sets), ConfigError, UsageError)
    assert isinstance(found, Config) or found.exit_code == 2


TEXTS = ["I go to school.", "আমি স্কুলে যাই।", "Let's go!", "¿Vamos? <EOS>", "the the other"]
SAVED = {
    WordTokenizer: WordTokenizer.train(TEXTS, TokenizerConfig()).to_bytes(),
    BpeTokenizer: BpeTokenizer.train(
        TEXTS, TokenizerConfig(kind="bpe", vocab_size=60)
    ).to_bytes(),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAVED)
@given(data=st.data(), text=st.text())
def test_any_bytes_are_a_tokenizer_or_a_checkpoint_error(kind, data, text):
    content = data.draw(damaged(SAVED[kind]) | st.binary())
    tokenizer = result_or_error(
        lambda: kind.from_bytes(content, TokenizerConfig(), "run/source"), CheckpointError
    )
    if isinstance(tokenizer, CheckpointError):
        assert re.fullmatch("run/source: .+", str(tokenizer))
        return
    assert tuple(tokenizer.tokens[: len(SPECIALS)]) == SPECIALS
    encoded = tokenizer.encode(text, end=True)
    assert all(0 <= id < len(tokenizer) for id in encoded.ids)
    assert isinstance(tokenizer.decode(range(len(tokenizer))), str)
    again = kind.from_bytes(tokenizer.to_bytes(), TokenizerConfig(), "again")
    assert again.tokens == tokenizer.tokens
    assert again.encode(text, end=True) == encoded


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=5), st.integers(1, 99))
def test_bpe_tokenizer_of_any_corpus_survives_saving(texts, size):
    config = TokenizerConfig(kind="bpe", vocab_size=size)
    tokenizer = BpeTokenizer.train(texts, config)
    loaded = BpeTokenizer.from_bytes(tokenizer.to_bytes(), config, "here")
    for text in texts:
        assert loaded.encode(text, end=True) == tokenizer.encode(text, end=True)


def render_all(text: str) -> None:
    """Check a sheet and render it in every output format."""
    checked = check_sheet(read_sheet(text, "mine.yaml", "mine"))
    for rendered in (sheet_text(checked), sheet_json(checked), sheet_markdown(checked)):
        assert rendered
    latex_document([checked])
    html_page([checked])


def check_rendered_or_refused(text: str) -> None:
    error = result_or_error(lambda: render_all(text), SheetError, ConfigError)
    assert error is None or re.fullmatch("mine.yaml.+", str(error))


SHEETS_TEXT = [FULL_SHEET, *((SHEETS / f"{name}.yaml").read_text("utf-8") for name in SHIPPED)]


@settings(max_examples=settings().max_examples // 2)
@given(
    st.sampled_from(SHEETS_TEXT)
    .flatmap(lambda text: damaged(text.encode(), max_edits=2))
    .map(lambda content: content.decode("utf-8", "replace"))
)
@example(FULL_SHEET)
def test_any_sheet_is_checked_or_refused_in_one_line(text):
    check_rendered_or_refused(text)


OPERATIONS = ["times", "softmax", "scaled", "dot_scores", "same", "identity", "row", "masked",
              "plus", "product", "entry", "sinusoid", "attend", "torch_layer", "no"]  # fmt: skip
formulas = st.recursive(
    st.sampled_from(["X", "W", "Q", "1", "0", "-1", "1e9", "nan", "2.5", "x", ""]),
    lambda inner: st.builds(
        lambda name, parts: f"{name}({', '.join(parts)})",
        st.sampled_from(OPERATIONS),
        st.lists(inner, max_size=4),
    ),
    max_leaves=6,
)


@given(formulas, formulas)
def test_any_formula_is_computed_or_refused_in_one_line(compute, check):
    check_rendered_or_refused(
        write_yaml(
            {
                "given": {"X": [["1", "2"], ["3", "4"]], "W": [["1", "0"], ["0", "1"]]},
                "steps": [
                    {"name": "Q", "compute": compute, "printed": [["1", "2"], ["3", "4"]]},
                    {"name": "t", "text": "words", "check": check},
                ],
            }
        )
    )


def test_shipped_sheets_are_found():
    assert len(SHEETS_TEXT) == 20
    assert Path(SHEETS).is_dir()
    render_all(SHEETS_TEXT[0])
    render_all(SHEETS_TEXT[1])
