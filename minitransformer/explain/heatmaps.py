"""Attention maps as PNG and SVG: the heads of a layer below each other, words on both axes."""

import io
import logging
import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

import fontpkg
import matplotlib
import numpy as np
import regex
from jaxtyping import Bool, Float, UInt8
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.font_manager import findSystemFonts, get_font
from matplotlib.ft2font import FaceFlags, FT2Font
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextToPath
from PIL import Image, ImageDraw

from minitransformer.errors import escape_controls
from minitransformer.explain.alignment import PRODUCED, HeadAlignment
from minitransformer.explain.attention_maps import AttentionView
from minitransformer.storage import write_output

# A map of 5 x 4 cells takes 1.7 ms with Pillow and a palette (5 KB), 3.1 ms in RGB (13 KB), and
# 55 ms with a Figure of matplotlib's (21 KB); training with tiny.yaml draws 72 of them.
# A colour is an index into one of two ramps, so that Pillow, which blends the indices at the edges
# of letters, gets the colours in between: greys on paper, blues on a cell.
PAPER_RAMP = ("#14181f", "#6e7681", "#ffffff")
CELL_RAMP = ("#14181f", "#08306b", "#3182bd", "#9ecae1", "#eef2f8", "#ffffff")
BLACK, GREY, PAPER = 0, 16, 32
BLACK_ON_CELL, WEIGHT_1, WEIGHT_0, WHITE_ON_CELL = 33, 53, 113, 133
HATCH, HATCH_LINE = 134, 135  # of masked cells
HATCH_STEP = 4
DARK = 0.5  # the numbers of larger weights are white

NARROW, WIDE = 350, 700  # TensorBoard stretches a picture to a card of 350 pixels
MAX_NARROW_TOKENS = 26  # on an axis; with more, a picture is wide
MARGIN = 4
TITLE, LABEL, SMALL = 12, 11, 9  # font sizes in pixels
MIN_CELL, MAX_CELL, ROW = 9, 50, 20
NUMBER_CELL = 26  # the width from which on a cell has room for its number
MAX_WORD, MIN_WORD = 66, 24  # the widths to which words are cut
LARGEST_SHARP = 10_000_000  # pixels; a larger picture is not written at twice its size

LEFT_TO_RIGHT, ISOLATE, END = "\u2066", "\u2068", "\u2069"  # marks for the order of scripts
# Joiners and spaces; fillers and shorthand controls are ignorable to Unicode, but not to HarfBuzz.
INVISIBLE = regex.compile(
    r"[[\p{Default_Ignorable_Code_Point}\p{Z}]--"
    r"[\u115F\u1160\u180F\u3164\uFFA0\U0001BCA0-\U0001BCA3]]",
    regex.VERSION1,
)
CURVES = {
    int(code): letter
    for code, letter in zip(
        (Outline.MOVETO, Outline.LINETO, Outline.CURVE3, Outline.CURVE4), "MLQC", strict=True
    )
}

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of folders that are read-only


@dataclass(frozen=True)
class Text:
    """A line of text at a point of its base line."""

    x: int
    y: int
    text: str
    size: int
    anchor: Literal["start", "middle", "end"] = "start"
    colour: int = BLACK
    is_vertical: bool = False  # read from bottom to top


@dataclass(frozen=True)
class Cells:
    """A matrix of weights as coloured cells; masked ones are hatched."""

    x: int
    y: int
    width: int  # of one cell, including the gap after it
    height: int
    weights: Float[np.ndarray, "rows columns"]
    masked: Bool[np.ndarray, "rows columns"]
    gap: int = 1


@dataclass(frozen=True)
class Picture:
    width: int
    height: int
    parts: list[Text | Cells]


