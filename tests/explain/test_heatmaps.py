"""Attention maps have the right words at the right cells, in any script."""

import io
import re
import sys
import xml.etree.ElementTree
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import regex
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from minitransformer.explain import heatmaps
from minitransformer.explain.attention_maps import AttentionView, attention_views
from minitransformer.explain.heatmaps import (
    BLACK,
    HATCH,
    HATCH_LINE,
    NARROW,
    PAPER,
    WEIGHT_0,
    WEIGHT_1,
    WHITE_ON_CELL,
    WIDE,
    Cells,
    Fonts,
    Picture,
    Text,
    arrow,
    as_png,
    as_svg,
    attention_picture,
    colours_of,
    cut_text,
    format_weight,
    palette,
    sentence_picture,
    shipped_fonts,
    text_bitmap,
    text_width,
)
from minitransformer.explain.walkthrough import walk_through
from tests.support.attention_views import cross_view, masked_view
from tests.support.small_runs import translator_for
from tests.support.translator_shapes import SMALLEST_RECURRENT

BANGLA = ["আমি", "স্কুলে", "যাই"]


def pixels(png: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(png)))


def ink_of(text: str, size: float) -> tuple[np.ndarray, int]:
    """Return how much a text covers each pixel, and the number of rows below its baseline."""
    glyphs, descent = text_bitmap(text, size)
    return np.asarray(glyphs), descent


def texts(picture: Picture) -> list[Text]:
    return [part for part in picture.parts if isinstance(part, Text)]


def grids(picture: Picture) -> list[Cells]:
    """Return the heat maps; the strips of the legend have one row."""
    return [
        part for part in picture.parts if isinstance(part, Cells) and part.gap and part.height > 11
    ]


def labels(picture: Picture, grid: Cells) -> tuple[list[str], list[str]]:
    """Return the words beside each row and above each column, found by their position."""
    rows, columns = grid.weights.shape
    beside: list[list[str]] = [[] for _ in range(rows)]
    above: list[list[str]] = [[] for _ in range(columns)]
    for text in texts(picture):
        row, column = (text.y - grid.y) // grid.height, (text.x - grid.x) // grid.width
        if text.x < grid.x and 0 <= row < rows and text.anchor == "end":
            beside[row].append(text.text)
        if grid.y - 8 < text.y < grid.y and 0 <= column < columns:
            above[column].append(text.text)
    assert all(len(found) == 1 for found in [*beside, *above])
    return [found[0] for found in beside], [found[0] for found in above]


def test_attention_picture_labels_rows_and_columns():
    view = cross_view(["<EOS>", *BANGLA], [*BANGLA, "<EOS>"], ["I", "go", "to", "school"], heads=3)
    picture = attention_picture(view)
    heads = grids(picture)
    assert len(heads) == 4  # three heads and their mean
    for grid in heads:
        rows, columns = labels(picture, grid)
        words = ["<EOS>", *BANGLA, "<EOS>"]
        assert rows == [arrow(*pair) for pair in pairwise(words)]
        assert columns == ["I", "go", "to", "school"]
    names = [text.text for text in texts(picture)]
    assert names[0] == "cross-attention, decoder layer 0"
    assert [name for name in names if "head" in name] == [
        "head 0", "head 1", "head 2", "mean of all heads",
    ]  # fmt: skip


