"""Pictures of attention: the right words at the right cells, in any script."""

import argparse
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

from minitransformer.errors import UsageError
from minitransformer.explain import heatmaps as fonts
from minitransformer.explain.attention_maps import AttentionView, attention_views
from minitransformer.explain.command import write_attention
from minitransformer.explain.heatmaps import (
    BLACK_LETTERS,
    HATCH,
    NARROW,
    WIDE,
    Cells,
    Picture,
    Text,
    arrow,
    as_png,
    as_svg,
    attention_picture,
    letter_colours,
    number,
    palette,
    sentence_picture,
    shades,
)
from minitransformer.explain.walkthrough import walk_through
from tests.processes import run
from tests.small_runs import translator_for
from tests.test_walkthrough import RECURRENT

BANGLA = ["আমি", "স্কুলে", "যাই"]


def cross_view(queries, produced, keys, heads=1) -> AttentionView:
    weights = torch.rand(heads, len(queries), len(keys), generator=torch.Generator().manual_seed(1))
    return AttentionView(
        "decoder.layers.0.cross_attention",
        "cross-attention",
        queries,
        produced,
        keys,
        weights / weights.sum(-1, keepdim=True),
        torch.ones(len(queries), len(keys), dtype=torch.bool),
    )


def masked_view(tokens, produced) -> AttentionView:
    allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    return AttentionView(
        "decoder.layers.0.self_attention",
        "masked self-attention",
        tokens,
        produced,
        tokens,
        (allowed / allowed.sum(-1, keepdim=True))[None],
        allowed,
    )


def pixels(png: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(png)))


def texts(picture: Picture) -> list[Text]:
    return [part for part in picture.parts if isinstance(part, Text)]


def grids(picture: Picture) -> list[Cells]:
    """The heat maps; the legend's strips have one row."""
    return [
        part for part in picture.parts if isinstance(part, Cells) and part.gap and part.height > 11
    ]


def labels(picture: Picture, grid: Cells) -> tuple[list[str], list[str]]:
    """The words beside each row and above each column of a heat map, found by their places."""
    rows, columns = grid.shades.shape
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


def test_rows_and_columns_carry_their_words():
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


def test_cells_are_the_weights_and_their_numbers():
    view = cross_view(["<EOS>", "a"], ["a", "b"], ["x", "y", "z"], heads=2)
    picture = attention_picture(view)
    weights = view.weights.double().numpy()
    for grid, expected in zip(grids(picture), [*weights, weights.mean(0)], strict=True):
        assert np.array_equal(grid.shades, shades(expected))
        shown = {
            ((text.y - grid.y) // grid.height, (text.x - grid.x) // grid.width): text.text
            for text in texts(picture)
            if text.anchor == "middle" and 0 <= text.y - grid.y < grid.height * 2
        }
        assert shown == {place: number(value) for place, value in np.ndenumerate(expected)}


def test_every_label_is_drawn_where_it_stands():
    picture = attention_picture(cross_view(["<EOS>", *BANGLA], [*BANGLA, "<EOS>"], ["I", "go"]))
    image = pixels(as_png(picture))
    rows = [text for text in texts(picture) if text.anchor == "end"]
    assert len(rows) == 4
    for text in rows:
        ink, below = fonts.text_bitmap(text.text, text.size)
        top, left = text.y + below - ink.shape[0], text.x - ink.shape[1]
        place = image[top : text.y + below, left : text.x]
        assert np.array_equal(place, letter_colours("black", None)[ink])


def test_a_masked_cell_looks_like_no_weight_at_all():
    picture = attention_picture(masked_view(["<EOS>", "a"], ["a", "b"]))
    grid = grids(picture)[0]
    assert grid.hatched.tolist() == [[False, True], [False, False]]
    image = pixels(as_png(picture))
    cell = image[grid.y : grid.y + grid.height - 1, grid.x + grid.width :][:, : grid.width - 1]
    assert set(np.unique(cell)) == {HATCH, HATCH + 1}  # two colours that no weight has
    assert len(np.unique(palette(), axis=0)) > 150
    assert not {tuple(each) for each in palette()[:64].tolist()} & {
        tuple(each) for each in palette()[HATCH : HATCH + 2].tolist()
    }


def test_one_scale_for_every_picture_grows_darker_with_the_weight():
    places = shades(np.linspace(0, 1, 101)[None])[0]
    brightness = palette()[places].astype(int).sum(-1)
    assert (np.diff(places.astype(int)) >= 0).all()
    assert (np.diff(brightness[::2]) < 0).all()
    assert len(palette()) <= 256


def test_letters_on_a_shade_can_be_read():
    colours = palette().astype(int)
    for shade in range(64):
        on_shade = letter_colours("black", shade)
        assert on_shade[0] == shade
        assert abs(colours[on_shade[255]].sum() - colours[shade].sum()) > 250
    assert tuple(colours[BLACK_LETTERS]) == (255, 255, 255)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [(0.0, ".00"), (0.004, ".00"), (0.006, ".01"), (0.63, ".63"), (0.994, ".99"), (0.996, "1.0")],
)
def test_numbers_are_rounded_to_two_digits(weight, expected):
    assert number(weight) == expected