def attention_picture(
    view: AttentionView,
    rows: int | None = None,
    numbers: dict[str, int] | None = None,
    best: HeadAlignment | None = None,
) -> Picture:
    """Draw every head of a layer and their mean, or only the first `rows` rows of a decoder.

    `numbers` are those of words that no font can draw, shared by several pictures. If `view` is
    that of the `best` head alone, its title is the alignment, and rows are labelled accordingly.
    """
    weights = view.weights.double().numpy()
    heads = [("", weights[0])]
    if len(weights) > 1:
        heads = [(f"head {number}", each) for number, each in enumerate(weights)]
        heads.append(("mean of all heads", weights.mean(axis=0)))
    layout = Layout(view, rows, {} if numbers is None else numbers, best.labelling if best else "")
    parts: list[Text | Cells] = [
        Text(MARGIN, 15, best.caption if best else view.title, TITLE),
        Text(MARGIN, 29, layout.axes, SMALL, colour=GREY),
    ]
    bottom = 34
    for name, each in heads:
        parts += layout.head(name, each, bottom)
        bottom += layout.head_height
    parts += layout.colour_scale(bottom + 8)
    bottom += 24
    for line in layout.words.legend():
        bottom += 12
        parts.append(Text(MARGIN, bottom - 4, cut_text(line, SMALL, layout.width - 8), SMALL))
    return Picture(layout.width, bottom, parts)


def sentence_picture(
    source: str,
    translation: str,
    views: list[AttentionView],
    best: tuple[HeadAlignment, AttentionView] | None = None,
) -> Picture:
    """Draw every attention of a sentence: a column for each kind, layers below each other.

    The map of the best head, if there is one, comes first.
    """
    words = WordLabels(TITLE, {})
    sentences = (" ".join(map(words.label, text.split())) for text in (source, translation))
    heading = Text(MARGIN, 16, arrow(*(cut_text(each, TITLE, NARROW) for each in sentences)), TITLE)
    legend = [
        Text(MARGIN, 30 + 12 * number, line, SMALL) for number, line in enumerate(words.legend())
    ]
    columns = []
    for where in ("encoder", "decoder", "cross"):
        column = [
            attention_picture(view, numbers=words.numbers) for view in views if view.where == where
        ]
        width = max((right_edge(part) for each in column for part in each.parts), default=0)
        if column:
            columns.append([replace(each, width=width) for each in column])
    layers = [  # encoder and decoder may differ in their number
        [picture or Picture(column[0].width, 0, [])
         for picture, column in zip(layer, columns, strict=True)]
        for layer in zip_longest(*columns)
    ]  # fmt: skip
    pictures = [stacked([beside(layer, 30) for layer in layers], 12)]
    if best:
        alignment, view = best
        picture = attention_picture(view, numbers=words.numbers, best=alignment)
        width = max(right_edge(part) for part in picture.parts)
        pictures.insert(0, Picture(width, picture.height + 14, picture.parts))
    width = max(right_edge(heading), *(picture.width for picture in pictures))
    return stacked([Picture(width, 24 + 12 * len(legend), [heading, *legend]), *pictures], 0)