def test_cells_hold_the_weights_and_their_numbers():
    view = cross_view(["<EOS>", "a"], ["a", "b"], ["x", "y", "z"], heads=2)
    picture = attention_picture(view)
    weights = view.weights.double().numpy()
    for grid, expected in zip(grids(picture), [*weights, weights.mean(0)], strict=True):
        assert np.array_equal(grid.weights, expected)
        shown = {
            ((text.y - grid.y) // grid.height, (text.x - grid.x) // grid.width): text.text
            for text in texts(picture)
            if text.anchor == "middle" and 0 <= text.y - grid.y < grid.height * 2
        }
        assert shown == {cell: format_weight(value) for cell, value in np.ndenumerate(expected)}


def test_as_png_draws_every_label_at_its_position():
    picture = attention_picture(cross_view(["<EOS>", *BANGLA], [*BANGLA, "<EOS>"], ["I", "go"]))
    image = pixels(as_png(picture))
    rows = [text for text in texts(picture) if text.anchor == "end"]
    assert len(rows) == 4
    for text in rows:
        ink, descent = ink_of(text.text, text.size)
        top, left = text.y + descent - ink.shape[0], text.x - ink.shape[1]
        region = image[top : text.y + descent, left : text.x]
        assert np.abs(region - PAPER * (1 - ink / 255)).max() <= 0.6
        assert region.min() == BLACK


def test_masked_cells_have_colours_that_no_weight_has():
    picture = attention_picture(masked_view(["<EOS>", "a"], ["a", "b"]))
    grid = grids(picture)[0]
    assert grid.masked.tolist() == [[False, True], [False, False]]
    image = pixels(as_png(picture))
    cell = image[grid.y : grid.y + grid.height - 1, grid.x + grid.width :][:, : grid.width - 1]
    assert set(np.unique(cell)) == {HATCH, HATCH_LINE}
    colours = [tuple(each) for each in palette().tolist()]
    assert not set(colours[:HATCH]) & set(colours[HATCH:])
    assert len(colours) == HATCH_LINE + 1


def test_colours_grow_darker_with_the_weight():
    colours = colours_of(np.linspace(0, 1, 101)[None])[0]
    brightness = palette()[colours].astype(int).sum(-1)
    assert (colours[0], colours[-1]) == (WEIGHT_0, WEIGHT_1)
    assert (np.diff(brightness) <= 0).all()
    assert (np.diff(brightness[::2]) < 0).all()


def test_numbers_contrast_with_every_weight():
    view = cross_view(["a"], ["b"], [f"k{n}" for n in range(11)])
    weights = torch.linspace(0, 0.2, 11)[None, None]
    for each in (weights, torch.eye(11)[:1, None]):
        picture = attention_picture(replace(view, weights=each / each.sum()))
        numbers = [text for text in texts(picture) if text.anchor == "middle"][-11:]
        cells = colours_of(grids(picture)[0].weights)[0]
        for text, cell in zip(numbers, cells, strict=True):
            brightness = palette()[[text.colour, cell]].astype(int).sum(-1)
            assert abs(brightness[0] - brightness[1]) > 250
    assert tuple(palette()[PAPER]) == tuple(palette()[WHITE_ON_CELL]) == (255, 255, 255)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [(0.0, ".00"), (0.004, ".00"), (0.006, ".01"), (0.63, ".63"), (0.994, ".99"), (0.996, "1.0")],
)
def test_format_weight_rounds_to_two_digits(weight, expected):
    assert format_weight(weight) == expected


def extent(text: Text) -> tuple[int, int, int, int]:
    """Return the pixels that a text covers: left, right, top, bottom."""
    ink, descent = ink_of(text.text, text.size)
    back = {"start": 0, "middle": ink.shape[1] // 2, "end": ink.shape[1]}[text.anchor]
    if text.is_vertical:
        right = text.x + descent
        return right - ink.shape[0], right, text.y + back - ink.shape[1], text.y + back
    left = text.x - back
    return left, left + ink.shape[1], text.y + descent - ink.shape[0], text.y + descent


@pytest.mark.parametrize(("count", "width"), [(1, NARROW), (26, NARROW), (27, WIDE), (50, WIDE)])
@pytest.mark.parametrize("word", ["a", "internationalisation", "স্কুলেস্কুলেস্কুলে"])
@pytest.mark.parametrize("make", [masked_view, lambda words, new: cross_view(words, new, words)])
def test_attention_picture_fits_into_a_tensorboard_card(count, width, word, make):
    words = [f"{word}{n % 7}" for n in range(count)]
    picture = attention_picture(make(words, words))
    assert pixels(as_png(picture)).shape[1] == picture.width == width
    for text in texts(picture):
        left, right, top, bottom = extent(text)
        assert left >= 0, text
        assert right <= width, text
        assert top >= 0, text
        assert bottom <= picture.height, text


@pytest.mark.parametrize("count", [3, 12, 26])
def test_labels_do_not_overlap(count):
    words = (["internationalisation", "স্কুলেস্কুলেস্কুলেস্কুলে", "a", "Żółć"] * 8)[:count]
    picture = attention_picture(cross_view(words, words, words))
    columns = sorted(extent(text)[:2] for text in texts(picture) if text.is_vertical)
    rows = sorted(extent(text)[2:] for text in texts(picture) if text.anchor == "end")
    assert len(columns) == len(rows) == count
    for spans in (columns, rows):
        for (_, end), (start, _) in pairwise(spans):
            assert end <= start + 2  # an accent may touch the descender above it


def test_arrow_points_right_for_scripts_of_any_direction():
    first, second = "שלום", "עולם"
    ahead, back = (columns_with_ink(arrow(*pair)) for pair in ((first, second), (second, first)))
    alone = columns_with_ink(first)
    assert np.array_equal(ahead[: len(alone)], alone)
    assert not np.array_equal(back[: len(alone)], alone)


def columns_with_ink(text: str) -> np.ndarray:
    columns = (ink_of(text, 40)[0] > 128).any(axis=0)
    return columns[np.argmax(columns) : len(columns) - np.argmax(columns[::-1])]


def test_attention_picture_of_some_rows_keeps_the_layout():
    view = masked_view(["<EOS>", *BANGLA], [*BANGLA, "<EOS>"])
    whole, part = attention_picture(view), attention_picture(view, rows=2)
    assert (whole.width, whole.height) == (part.width, part.height)
    grid = grids(part)[0]
    assert labels(part, grid) == (["<EOS>", "আমি"], ["<EOS>", "আমি"])
    assert grid.weights.shape == (2, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": ["<EOS>"]}, "words for"),
        ({"keys": ["a", "b", "c"]}, "words for"),
        ({"produced": ["a"]}, "tokens produced"),
        ({"produced": []}, "tokens produced"),
        ({"keys": ["b", "a"]}, "rows"),
        ({"allowed": torch.ones(2, 2, dtype=torch.bool)}, "later ones"),
        ({"weights": torch.full((1, 2, 2), 0.5)}, "masked positions"),
        ({"weights": torch.tensor([[[0.9, 0.0], [0.5, 0.5]]])}, "sum to 1"),
        ({"weights": torch.tensor([[[torch.nan, 0.0], [0.5, 0.5]]])}, "sum to 1"),
    ],
)
def test_attention_view_rejects_inconsistent_fields(changes, message):
    right = masked_view(["<EOS>", "a"], ["a", "b"])
    fields = {name: getattr(right, name) for name in right.__dataclass_fields__}
    assert AttentionView(**fields)
    with pytest.raises(ValueError, match=message):
        AttentionView(**{**fields, **changes})


