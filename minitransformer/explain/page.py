"""A translation as a page that one can click through: one HTML file that fetches nothing."""

import base64
import io
import json
import re
from html import escape
from importlib.resources import files
from pathlib import Path

import regex

from minitransformer import __version__
from minitransformer.explain.page_data import Numbers, walk_data
from minitransformer.explain.terminal_view import View
from minitransformer.explain.walkthrough import Walkthrough
from minitransformer.model.positional import LearnedPositions, SinusoidalPositions

SCRIPTS = (
    "page_numbers.js", "page_parts.js", "page_sections.js", "page_recurrent.js", "page_map.js",
    "page.js",
)  # fmt: skip
# Letters, digits and signs of scripts that not every machine can show, and their full stops.
UNCOMMON = regex.compile(r"[^\p{Latin}\p{Greek}\p{Cyrillic}\p{Common}\p{Inherited}]|[।॥]")
FONT_FAMILY = "page-font"


def write_page(
    path: Path, walks: dict[str, list[Walkthrough]], precision: int, *, words: bool = False
) -> None:
    """Write walk-throughs of the same sentences, by the name of their checkpoint, as a page."""
    path.write_text(page_html(walks, precision, words=words), encoding="utf-8", newline="\n")


def page_html(walks: dict[str, list[Walkthrough]], precision: int, *, words: bool = False) -> str:
    numbers, view = Numbers(), View(precision=precision)
    told = [[walk_data(walk, numbers) for walk in own] for own in walks.values()]
    for own, data_of_own in zip(walks.values(), told, strict=True):
        for walk, data_of_walk in zip(own, data_of_own, strict=True):
            data_of_walk |= {"words": "\n".join(view.words(walk))} if words else {}
    last = list(walks.values())[-1]
    embedding = last[0].model.encoder.embedding
    positions = {SinusoidalPositions: "sinusoidal", LearnedPositions: "learned"}
    data = {
        "precision": precision,
        "sentences": [walk.text for walk in last],
        "checkpoints": list(walks),
        "position": "rotary" if last[0].model.rotary else positions.get(type(embedding.positions)),
        "scaled_embeddings": embedding.scale != 1,
        "walks": told,
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    texts = ["\n".join(view.compact(walk)) for walk in last]
    title = escape(f"{last[0].text} → {last[0].translation}")
    body = filled(
        "page.html",
        title=title,
        version=__version__,
        noscript="\n".join(f"<pre>{escape(each)}</pre>" for each in texts),
        data=text.replace("<", "\\u003c"),  # nothing in it ends the script that holds it
        numbers=numbers.encoded(),
        script="\n".join(page_file(name) for name in SCRIPTS),
    )
    return filled("frame.html", title=title, style=page_style(text), body=body)


def page_file(name: str) -> str:
    return (files("minitransformer.explain") / name).read_text(encoding="utf-8")


def filled(template: str, **values: str) -> str:
    """A template with its {{names}} filled in, once: what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], page_file(template))


def page_style(text: str) -> str:
    """The style of a page, with a font for the letters of its text that machines may lack."""
    face, family = "", ""
    if letters := "".join(sorted(set(UNCOMMON.findall(text)))):
        face, family = font_face(letters), f"{FONT_FAMILY},"
    # First, and only for its own letters: after a system's fonts, browsers leave some boxes.
    return face + filled("page.css", fonts=family)


def font_face(letters: str) -> str:
    """The shipped font, cut down to these letters; nothing if it has none of them."""
    import fontpkg
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont

    font = TTFont(fontpkg.path("Hind Siliguri"))
    known = font.getBestCmap().keys()
    own = [ord(letter) for letter in letters if ord(letter) in known]
    if not own:
        return ""
    joiners = [code for code in (0x200C, 0x200D, 0x25CC) if code in known]
    options = Options(layout_features=["*"], notdef_outline=True)
    cutter = Subsetter(options)
    cutter.populate(unicodes=[*own, *joiners])
    cutter.subset(font)
    font.flavor = "woff"
    content = io.BytesIO()
    font.save(content)
    encoded = base64.b64encode(content.getvalue()).decode("ascii")
    ranges = ", ".join(f"U+{code:04X}" for code in [*own, *joiners])
    return (
        f"@font-face {{ font-family: {FONT_FAMILY}; unicode-range: {ranges}; "
        f"src: url(data:font/woff;base64,{encoded}) format('woff'); }}\n"
    )