class Layout:
    """The positions of everything in the picture of one view."""

    def __init__(
        self, view: AttentionView, rows: int | None, numbers: dict[str, int], labelling: str
    ) -> None:
        self.view, self.labelling = view, labelling
        self.rows = len(view.queries) if rows is None else rows
        longest = max(len(view.queries), len(view.keys))
        self.width = NARROW if longest <= MAX_NARROW_TOKENS else WIDE
        self.size = SMALL if len(view.keys) > 16 else LABEL
        self.words = WordLabels(self.size, numbers)
        self.axes = "a row for each query, a column for each key"
        if view.where == "cross":
            unit = "whole word" if view.is_by_words else "token"
            produced = "produced" if view.is_by_words else "token produced"
            self.axes = f"rows: {unit} {labelling or f'fed in → {produced}'}; columns: source"
        elif view.is_by_words:
            self.axes = f"whole words: {self.axes}"
        self.row_labels = self.label_rows()
        self.column_labels = [self.words.label(key) for key in view.keys]
        widest = round(max(text_width(label, self.size) for label in self.column_labels))
        self.left = 2 * MARGIN + round(max(text_width(each, self.size) for each in self.row_labels))
        cell = (self.width - self.left - MARGIN) // len(view.keys)
        self.cell = min(max(cell, MIN_CELL), MAX_CELL)
        self.is_vertical = widest > self.cell - 4  # the words above the columns
        self.top = 6 + (widest if self.is_vertical else self.size)
        self.width = max(self.width, self.left + self.cell * len(view.keys) + MARGIN)
        self.has_numbers = self.cell >= NUMBER_CELL
        self.row = ROW if self.has_numbers else self.size + 4

    def label_rows(self) -> list[str]:
        """Return the words beside the rows, cut so that all columns have room."""
        view = self.view
        max_width = self.width - 3 * MARGIN - MIN_CELL * len(view.keys)
        if view.where != "cross" or self.labelling:
            words = view.produced if self.labelling == PRODUCED else view.queries
            max_width = min(max(max_width, MIN_WORD), MAX_WORD)
            return [self.words.label(word, max_width) for word in words]
        half = (max_width - text_width(arrow("", ""), self.size)) / 2
        half = min(max(half, MIN_WORD), MAX_WORD)
        return [
            arrow(self.words.label(query, half), self.words.label(produced, half))
            for query, produced in zip(view.queries, view.produced, strict=True)
        ]

    @property
    def head_height(self) -> int:
        name = 14 if len(self.view.weights) > 1 else 0
        return name + self.top + self.row * len(self.view.queries) + 8

    def head(
        self, name: str, weights: Float[np.ndarray, "queries keys"], top: int
    ) -> list[Text | Cells]:
        """Draw one head: its name, keys above, queries at the left, a cell for each weight."""
        parts: list[Text | Cells] = []
        if name:
            top += 14
            parts.append(Text(MARGIN, top - 2, name, LABEL))
        top += self.top
        columns = len(self.view.keys) if self.view.where == "cross" else self.rows
        for column, key in enumerate(self.column_labels[:columns]):
            x = self.left + column * self.cell + self.cell // 2
            if self.is_vertical:
                x += self.size // 3
                parts.append(Text(x, top - 4, key, self.size, is_vertical=True))
            else:
                parts.append(Text(x, top - 4, key, self.size, "middle"))
        weights = weights[: self.rows, :columns]
        allowed = self.view.allowed.numpy()[: self.rows, :columns]
        parts.append(Cells(self.left, top, self.cell, self.row, weights, ~allowed))
        for row, label in enumerate(self.row_labels[: self.rows]):
            y = top + row * self.row + self.row // 2 + self.size // 3
            parts.append(Text(self.left - 4, y, label, self.size, "end"))
        for row, column in np.argwhere(allowed).tolist() if self.has_numbers else []:
            x = self.left + column * self.cell + self.cell // 2
            y = top + row * self.row + self.row // 2 + 3
            weight = float(weights[row, column])
            colour = WHITE_ON_CELL if weight > DARK else BLACK_ON_CELL
            parts.append(Text(x, y, format_weight(weight), SMALL, "middle", colour))
        return parts

    def colour_scale(self, top: int) -> list[Text | Cells]:
        """Draw the legend of the colours."""
        steps = np.linspace(0, 1, 40)[None]
        parts: list[Text | Cells] = [
            Text(MARGIN, top + 9, "weight 0", SMALL, colour=GREY),
            Cells(54, top, 2, 11, steps, np.zeros_like(steps, dtype=bool), gap=0),
            Text(138, top + 9, "1", SMALL, colour=GREY),
        ]
        if not self.view.allowed.all():
            parts += [
                Cells(160, top, 18, 11, np.zeros((1, 1)), np.ones((1, 1), dtype=bool)),
                Text(181, top + 9, "masked", SMALL, colour=GREY),
            ]
        return parts


@dataclass
class WordLabels:
    """The labels of words: cut to a width, or a number if no font has their characters."""

    size: int
    numbers: dict[str, int]  # shared by the pictures of one sentence
    used: dict[str, int] = field(default_factory=dict)

    def label(self, word: str, max_width: float = MAX_WORD) -> str:
        word = escape_controls(word)
        if fonts().missing(word):
            self.used[word] = self.numbers.setdefault(word, len(self.numbers) + 1)
            return f"[{self.used[word]}]"
        return cut_text(word, self.size, max_width)

    def legend(self) -> list[str]:
        """Return a line for each number, with the word as code points."""
        codes = {word: " ".join(f"U+{ord(each):04X}" for each in word) for word in self.used}
        return [f"[{number}] {codes[word]}" for word, number in self.used.items()]


