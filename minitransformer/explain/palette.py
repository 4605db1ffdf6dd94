"""The few colours of every picture, so that a PNG needs a byte per pixel and is drawn fast."""

from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Float, UInt8

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