def test_entropy_is_in_bits():
    view = cross_view(["<EOS>"], ["a"], ["w", "x", "y", "z"], heads=2)
    weights = torch.tensor([[[0.25, 0.25, 0.25, 0.25]], [[1.0, 0, 0, 0]]])
    view = AttentionView(**{**view.__dict__, "weights": weights})
    assert view.entropy.tolist() == pytest.approx([2.0, 0.0])


def test_text_bitmap_shapes_bangla():
    conjunct, *parts = (text_width(text, 40) for text in ("স্ক", "স", "ক"))
    assert conjunct < 0.9 * sum(parts)  # one shape, not two letters with a mark between
    alone, before, after = (ink_of(text, 40)[0] for text in ("ক", "কি", "কা"))
    start = slice(0, 12)
    assert not np.array_equal(before[-alone.shape[0] :, start], alone[:, start])  # ি comes first
    assert np.array_equal(after[-alone.shape[0] :, start], alone[:, start])  # া comes after


def test_as_png_gives_the_same_bytes_each_time():
    view = cross_view(["<EOS>"], ["আমি"], ["I"])
    assert as_png(attention_picture(view)) == as_png(attention_picture(view))


def test_as_svg_draws_every_part():
    view = masked_view(["<EOS>", "স্কুলে"], ["স্কুলে", "a&b"])
    picture = attention_picture(view)
    root = xml.etree.ElementTree.fromstring(as_svg(picture))
    names = [
        element.attrib["aria-label"] for element in root.iter() if "aria-label" in element.attrib
    ]
    assert names == [text.text for text in texts(picture)]
    curves = [element.attrib["d"] for element in root.iter("{http://www.w3.org/2000/svg}path")]
    assert all(re.fullmatch(r"([MLQC][-\d. ]+|Z)*", curve) for curve in curves[2:])
    fills = [element.attrib["fill"] for element in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert fills.count("url(#hatch)") == 2  # one masked cell, and the legend's


@pytest.fixture
def only_shipped_fonts(monkeypatch):
    shipped = Fonts(use_system_fonts=False)
    monkeypatch.setattr(heatmaps, "fonts", lambda: shipped)
    text_bitmap.cache_clear()
    yield shipped
    text_bitmap.cache_clear()


def test_words_without_a_font_are_numbered_with_a_legend(only_shipped_fonts):
    view = cross_view(["<EOS>", "你好"], ["你好", "<EOS>"], ["你好", "go", "日本"])
    picture = attention_picture(view)
    rows, columns = labels(picture, grids(picture)[0])
    assert rows == [arrow("<EOS>", "[1]"), arrow("[1]", "<EOS>")]
    assert columns == ["[1]", "go", "[2]"]
    legend = [text.text for text in texts(picture)][-2:]
    assert legend == ["[1] U+4F60 U+597D", "[2] U+65E5 U+672C"]
    assert only_shipped_fonts.missing("".join(text.text for text in texts(picture))) == []


def test_fonts_fall_back_on_the_system(monkeypatch):
    dejavu, siliguri = shipped_fonts()
    # The first of these is not a font.
    monkeypatch.setattr(heatmaps, "findSystemFonts", lambda: [__file__, siliguri])
    heatmaps.system_fonts.cache_clear()
    found = Fonts([dejavu])
    assert found.missing("আমি go") == []
    assert found.paths == [dejavu, siliguri]
    assert found.missing("आমि") == ["आ", "ि"]  # Devanagari has a block in common with Bangla
    assert Fonts([dejavu], use_system_fonts=False).missing("আমি") == ["আ", "ম", "ি"]
    heatmaps.system_fonts.cache_clear()


def test_only_invisible_characters_may_lack_a_glyph():
    """Draw every format character and space of Unicode without a box or a warning."""
    kinds = regex.compile(r"[\p{Default_Ignorable_Code_Point}\p{Cf}\p{Z}]")
    letters = kinds.findall("".join(map(chr, range(sys.maxunicode))))
    drawable = [letter for letter in letters if not heatmaps.fonts().missing(letter)]
    assert len(letters) > len(drawable) > 4000
    for start in range(0, len(drawable), 50):
        text_bitmap("a" + "b".join(drawable[start : start + 50]), 11)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5))
