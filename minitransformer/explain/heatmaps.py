"""Attention as a picture: a layer's heads under each other, words on both axes; PNG and SVG."""

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
from matplotlib.font_manager import findSystemFonts, get_font
from matplotlib.ft2font import FaceFlags, FT2Font
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextToPath
from PIL import Image

from minitransformer.errors import escape_controls
from minitransformer.explain.alignment import PRODUCED, HeadAlignment
from minitransformer.explain.attention_maps import AttentionView

Colour = tuple[int, int, int]
Ink = Literal["black", "grey", "white"]

PAPER: Colour = (255, 255, 255)
INKS: dict[Ink, Colour] = {"black": (20, 24, 31), "grey": (110, 118, 129), "white": PAPER}
HATCHED: tuple[Colour, Colour] = ((232, 234, 237), (176, 181, 189))  # ground and lines
SCALE = np.array([[238, 242, 248], [158, 202, 225], [49, 130, 189], [8, 48, 107]])  # 0 to 1
SHADES = 64  # steps of that scale
LEVELS = 16  # of ink on paper, so that letters have smooth edges
DARK = 0.5  # a weight above it is written in white

# Places in the palette: the shades, black and grey letters on paper, two edges for each shade.
BLACK_LETTERS, GREY_LETTERS = SHADES, SHADES + LEVELS
EDGES = GREY_LETTERS + LEVELS
HATCH = EDGES + 2 * SHADES