def arrow(first: str, second: str) -> str:
    """Return first → second, from left to right whatever the direction of their scripts."""
    return f"{LEFT_TO_RIGHT}{ISOLATE}{first}{END} → {ISOLATE}{second}{END}{END}"


def format_weight(weight: float) -> str:
    """Return a weight with two digits and no leading zero: .63; from .995 on, 1.0."""
    return "1.0" if weight >= 0.995 else f"{weight:.2f}"[1:]


def right_edge(part: Text | Cells) -> int:
    """Return where a part ends; vertical texts are within the width of their column."""
    if isinstance(part, Cells):
        return part.x + part.width * int(part.weights.shape[1])
    if part.is_vertical or part.anchor == "end":
        return part.x
    # In a file, at twice the size, glyphs are not exactly twice as wide.
    width = max(text_width(part.text, part.size), text_width(part.text, 2 * part.size) / 2)
    return part.x + math.ceil(width if part.anchor == "start" else width / 2)


def beside(pictures: list[Picture], gap: int) -> Picture:
    """Put pictures in a row, aligned at the top."""
    parts: list[Text | Cells] = []
    right = 0
    for picture in pictures:
        parts += [replace(part, x=part.x + right) for part in picture.parts]
        right += picture.width + gap
    return Picture(right - gap, max(picture.height for picture in pictures), parts)


def stacked(pictures: list[Picture], gap: int) -> Picture:
    """Put pictures below each other, aligned at the left."""
    parts: list[Text | Cells] = []
    bottom = 0
    for picture in pictures:
        parts += [replace(part, y=part.y + bottom) for part in picture.parts]
        bottom += picture.height + gap
    return Picture(max(picture.width for picture in pictures), bottom - gap, parts)


def write_picture(path: Path, picture: Picture) -> None:
    """Write a picture as PNG or SVG, depending on the suffix."""
    if path.suffix.lower() == ".svg":
        write_output(path, as_svg(picture).encode())
    else:
        is_huge = picture.width * picture.height > LARGEST_SHARP
        write_output(path, as_png(picture, scale=1 if is_huge else 2))


@cache
def palette() -> UInt8[np.ndarray, "colours 3"]:
    """Return red, green and blue of each colour."""
    paper = LinearSegmentedColormap.from_list("paper", PAPER_RAMP, N=PAPER - BLACK + 1)
    cells = LinearSegmentedColormap.from_list(
        "cells", CELL_RAMP, N=WHITE_ON_CELL - BLACK_ON_CELL + 1
    )
    hatch = ListedColormap(["#e8eaed", "#b0b5bd"])
    ramps = [ramp(np.arange(ramp.N), bytes=True)[:, :3] for ramp in (paper, cells, hatch)]
    return np.concatenate(ramps)