def extent(text: Text) -> tuple[int, int, int, int]:
    """The pixels that a text covers: left, right, top, bottom."""
    ink, below = fonts.text_bitmap(text.text, text.size)
    back = {"start": 0, "middle": ink.shape[1] // 2, "end": ink.shape[1]}[text.anchor]
    if text.is_turned:
        right = text.x + below
        return right - ink.shape[0], right, text.y + back - ink.shape[1], text.y + back
    left = text.x - back
    return left, left + ink.shape[1], text.y + below - ink.shape[0], text.y + below


@pytest.mark.parametrize(("count", "width"), [(1, NARROW), (26, NARROW), (27, WIDE), (50, WIDE)])
@pytest.mark.parametrize("word", ["a", "internationalisation", "স্কুলেস্কুলেস্কুলে"])
@pytest.mark.parametrize("make", [masked_view, lambda words, new: cross_view(words, new, words)])
def test_everything_fits_into_tensorboards_cards(count, width, word, make):
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
def test_no_label_overlaps_the_next(count):
    words = (["internationalisation", "স্কুলেস্কুলেস্কুলেস্কুলে", "a", "Żółć"] * 8)[:count]
    picture = attention_picture(cross_view(words, words, words))
    columns = sorted(extent(text)[:2] for text in texts(picture) if text.is_turned)
    rows = sorted(extent(text)[2:] for text in texts(picture) if text.anchor == "end")
    assert len(columns) == len(rows) == count
    for spans in (columns, rows):
        for (_, end), (start, _) in pairwise(spans):
            assert end <= start + 2  # an accent may touch the descender above it


def test_words_of_any_direction_stand_in_their_order():
    """The arrow points from what is fed in to what is produced, in Hebrew as in English."""

    first, second = "שלום", "עולם"
    ahead, back = (columns_with_ink(arrow(*pair)) for pair in ((first, second), (second, first)))
    alone = columns_with_ink(first)
    assert np.array_equal(ahead[: len(alone)], alone)
    assert not np.array_equal(back[: len(alone)], alone)


def columns_with_ink(text: str) -> np.ndarray:
    columns = (fonts.text_bitmap(text, 40).ink > 128).any(axis=0)
    return columns[np.argmax(columns) : len(columns) - np.argmax(columns[::-1])]


def test_rows_to_come_are_left_blank_and_the_layout_stays():
    view = masked_view(["<EOS>", *BANGLA], [*BANGLA, "<EOS>"])
    whole, part = attention_picture(view), attention_picture(view, rows=2)
    assert (whole.width, whole.height) == (part.width, part.height)
    grid = grids(part)[0]
    assert labels(part, grid) == (["<EOS>", "আমি"], ["<EOS>", "আমি"])
    assert grid.shades.shape == (2, 2)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"queries": ["<EOS>"]}, "words for"),
        ({"keys": ["a", "b", "c"]}, "words for"),
        ({"produced": ["a"]}, "tokens produced"),
        ({"produced": []}, "tokens produced"),
        ({"keys": ["b", "a"]}, "rows"),
        ({"allowed": torch.ones(2, 2, dtype=torch.bool)}, "later ones"),
        ({"weights": torch.full((1, 2, 2), 0.5)}, "nothing may be looked at"),
        ({"weights": torch.tensor([[[0.9, 0.0], [0.5, 0.5]]])}, "sum to 1"),
        ({"weights": torch.tensor([[[torch.nan, 0.0], [0.5, 0.5]]])}, "sum to 1"),
    ],
)
def test_a_view_whose_words_do_not_fit_cannot_be_built(changes, complaint):
    right = masked_view(["<EOS>", "a"], ["a", "b"])
    fields = {name: getattr(right, name) for name in right.__dataclass_fields__}
    assert AttentionView(**fields)
    with pytest.raises(ValueError, match=complaint):
        AttentionView(**{**fields, **changes})