def test_attention_picture_draws_any_text(words):
    picture = attention_picture(cross_view(words, words, words))
    assert heatmaps.fonts().missing("".join(text.text for text in texts(picture))) == []
    assert pixels(as_png(picture)).shape == (picture.height, picture.width)


def test_sentence_picture_has_every_attention_of_every_layer(tmp_path):
    translator = translator_for(
        tmp_path / "run", "model.num_encoder_layers=3", "model.num_decoder_layers=2",
        "model.num_heads=2",
    )  # fmt: skip
    walk = walk_through(translator, "I go home")
    picture = sentence_picture("I go home", walk.translation, list(attention_views(walk)))
    titles = [text.text for text in texts(picture) if "layer" in text.text]
    assert sorted(titles) == sorted(
        [f"self-attention, encoder layer {n}" for n in range(3)]
        + [f"{kind}, decoder layer {n}" for n in range(2)
           for kind in ("masked self-attention", "cross-attention")]
    )  # fmt: skip
    assert len(grids(picture)) == 7 * 3


def test_sentence_picture_has_one_attention_of_a_recurrent_model(tmp_path):
    translator = translator_for(tmp_path / "run", *SMALLEST_RECURRENT)
    walk = walk_through(translator, "I go home")
    picture = sentence_picture("I go home", walk.translation, list(attention_views(walk)))
    assert [text.text for text in texts(picture) if "attention" in text.text] == [
        "attention, decoder"
    ]
    [grid] = grids(picture)
    assert labels(picture, grid)[1] == ["I", "go", "home"]


@pytest.mark.parametrize("scale", [1, 2])
def test_sentence_picture_is_wide_enough_at_any_scale(scale):
    view = cross_view(["a"], ["b"], ["x"])
    picture = sentence_picture("x", "b", [view])
    widened = replace(picture, width=picture.width + 40)
    beyond = pixels(as_png(widened, scale))[:, scale * picture.width :]
    assert len(np.unique(beyond)) == 1


def test_sentence_picture_numbers_a_word_alike_everywhere(only_shipped_fonts):
    view = cross_view(["<EOS>"], ["日本"], ["你好"])
    encoder = AttentionView(
        "encoder.layers.0.self_attention", "self-attention", ["你好"], [], ["你好"],
        torch.ones(1, 1, 1), torch.ones(1, 1, dtype=torch.bool),
    )  # fmt: skip
    picture = sentence_picture("go 你好", "日本", [encoder, masked_view(["<EOS>"], ["日本"]), view])
    names = [text.text for text in texts(picture)]
    assert names[0] == arrow("go [1]", "[2]")
    assert arrow("<EOS>", "[2]") in names
    assert names.count("[1] U+4F60 U+597D") == 3  # under the heading, and in two of the maps
    assert names.count("[2] U+65E5 U+672C") == 2
    punctuated = sentence_picture("你好!", "a", [encoder, masked_view(["<EOS>"], ["a"]), view])
    assert "[1] U+4F60 U+597D U+0021" in [text.text for text in texts(punctuated)]


@pytest.mark.parametrize("text", ["school", "আমি স্কুলে যাই", "e\u0301e\u0301 iii WWW", "x" * 200])
@pytest.mark.parametrize("max_width", [0, 1, 9, 20, 33, 60, 100])
def test_cut_text_keeps_as_many_characters_as_fit(text, max_width):
    letters = regex.findall(r"\X", text)
    fitting = [
        "".join(letters[:count]) + "…"
        for count in range(len(letters))
        if text_width("".join(letters[:count]) + "…", 11) <= max_width
    ]
    expected = text if text_width(text, 11) <= max_width else [*["…"], *fitting][-1]
    assert cut_text(text, 11, max_width) == expected
