"""A font for every script: those that ship, then those of the system, each looked for once."""

import logging
from bisect import bisect_left
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import fontpkg
import matplotlib
import numpy as np
import regex
from jaxtyping import UInt8
from matplotlib.font_manager import findSystemFonts, get_font
from matplotlib.ft2font import FaceFlags, FT2Font
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextToPath

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
def bitmap(text: str, size: float) -> Bitmap:
    """Draw a text; letters are shaped and joined as their script asks for."""
    font = fonts().sized(size)
    font.set_text(text)
    font.draw_glyphs_to_bitmap(antialiased=True)
    ink = np.array(font.get_image(), dtype=np.uint8)
    return Bitmap(ink, max(round(font.get_descent() / 64), 0))


@lru_cache(maxsize=4096)
def width(text: str, size: float) -> float:
    font = fonts().sized(size)
    font.set_text(text)
    return float(font.get_width_height()[0] / 64)


def cut(text: str, size: float, room: float) -> str:
    """A text that fits into so many pixels, never cut inside what a reader sees as one letter."""
    if width(text, size) <= room:
        return text
    letters = regex.findall(r"\X", text)

    def is_too_long(count: int) -> bool:
        return width("".join(letters[:count]) + "…", size) > room

    # By halves: a text without end would be measured letter by letter for minutes.
    count = bisect_left(range(len(letters)), True, key=is_too_long)
    return "".join(letters[: max(0, count - 1)]) + "…"


def outline(text: str, size: float) -> Outline:
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