def shades(weights: Float[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "rows columns"]:
    """One scale for every picture: pale is 0, dark is 1."""
    steps: np.ndarray = np.round(np.clip(weights, 0, 1) * (SHADES - 1))
    return steps.astype(np.uint8)


def letter_ink(shade: int) -> Ink:
    """What can be read on a shade."""
    return "white" if shade > DARK * (SHADES - 1) else "black"


@cache
def palette() -> UInt8[np.ndarray, "colours 3"]:
    places = np.linspace(0, 1, len(SCALE))
    steps = np.linspace(0, 1, SHADES)
    scale = np.stack([np.interp(steps, places, SCALE[:, n]) for n in range(3)], axis=-1)
    letters = [
        mixed(np.array([PAPER]), INKS[ink], level / (LEVELS - 1))
        for ink in ("black", "grey")
        for level in range(LEVELS)
    ]
    edges = [
        mixed(scale[shade : shade + 1], INKS[letter_ink(shade)], level / 3)
        for shade in range(SHADES)
        for level in (1, 2)
    ]
    rows = np.concatenate([scale, *letters, *edges, np.array(HATCHED)])
    return np.round(rows).astype(np.uint8)


def mixed(ground: np.ndarray, ink: Colour, share: float) -> np.ndarray:
    return ground * (1 - share) + np.array(ink) * share


def letter_colours(ink: Ink, shade: int | None) -> UInt8[np.ndarray, " 256"]:
    """The palette's places for each amount of ink, on paper or on a shade."""
    amounts = np.arange(256)
    if shade is None:
        first = GREY_LETTERS if ink == "grey" else BLACK_LETTERS
        steps = first + np.round(amounts / 255 * (LEVELS - 1))
        return steps.astype(np.uint8)
    full = BLACK_LETTERS + (LEVELS - 1 if letter_ink(shade) == "black" else 0)
    edges = np.array([shade, EDGES + 2 * shade, EDGES + 2 * shade + 1, full], dtype=np.uint8)
    levels: np.ndarray = np.round(amounts / 255 * 3)
    return edges.take(levels.astype(int))


# Joiners and spaces; fillers and shorthand controls are ignorable to Unicode, but not to HarfBuzz.
DRAWN_AS_NOTHING = regex.compile(
    r"[[\p{Default_Ignorable_Code_Point}\p{Z}]--"
    r"[\u115F\u1160\u180F\u3164\uFFA0\U0001BCA0-\U0001BCA3]]",
    regex.VERSION1,
)

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of folders that it cannot write


class Bitmap(NamedTuple):
    """A drawn text: how much ink each pixel has, and how many rows hang below the line."""

    ink: UInt8[np.ndarray, "rows columns"]
    below: int


def shipped_fonts() -> list[str]:
    """DejaVu Sans, which has Latin, Greek, Cyrillic and arrows, then Bangla."""
    # By path: a family's name is looked up in a list that may be older than the font.
    dejavu = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return [str(dejavu), str(fontpkg.path("Hind Siliguri"))]


class Fonts:
    """The fonts in use; more join when a text asks for letters that none of them has."""

    def __init__(self, paths: list[str] | None = None, *, look_on_system: bool = True) -> None:
        self.paths = shipped_fonts() if paths is None else paths
        self.faces = [FT2Font(path) for path in self.paths]
        self.look_on_system = look_on_system
        self.nowhere: set[str] = set()  # letters that no font has

    def missing(self, text: str) -> list[str]:
        """The letters of a text that no font has."""
        return [each for each in dict.fromkeys(text) if not self.has(each)]

    def has(self, letter: str) -> bool:
        code = ord(letter)
        if DRAWN_AS_NOTHING.match(letter) or any(face.get_char_index(code) for face in self.faces):
            return True
        if letter in self.nowhere or not self.look_on_system:
            return False
        for path, letters in system_fonts():
            if code in letters:
                self.paths = [*self.paths, path]
                self.faces.append(FT2Font(path))
                return True
        self.nowhere.add(letter)
        return False

    def sized(self, size: float) -> FT2Font:
        font = get_font(self.paths)
        font.set_size(size, 72)  # at 72 dots per inch a point is a pixel
        return font


@cache
def system_fonts() -> list[tuple[str, set[int]]]:
    """The machine's fonts with the letters that they have, regular ones before bold and slanted."""

    def oddity(path: str) -> tuple[int, str]:
        name = Path(path).stem.lower()
        odd = ("bold", "italic", "oblique", "mono", "light", "thin", "black", "serif", "condensed")
        return sum(word in name for word in odd), name

    found = []
    for path in sorted(findSystemFonts(), key=oddity):
        try:
            face = FT2Font(path)
        except (RuntimeError, OSError):  # not a font after all, or not for us
            continue
        if face.scalable and FaceFlags.COLOR not in face.face_flags:
            found.append((path, set(face.get_charmap())))
    return found


@cache
def fonts() -> Fonts:
    """The fonts of this process."""
    return Fonts()


def can_draw(text: str) -> bool:
    return not fonts().missing(text)


def missing_note(texts: Iterable[str]) -> str:
    """What to say, once, about letters that no font of this machine has."""
    letters = fonts().missing("".join(texts))
    if not letters:
        return ""
    some = ", ".join(f"{each} (U+{ord(each):04X})" for each in letters[:3])
    more = f" and {len(letters) - 3} more letters" if len(letters) > 3 else ""
    return f"no font here has {some}{more}; pictures number words with them, with a legend"


@lru_cache(maxsize=4096)
def text_bitmap(text: str, size: float) -> Bitmap:
    """Draw a text; letters are shaped and joined as their script asks for."""
    font = fonts().sized(size)
    font.set_text(text)
    font.draw_glyphs_to_bitmap(antialiased=True)
    ink = np.array(font.get_image(), dtype=np.uint8)
    return Bitmap(ink, max(round(font.get_descent() / 64), 0))


@lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    font = fonts().sized(size)
    font.set_text(text)
    return float(font.get_width_height()[0] / 64)


def cut_text(text: str, size: float, room: float) -> str:
    """A text that fits into so many pixels, never cut inside what a reader sees as one letter."""
    if text_width(text, size) <= room:
        return text
    letters = regex.findall(r"\X", text)

    def is_too_long(count: int) -> bool:
        return text_width("".join(letters[:count]) + "…", size) > room

    # By halves: a text without end would be measured letter by letter for minutes.
    count = bisect_left(range(len(letters)), True, key=is_too_long)
    return "".join(letters[: max(0, count - 1)]) + "…"


def text_outline(text: str, size: float) -> Outline:
    """A text as curves, for pictures that are drawn at any size; y grows upwards."""
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


HATCH_STEP = 4
LARGEST_SHARP = 10_000_000  # pixels; a larger PNG is not drawn at twice its size
CURVE = {
    int(code): letter
    for code, letter in zip(
        (Outline.MOVETO, Outline.LINETO, Outline.CURVE3, Outline.CURVE4), "MLQC", strict=True
    )
}
Pixels = UInt8[np.ndarray, "height width"]  # places in the palette


@dataclass(frozen=True)
class Text:
    """A line of text at a point of its base line."""

    x: int
    y: int
    text: str
    size: int
    anchor: Literal["start", "middle", "end"] = "start"
    ink: Ink = "black"
    is_turned: bool = False  # by a quarter, to be read from below
    shade: int | None = None  # of the cell that it stands in, if it stands in one


@dataclass(frozen=True)
class Cells:
    """A matrix of shaded cells; hatched ones stand for no value at all."""

    x: int
    y: int
    width: int  # of one cell, with the gap that parts it from the next
    height: int
    shades: UInt8[np.ndarray, "rows columns"]
    hatched: Bool[np.ndarray, "rows columns"]
    gap: int = 1


@dataclass(frozen=True)
class Picture:
    width: int
    height: int
    parts: list[Text | Cells]

    def moved(self, right: int, down: int) -> list[Text | Cells]:
        return [replace(part, x=part.x + right, y=part.y + down) for part in self.parts]


def right_edge(part: Text | Cells) -> int:
    """Where a part ends; turned texts stand above their column."""
    if isinstance(part, Cells):
        return part.x + part.width * int(part.shades.shape[1])
    if part.is_turned or part.anchor == "end":
        return part.x
    share = {"start": 1.0, "middle": 0.5}[part.anchor]
    # Letters of a file, which is drawn at twice the size, are not just twice as wide.
    width = max(text_width(part.text, part.size), text_width(part.text, 2 * part.size) / 2)
    return part.x + math.ceil(share * width)


def beside(pictures: list[Picture], gap: int) -> Picture:
    """Pictures in a row, their upper edges level."""
    parts: list[Text | Cells] = []
    right = 0
    for picture in pictures:
        parts += picture.moved(right, 0)
        right += picture.width + gap
    return Picture(right - gap, max(picture.height for picture in pictures), parts)


def stacked(pictures: list[Picture], gap: int) -> Picture:
    """Pictures under each other, their left edges level."""
    parts: list[Text | Cells] = []
    down = 0
    for picture in pictures:
        parts += picture.moved(0, down)
        down += picture.height + gap
    return Picture(max(picture.width for picture in pictures), down - gap, parts)


def as_png(picture: Picture, scale: int = 1) -> bytes:
    """The picture's bytes as a PNG file; the same picture always gives the same bytes."""
    canvas = np.full((picture.height * scale, picture.width * scale), BLACK_LETTERS, dtype=np.uint8)
    for part in picture.parts:
        if isinstance(part, Cells):
            draw_cells(canvas, part, scale)
        else:
            draw_text(canvas, part, scale)
    image = Image.fromarray(canvas, mode="P")
    image.putpalette(palette().tobytes())
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def draw_cells(canvas: Pixels, cells: Cells, scale: int) -> None:
    height, width = cells.height * scale, cells.width * scale
    pixels = cells.shades.repeat(height, axis=0).repeat(width, axis=1)
    if cells.hatched.any():
        down, right = np.indices(pixels.shape)
        hatch = HATCH + ((down + right) % (HATCH_STEP * scale) < scale)
        is_hatched = cells.hatched.repeat(height, axis=0).repeat(width, axis=1)
        pixels = np.where(is_hatched, hatch, pixels).astype(np.uint8)
    for line in range(cells.gap * scale):
        pixels[height - 1 - line :: height] = BLACK_LETTERS
        pixels[:, width - 1 - line :: width] = BLACK_LETTERS
    top, left = cells.y * scale, cells.x * scale
    canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels


def draw_text(canvas: Pixels, text: Text, scale: int) -> None:
    ink, below = text_bitmap(text.text, text.size * scale)
    length = ink.shape[1]
    back = {"start": 0, "middle": length // 2, "end": length}[text.anchor]
    if text.is_turned:
        ink = np.rot90(ink)
        top = text.y * scale + back - length
        left = text.x * scale + below - ink.shape[1]
    else:
        top = text.y * scale + below - ink.shape[0]
        left = text.x * scale - back
    # What would stand beyond the edge is not drawn.
    ink = ink[max(-top, 0) :, max(-left, 0) :]
    top, left = max(top, 0), max(left, 0)
    place = canvas[top : top + ink.shape[0], left : left + ink.shape[1]]
    ink = ink[: place.shape[0], : place.shape[1]]
    np.copyto(place, colours_of_letters(text.ink, text.shade)[ink], where=ink > 0)


colours_of_letters = cache(letter_colours)


def as_svg(picture: Picture) -> str:
    """The picture as SVG; letters are curves, so that every machine shows them alike."""
    size = f'width="{picture.width}" height="{picture.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'viewBox="0 0 {picture.width} {picture.height}">',
        f'<defs><pattern id="hatch" width="{HATCH_STEP}" height="{HATCH_STEP}" '
        f'patternUnits="userSpaceOnUse"><path d="M0 0h{HATCH_STEP}v{HATCH_STEP}H0z" '
        f'fill="{hexadecimal(HATCHED[0])}"/><path d="M0 {HATCH_STEP}L{HATCH_STEP} 0" '
        f'stroke="{hexadecimal(HATCHED[1])}"/></pattern></defs>',
        f'<rect {size} fill="{hexadecimal(PAPER)}"/>',
    ]
    for part in picture.parts:
        lines += cells_svg(part) if isinstance(part, Cells) else [text_svg(part)]
    return "\n".join([*lines, "</svg>\n"])


def cells_svg(cells: Cells) -> list[str]:
    lines = []
    for row, colours in enumerate(palette()[cells.shades].tolist()):
        for column, colour in enumerate(colours):
            x, y = cells.x + column * cells.width, cells.y + row * cells.height
            is_hatched = cells.hatched[row, column]
            fill = "url(#hatch)" if is_hatched else hexadecimal(colour)
            lines.append(
                f'<rect x="{x}" y="{y}" width="{cells.width - cells.gap}" '
                f'height="{cells.height - cells.gap}" '
                f'fill="{fill}"/>'
            )
    return lines


def text_svg(text: Text) -> str:
    outline = text_outline(text.text, text.size)
    length = text_width(text.text, text.size)
    back = {"start": 0, "middle": length / 2, "end": length}[text.anchor]
    turn = " rotate(-90)" if text.is_turned else ""
    curve = "".join(
        "Z"
        if code == Outline.CLOSEPOLY
        else CURVE[int(code)] + " ".join(f"{number:.2f}" for number in points)
        for points, code in outline.iter_segments(simplify=False)
    )
    return (
        f'<g role="img" aria-label="{escape(text.text)}" fill="{hexadecimal(INKS[text.ink])}" '
        f'transform="translate({text.x} {text.y}){turn} translate({-back:.2f} 0) scale(1 -1)">'
        f'<path d="{curve}"/></g>'
    )


def hexadecimal(colour: Colour | list[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def write_picture(path: Path, picture: Picture) -> None:
    """Write a picture as PNG or SVG, as the file's ending says."""
    if path.suffix.lower() == ".svg":
        path.write_text(as_svg(picture), encoding="utf-8", newline="\n")
    else:
        is_huge = picture.width * picture.height > LARGEST_SHARP
        path.write_bytes(as_png(picture, scale=1 if is_huge else 2))


NARROW, WIDE = 350, 700  # a card of TensorBoard's stretches its picture to 350 pixels
MOST_NARROW = 26  # tokens on an axis, beyond which a picture is wide
MARGIN = 4
TITLE, LABEL, SMALL = 12, 11, 9  # letters
LEAST_CELL, MOST_CELL, ROW = 9, 50, 20
NUMBER_CELL = 26  # from this width on, a cell has room for its number
LONGEST, SHORTEST = 66, 24  # pixels of a word, beyond which it is cut
LEFT_TO_RIGHT, ISOLATE, END = "\u2066", "\u2068", "\u2069"  # marks for the order of scripts


@dataclass
class Names:
    """Words as a picture writes them: cut to their room, numbered where no font has them."""

    size: int
    numbers: dict[str, int]
    used: dict[str, int] = field(default_factory=dict)

    def shown(self, word: str, room: float = LONGEST) -> str:
        word = escape_controls(word)
        if not can_draw(word):
            self.used[word] = self.numbers.setdefault(word, len(self.numbers) + 1)
            return f"[{self.used[word]}]"
        return cut_text(word, self.size, room)

    def legend(self) -> list[str]:
        """What the numbers stand for, in code points: no font has the letters."""
        codes = {word: " ".join(f"U+{ord(each):04X}" for each in word) for word in self.used}
        return [f"[{number}] {codes[word]}" for word, number in self.used.items()]


def attention_picture(
    view: AttentionView,
    rows: int | None = None,
    numbers: dict[str, int] | None = None,
    best: HeadAlignment | None = None,
) -> Picture:
    """Every head of a layer and their mean; of a decoder's rows, the first so many.

    `numbers` are those that words without a font already have. A view of the `best` head alone
    has that for a title, and rows that bear only the token that they were found to belong to.
    """
    weights = view.weights.double().numpy()
    heads = {f"head {number}": each for number, each in enumerate(weights)}
    if len(weights) > 1:
        heads["mean of all heads"] = weights.mean(axis=0)
    labelling = best.labelling if best else ""
    layout = Layout(view, rows, {} if numbers is None else numbers, labelling)
    title = best.caption if best else view.title
    parts: list[Text | Cells] = [
        Text(MARGIN, 15, title, TITLE),
        Text(MARGIN, 29, layout.axes, SMALL, ink="grey"),
    ]
    down = 34
    for name, each in heads.items():
        parts += layout.block(name if len(weights) > 1 else "", each, down)
        down += layout.block_height
    parts += layout.scale(down + 8)
    down += 24
    for line in layout.names.legend():
        down += 12
        parts.append(Text(MARGIN, down - 4, cut_text(line, SMALL, layout.width - 8), SMALL))
    return Picture(layout.width, down, parts)


def sentence_picture(
    source: str,
    translation: str,
    views: list[AttentionView],
    best: tuple[HeadAlignment, AttentionView] | None = None,
) -> Picture:
    """Every attention of a sentence: a column for each kind, layers under each other.

    The best head's map, where it is known, stands above them all.
    """
    names = Names(TITLE, {})
    texts = (" ".join(names.shown(word) for word in text.split()) for text in (source, translation))
    heading = Text(MARGIN, 16, arrow(*(cut_text(text, TITLE, NARROW) for text in texts)), TITLE)
    columns = [
        [attention_picture(view, numbers=names.numbers) for view in views if view.where == where]
        for where in ("encoder", "decoder", "cross")
        if any(view.where == where for view in views)
    ]
    widths = [
        max(right_edge(part) for picture in column for part in picture.parts) for column in columns
    ]
    blanks = [Picture(width, 0, []) for width in widths]
    layers = [  # the two sides may have different numbers of them
        [replace(picture or blank, width=blank.width)
         for picture, blank in zip(layer, blanks, strict=True)]
        for layer in zip_longest(*columns)
    ]  # fmt: skip
    maps = stacked([beside(layer, 30) for layer in layers], 12)
    lines = [
        Text(MARGIN, 30 + 12 * number, line, SMALL) for number, line in enumerate(names.legend())
    ]
    first = []
    if best:
        picture = attention_picture(best[1], numbers=names.numbers, best=best[0])
        first = [replace(picture, height=picture.height + 14)]  # some air below it
    width = max([maps.width, *(right_edge(part) for each in first for part in each.parts)])
    width = max(width, right_edge(heading))
    return stacked([Picture(width, 24 + 12 * len(lines), [heading, *lines]), *first, maps], 0)


def arrow(first: str, second: str) -> str:
    """first → second, from left to right whichever way their scripts run."""
    return f"{LEFT_TO_RIGHT}{ISOLATE}{first}{END} → {ISOLATE}{second}{END}{END}"


class Layout:
    """Where things stand in the pictures of one view."""

    def __init__(
        self, view: AttentionView, rows: int | None, numbers: dict[str, int], labelling: str
    ) -> None:
        self.view, self.labelling = view, labelling
        self.rows = len(view.queries) if rows is None else rows
        longest = max(len(view.queries), len(view.keys))
        self.width = NARROW if longest <= MOST_NARROW else WIDE
        small = len(view.keys) > 16
        self.size = SMALL if small else LABEL
        self.names = Names(self.size, numbers)
        unit, rows_are = "token", "fed in → token produced"
        self.axes = "a row for each query, a column for each key"
        if view.is_by_words:
            unit, rows_are = "whole word", "fed in → produced"
            self.axes = "whole words: a row for each query, a column for each key"
        if view.where == "cross":
            self.axes = f"rows: {unit} {labelling or rows_are}; columns: source"
        self.row_names = self.named_rows()
        self.column_names = [self.names.shown(key) for key in view.keys]
        self.left = 2 * MARGIN + round(max(text_width(name, self.size) for name in self.row_names))
        widest = round(max(text_width(name, self.size) for name in self.column_names))
        self.cell = (self.width - self.left - MARGIN) // len(view.keys)
        self.cell = min(max(self.cell, LEAST_CELL), MOST_CELL)
        self.is_turned = widest > self.cell - 4  # words stand upright where they do not fit
        self.top = 6 + (widest if self.is_turned else self.size)
        self.width = max(self.width, self.left + self.cell * len(view.keys) + MARGIN)
        self.has_numbers = self.cell >= NUMBER_CELL
        self.row = ROW if self.has_numbers else self.size + 4

    def named_rows(self) -> list[str]:
        """What stands beside the rows: words that leave room for all columns."""
        view = self.view
        between = text_width(arrow("", ""), self.size)
        room = self.width - 3 * MARGIN - LEAST_CELL * len(view.keys)
        if view.where != "cross" or self.labelling:
            words = view.produced if self.labelling == PRODUCED else view.queries
            room = min(max(room, SHORTEST), LONGEST)
            return [self.names.shown(word, room) for word in words]
        share = min(max((room - between) / 2, SHORTEST), LONGEST)
        return [
            arrow(self.names.shown(query, share), self.names.shown(produced, share))
            for query, produced in zip(view.queries, view.produced, strict=True)
        ]

    @property
    def block_height(self) -> int:
        return 14 * (len(self.view.weights) > 1) + self.top + self.row * len(self.view.queries) + 8

    def block(
        self, name: str, weights: Float[np.ndarray, "queries keys"], down: int
    ) -> list[Text | Cells]:
        """One head: its name, the keys above, the queries beside, a cell for each pair."""
        parts: list[Text | Cells] = []
        if name:
            down += 14
            parts.append(Text(MARGIN, down - 2, name, LABEL))
        grid = down + self.top
        is_self = self.view.where != "cross"
        keys = self.column_names[: self.rows] if is_self else self.column_names
        for column, key in enumerate(keys):
            middle = self.left + column * self.cell + self.cell // 2
            if self.is_turned:
                x = middle + self.size // 3
                parts.append(Text(x, grid - 4, key, self.size, is_turned=True))
            else:
                parts.append(Text(middle, grid - 4, key, self.size, "middle"))
        allowed = self.view.allowed.numpy()[: self.rows, : len(keys)]
        shown = weights[: self.rows, : len(keys)]
        parts.append(Cells(self.left, grid, self.cell, self.row, shades(shown), ~allowed))
        for row in range(self.rows):
            base = grid + row * self.row + self.row // 2 + self.size // 3
            parts.append(Text(self.left - 4, base, self.row_names[row], self.size, "end"))
        if self.has_numbers:
            parts += self.numbers(shown, allowed, grid)
        return parts

    def numbers(
        self,
        weights: Float[np.ndarray, "queries keys"],
        allowed: Bool[np.ndarray, "queries keys"],
        grid: int,
    ) -> list[Text | Cells]:
        parts: list[Text | Cells] = []
        places = shades(weights)
        for row, column in zip(*np.nonzero(allowed), strict=True):
            weight = float(weights[row, column])
            x = self.left + int(column) * self.cell + self.cell // 2
            y = grid + int(row) * self.row + self.row // 2 + 3
            shade = int(places[row, column])
            ink = letter_ink(shade)
            parts.append(Text(x, y, number(weight), SMALL, "middle", ink, shade=shade))
        return parts

    def scale(self, down: int) -> list[Text | Cells]:
        """What the colours mean."""
        steps = np.linspace(0, 1, 40)[None]
        no = np.zeros((1, 40), dtype=bool)
        parts: list[Text | Cells] = [
            Text(MARGIN, down + 9, "weight 0", SMALL, ink="grey"),
            Cells(54, down, 2, 11, shades(steps), no, gap=0),
            Text(138, down + 9, "1", SMALL, ink="grey"),
        ]
        if not self.view.allowed.all():
            blank = np.zeros((1, 1), dtype=np.uint8)
            parts += [
                Cells(160, down, 18, 11, blank, np.ones((1, 1), dtype=bool)),
                Text(181, down + 9, "may not be looked at", SMALL, ink="grey"),
            ]
        return parts


def number(weight: float) -> str:
    """A weight in as few letters as two digits need: .63, and 1.0."""
    return "1.0" if weight >= 0.995 else f"{weight:.2f}"[1:]
