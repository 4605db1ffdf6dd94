"""A picture as parts with places in pixels, and the two ways to draw it: PNG and SVG."""

import io
import math
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, UInt8
from matplotlib.path import Path as Outline
from PIL import Image

from minitransformer.explain import fonts
from minitransformer.explain.palette import (
    BLACK_LETTERS,
    HATCH,
    HATCHED,
    INKS,
    PAPER,
    Colour,
    Ink,
    letter_colours,
    palette,
)

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
    width = max(fonts.width(part.text, part.size), fonts.width(part.text, 2 * part.size) / 2)
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
    ink, below = fonts.bitmap(text.text, text.size * scale)
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
    outline = fonts.outline(text.text, text.size)
    length = fonts.width(text.text, text.size)
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