def test_entropy_is_in_bits():
    view = cross_view(["<EOS>"], ["a"], ["w", "x", "y", "z"], heads=2)
    weights = torch.tensor([[[0.25, 0.25, 0.25, 0.25]], [[1.0, 0, 0, 0]]])
    view = AttentionView(**{**view.__dict__, "weights": weights})
    assert view.entropy.tolist() == pytest.approx([2.0, 0.0])


def test_bangla_is_shaped():
    conjunct, *parts = (fonts.text_width(text, 40) for text in ("স্ক", "স", "ক"))
    assert conjunct < 0.9 * sum(parts)  # one shape, not two letters with a mark between
    alone, before, after = (fonts.text_bitmap(text, 40).ink for text in ("ক", "কি", "কা"))
    start = slice(0, 12)
    assert not np.array_equal(before[-alone.shape[0] :, start], alone[:, start])  # ি stands first
    assert np.array_equal(after[-alone.shape[0] :, start], alone[:, start])  # া stands after


def test_the_same_picture_gives_the_same_bytes():
    view = cross_view(["<EOS>"], ["আমি"], ["I"])
    assert as_png(attention_picture(view)) == as_png(attention_picture(view))


def test_svg_is_drawn_from_the_same_parts():
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
    shipped = fonts.Fonts(look_on_system=False)
    monkeypatch.setattr(fonts, "fonts", lambda: shipped)
    fonts.text_bitmap.cache_clear()
    yield shipped
    fonts.text_bitmap.cache_clear()


def test_words_that_no_font_has_are_numbered_with_a_legend(only_shipped_fonts):
    view = cross_view(["<EOS>", "你好"], ["你好", "<EOS>"], ["你好", "go", "日本"])
    picture = attention_picture(view)
    rows, columns = labels(picture, grids(picture)[0])
    assert rows == [arrow("<EOS>", "[1]"), arrow("[1]", "<EOS>")]
    assert columns == ["[1]", "go", "[2]"]
    legend = [text.text for text in texts(picture)][-2:]
    assert legend == ["[1] U+4F60 U+597D", "[2] U+65E5 U+672C"]
    assert only_shipped_fonts.missing("".join(text.text for text in texts(picture))) == []


def test_a_font_of_the_system_is_used_where_no_shipped_one_has_a_letter(monkeypatch):
    dejavu, siliguri = fonts.shipped_fonts()
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: [__file__, siliguri])  # the first is none
    fonts.system_fonts.cache_clear()
    found = fonts.Fonts([dejavu])
    assert found.missing("আমি go") == []
    assert found.paths == [dejavu, siliguri]
    assert found.missing("आমि") == ["आ", "ि"]  # Devanagari has a block in common with Bangla
    assert fonts.Fonts([dejavu], look_on_system=False).missing("আমি") == ["আ", "ম", "ি"]
    fonts.system_fonts.cache_clear()


def test_letters_that_are_drawn_as_nothing_are_all_that_may_lack_a_glyph():
    """Every format character and space of Unicode, drawn: no box, and no warning for one."""
    kinds = regex.compile(r"[\p{Default_Ignorable_Code_Point}\p{Cf}\p{Z}]")
    letters = kinds.findall("".join(map(chr, range(sys.maxunicode))))
    drawable = [letter for letter in letters if fonts.can_draw(letter)]
    assert len(letters) > len(drawable) > 4000
    for start in range(0, len(drawable), 50):
        fonts.text_bitmap("a" + "b".join(drawable[start : start + 50]), 11)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5))
def test_any_text_is_drawn_without_a_box_a_crash_or_a_warning(words):
    picture = attention_picture(cross_view(words, words, words))
    assert fonts.fonts().missing("".join(text.text for text in texts(picture))) == []
    assert pixels(as_png(picture)).shape == (picture.height, picture.width)


def test_a_sentence_has_all_three_attentions_of_every_layer(tmp_path):
    translator = translator_for(
        tmp_path / "run", "model.num_encoder_layers=3", "model.num_decoder_layers=2",
        "model.num_heads=2",
    )  # fmt: skip
    walk = walk_through(translator, "I go home")
    picture = sentence_picture("I go home", walk.translation, list(attention_views(walk)))
    titles = [text.text for text in texts(picture) if "layer" in text.text]
    assert sorted(titles) == sorted(
        [f"self-attention, encoder layer {n}" for n in range(3)]
        + [f"{look}, decoder layer {n}" for n in range(2)
           for look in ("masked self-attention", "cross-attention")]
    )  # fmt: skip
    assert len(grids(picture)) == 7 * 3


