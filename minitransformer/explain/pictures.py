"""Attention as a picture: a layer's heads under each other, words on both axes."""

from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np
from jaxtyping import Bool, Float

from minitransformer.explain import fonts
from minitransformer.explain.attention_view import AttentionView
from minitransformer.explain.best_alignment import PRODUCED, HeadAlignment
from minitransformer.explain.canvas import Cells, Picture, Text, beside, right_edge, stacked
from minitransformer.explain.palette import letter_ink, shades
from minitransformer.line_translation import without_controls

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
        word = without_controls(word)
        if not fonts.can_draw(word):
            self.used[word] = self.numbers.setdefault(word, len(self.numbers) + 1)
            return f"[{self.used[word]}]"
        return fonts.cut(word, self.size, room)

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
        parts.append(Text(MARGIN, down - 4, fonts.cut(line, SMALL, layout.width - 8), SMALL))
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
    heading = Text(MARGIN, 16, arrow(*(fonts.cut(text, TITLE, NARROW) for text in texts)), TITLE)
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
        self.left = 2 * MARGIN + round(max(fonts.width(name, self.size) for name in self.row_names))
        widest = round(max(fonts.width(name, self.size) for name in self.column_names))
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
        between = fonts.width(arrow("", ""), self.size)
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