def colours_of(weights: Float[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "rows columns"]:
    """Return the colour of each weight: pale for 0, dark for 1."""
    colours: np.ndarray = np.round(WEIGHT_0 + np.clip(weights, 0, 1) * (WEIGHT_1 - WEIGHT_0))
    return colours.astype(np.uint8)


def as_png(picture: Picture, scale: int = 1) -> bytes:
    """Return the picture as a PNG file; the same picture always gives the same bytes."""
    image = Image.new("L", (picture.width * scale, picture.height * scale), PAPER)
    for part in picture.parts:
        if isinstance(part, Cells):
            draw_cells(image, part, scale)
        else:
            draw_text(image, part, scale)
    image.putpalette(palette().tobytes())
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def draw_cells(image: Image.Image, cells: Cells, scale: int) -> None:
    rows, columns = cells.weights.shape
    width, height, gap = cells.width * scale, cells.height * scale, cells.gap * scale
    size = columns * width, rows * height
    nearest = Image.Resampling.NEAREST
    grid = Image.fromarray(colours_of(cells.weights)).resize(size, nearest)
    if cells.masked.any():
        down, right = np.ogrid[: size[1], : size[0]]
        lines = (down + right) % (HATCH_STEP * scale) < scale
        hatch = Image.new("L", size, HATCH)
        hatch.paste(HATCH_LINE, mask=Image.fromarray(lines))
        grid.paste(hatch, mask=Image.fromarray(cells.masked).resize(size, nearest))
    if gap:
        draw = ImageDraw.Draw(grid)
        for x in range(width, size[0] + 1, width):
            draw.rectangle((x - gap, 0, x - 1, size[1]), PAPER)
        for y in range(height, size[1] + 1, height):
            draw.rectangle((0, y - gap, size[0], y - 1), PAPER)
    image.paste(grid, (cells.x * scale, cells.y * scale))


def draw_text(image: Image.Image, text: Text, scale: int) -> None:
    glyphs, descent = text_bitmap(text.text, text.size * scale)
    width, height = glyphs.size
    back = {"start": 0, "middle": width // 2, "end": width}[text.anchor]
    x, y = text.x * scale, text.y * scale
    if text.is_vertical:
        corner = x + descent - height, y + back - width
        glyphs = glyphs.transpose(Image.Transpose.ROTATE_90)
    else:
        corner = x - back, y + descent - height
    image.paste(text.colour, corner, glyphs)


def as_svg(picture: Picture) -> str:
    """Return the picture as SVG; texts are outlines, so that they need no font."""
    size = f'width="{picture.width}" height="{picture.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'viewBox="0 0 {picture.width} {picture.height}">',
        f'<defs><pattern id="hatch" width="{HATCH_STEP}" height="{HATCH_STEP}" '
        f'patternUnits="userSpaceOnUse"><path d="M0 0h{HATCH_STEP}v{HATCH_STEP}H0z" '
        f'fill="{hex_colour(HATCH)}"/><path d="M0 {HATCH_STEP}L{HATCH_STEP} 0" '
        f'stroke="{hex_colour(HATCH_LINE)}"/></pattern></defs>',
        f'<rect {size} fill="{hex_colour(PAPER)}"/>',
    ]
    for part in picture.parts:
        lines += cells_svg(part) if isinstance(part, Cells) else [text_svg(part)]
    return "\n".join([*lines, "</svg>\n"])


def hex_colour(colour: int) -> str:
    return f"#{palette()[colour].tobytes().hex()}"


def cells_svg(cells: Cells) -> list[str]:
    size = f'width="{cells.width - cells.gap}" height="{cells.height - cells.gap}"'
    lines = []
    for (row, column), colour in np.ndenumerate(colours_of(cells.weights)):
        x, y = cells.x + column * cells.width, cells.y + row * cells.height
        fill = "url(#hatch)" if cells.masked[row, column] else hex_colour(int(colour))
        lines.append(f'<rect x="{x}" y="{y}" {size} fill="{fill}"/>')
    return lines


def text_svg(text: Text) -> str:
    width = text_width(text.text, text.size)
    back = {"start": 0, "middle": width / 2, "end": width}[text.anchor]
    turn = " rotate(-90)" if text.is_vertical else ""
    curve = "".join(
        "Z"
        if code == Outline.CLOSEPOLY
        else CURVES[int(code)] + " ".join(f"{number:.2f}" for number in points)
        for points, code in text_outline(text.text, text.size).iter_segments(simplify=False)
    )
    return (
        f'<g role="img" aria-label="{escape(text.text)}" fill="{hex_colour(text.colour)}" '
        f'transform="translate({text.x} {text.y}){turn} translate({-back:.2f} 0) scale(1 -1)">'
        f'<path d="{curve}"/></g>'
    )


class TextBitmap(NamedTuple):
    """The coverage of each pixel by a text, and the number of rows below its base line."""

    glyphs: Image.Image
    descent: int


@lru_cache(maxsize=4096)
def text_bitmap(text: str, size: float) -> TextBitmap:
    """Draw a text, shaped and joined as its script asks for."""
    font = fonts().sized(size)
    font.set_text(text)
    font.draw_glyphs_to_bitmap(antialiased=True)
    glyphs = Image.fromarray(np.array(font.get_image(), dtype=np.uint8))
    return TextBitmap(glyphs, max(round(font.get_descent() / 64), 0))


@lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Return the width of a text in pixels."""
    font = fonts().sized(size)
    font.set_text(text)
    return float(font.get_width_height()[0] / 64)


def cut_text(text: str, size: float, max_width: float) -> str:
    """Cut a text to a width, never inside what a reader sees as one character."""
    if text_width(text, size) <= max_width:
        return text
    characters = regex.findall(r"\X", text)

    def is_too_long(count: int) -> bool:
        return text_width("".join(characters[:count]) + "…", size) > max_width

    # By bisection: measuring a very long text character by character would take minutes.
    count = bisect_left(range(len(characters)), True, key=is_too_long)
    return "".join(characters[: max(0, count - 1)]) + "…"


def text_outline(text: str, size: float) -> Outline:
    """Return a text as curves; y grows upwards."""
    scale = TextToPath.FONT_SCALE
    glyphs, shapes, _ = TextToPath().get_glyphs_with_font(fonts().sized(scale), text)
    parts = [
        Outline(shapes[name][0] + [x, y], shapes[name][1])
        for name, x, y, _ in glyphs
        if len(shapes[name][0])
    ]
    if not parts:
        return Outline(np.empty((0, 2)))
    whole = Outline.make_compound_path(*parts)
    return Outline(np.asarray(whole.vertices) * (size / scale), whole.codes)


class Fonts:
    """The fonts in use, extended by fonts of the system when a text needs them."""

    def __init__(self, paths: list[str] | None = None, *, use_system_fonts: bool = True) -> None:
        self.paths = shipped_fonts() if paths is None else paths
        self.faces = [FT2Font(path) for path in self.paths]
        self.use_system_fonts = use_system_fonts
        self.unavailable: set[str] = set()  # characters that no font has

    def missing(self, text: str) -> list[str]:
        """Return the characters of a text that no font has."""
        return [each for each in dict.fromkeys(text) if not self.has(each)]

    def has(self, character: str) -> bool:
        code = ord(character)
        if INVISIBLE.match(character) or any(face.get_char_index(code) for face in self.faces):
            return True
        if character in self.unavailable or not self.use_system_fonts:
            return False
        for path, codes in system_fonts():
            if code in codes:
                self.paths = [*self.paths, path]
                self.faces.append(FT2Font(path))
                return True
        self.unavailable.add(character)
        return False

    def sized(self, size: float) -> FT2Font:
        font = get_font(self.paths)
        font.set_size(size, 72)  # at 72 dots per inch a point is a pixel
        return font


@cache
def fonts() -> Fonts:
    """Return the fonts of this process."""
    return Fonts()


def shipped_fonts() -> list[str]:
    """Return the paths of DejaVu Sans (Latin, Greek, Cyrillic, arrows) and a font for Bangla."""
    # By path: a family's name is looked up in a list that may be older than the font.
    dejavu = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return [str(dejavu), str(fontpkg.path("Hind Siliguri"))]


@cache
def system_fonts() -> list[tuple[str, set[int]]]:
    """Return the system's fonts with the code points they have, regular styles first."""

    def style_rank(path: str) -> tuple[int, str]:
        name = Path(path).stem.lower()
        odd = ("bold", "italic", "oblique", "mono", "light", "thin", "black", "serif", "condensed")
        return sum(word in name for word in odd), name

    found = []
    for path in sorted(findSystemFonts(), key=style_rank):
        try:
            face = FT2Font(path)
        except (RuntimeError, OSError):  # damaged, or of a format that FreeType cannot read
            continue
        if face.scalable and FaceFlags.COLOR not in face.face_flags:
            found.append((path, set(face.get_charmap())))
    return found


def missing_note(texts: Iterable[str]) -> str:
    """Return a note about the characters that no font on this machine has, or ""."""
    missing = fonts().missing("".join(texts))
    if not missing:
        return ""
    some = ", ".join(f"{each} (U+{ord(each):04X})" for each in missing[:3])
    more = f" and {len(missing) - 3} more characters" if len(missing) > 3 else ""
    return f"no font here has {some}{more}; pictures number the words with them, and have a legend"