def test_a_recurrent_model_has_one_attention_to_draw(tmp_path):
    translator = translator_for(tmp_path / "run", *RECURRENT)
    walk = walk_through(translator, "I go home")
    picture = sentence_picture("I go home", walk.translation, list(attention_views(walk)))
    assert [text.text for text in texts(picture) if "attention" in text.text] == [
        "attention, decoder"
    ]
    [grid] = grids(picture)
    assert labels(picture, grid)[1] == ["I", "go", "home"]


@pytest.mark.parametrize("scale", [1, 2])
def test_no_letter_is_cut_off_at_the_right_at_any_size(scale):
    view = cross_view(["a"], ["b"], ["x"])
    picture = sentence_picture("x", "b", [view])
    widened = replace(picture, width=picture.width + 40)
    beyond = pixels(as_png(widened, scale))[:, scale * picture.width :]
    assert len(np.unique(beyond)) == 1


def test_without_attention_nothing_is_drawn_and_one_line_says_so(tmp_path, capsys):
    translator = translator_for(tmp_path / "run", *RECURRENT, "model.attention=none")
    options = argparse.Namespace(attention=tmp_path / "maps.png", words=False)
    with pytest.raises(UsageError, match=r"maps\.png: this model has no attention"):
        write_attention(translator, ["I go xyz"], options, tmp_path)
    assert not (tmp_path / "maps.png").exists()
    assert capsys.readouterr() == ("", "")


def test_the_command_draws_and_translates(tiny_bn, tmp_path):
    maps = tmp_path / "maps.svg"
    told = run("translate.py", "--run", tiny_bn.path, "--attention", maps, "I go to school",
               "You eat fish", folder=tmp_path)  # fmt: skip
    assert (told.code, told.out) == (0, "আমি স্কুলে যাই\nতুমি মাছ খাও\n")
    assert told.err == f"wrote {maps}\n"
    root = xml.etree.ElementTree.fromstring(maps.read_text(encoding="utf-8"))
    names = [element.attrib.get("aria-label") for element in root.iter()]
    assert names.count(arrow("I go to school", "আমি স্কুলে যাই")) == 1
    assert names.count("cross-attention, decoder layer 0") == 2
    assert arrow("আমি", "স্কুলে") in names
    drawn = run("translate.py", "--run", tiny_bn.path, "--attention", "maps.png", "I go to school",
                folder=tmp_path)  # fmt: skip
    assert drawn.code == 0
    height, wide = pixels((tmp_path / "maps.png").read_bytes()).shape
    assert height < wide < 2 * (3 * NARROW + 2 * 16)  # at twice the size, without empty margins


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--attention", "maps.jpg", "Go"], 2, "the file must end in .png or .svg"),
        (["--attention", "I go to school"], 2, "the file must end in .png or .svg"),
        (["--attention", "maps.png", *["I go home"] * 41], 2, "at most 40 sentences"),
        (["--attention", "no/maps.png", "Go"], 2, "there is no such folder"),
        (["--attention", "maps.png", "--scores", "Go"], 2, "does not go with"),
        (["--attention", "maps.png", "--walkthrough", "Go"], 2, "does not go with"),
        (["--attention", "maps.png", " "], 2, "name a sentence to draw"),
        (["--attention", "folder.png", "I go home"], 2, "a folder, not a file"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(tiny_bn, tmp_path, arguments, code, complaint):
    (tmp_path / "folder.png").mkdir()
    told = run("translate.py", "--run", tiny_bn.path, *arguments, folder=tmp_path)
    assert told.code == code
    assert complaint in told.err.splitlines()[-1]


def test_a_sentence_that_no_font_has_is_numbered_alike_everywhere(only_shipped_fonts):
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
@pytest.mark.parametrize("room", [0, 1, 9, 20, 33, 60, 100])
def test_a_text_is_cut_after_as_many_letters_as_fit(text, room):
    letters = regex.findall(r"\X", text)
    fitting = [
        "".join(letters[:count]) + "…"
        for count in range(len(letters))
        if fonts.text_width("".join(letters[:count]) + "…", 11) <= room
    ]
    expected = text if fonts.text_width(text, 11) <= room else [*["…"], *fitting][-1]
    assert fonts.cut_text(text, 11, room) == expected
