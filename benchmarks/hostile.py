"""Generate hostile input for the commands, reproducibly from a seed.

A case is a command with its arguments and standard input in a folder of files, and the exit codes
that are correct for it.
"""

import io
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from minitransformer.config import load_config
from minitransformer.errors import UserError
from minitransformer.settings import Config
from tests.support.overrides import overrides

ROOT = Path(__file__).parent.parent
CONFIG = (ROOT / "configs" / "tiny.yaml").read_bytes()
SHEETS = sorted((ROOT / "minitransformer/worked/sheets").glob("*.yaml"))
# Whatever else a config says, a case must end soon and use one process.
FAST_RUN = overrides(
    "training.steps=3", "training.processes=1", "training.save_every=2", "evaluation.every=2",
    "evaluation.train_pairs=4", "data.limit=8", "model.max_length=16", "data.cache=",
)  # fmt: skip
NASTY = [
    b"\0", b"\xff", b"\xed\xa0\x80", b"\r", b"\n", b"\r\n", b"\t", b'"', b",", b":", b"\\", b"{",
    b"]", b"&a ", b"*a", b"!!python/object:os.system ", b"- ", b"#", b"~", b"\xe2\x80\xa8", b"\x1c",
    b"\xc2\x85", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", b"\x1b[31m", b"1e999", b"-1", b"0",
    b"nan", b"null", b"true", b"[]", b"9" * 20, b"..", b"/", b"%s", b"x" * 3000, b"<EOS>",
    "\u200d👩🏽\u0338".encode(), "ক্ষ\u200c".encode(), "\u202eمرحبا".encode(), "▁".encode(),
]  # fmt: skip
WORDS = ["I", "go", "to", "school", "Let's", "Vamos", "pizza", "<EOS>", "<PAD>", "▁", "…", "'", ":"]


class Case(NamedTuple):
    """A command, its input, and what is correct for it."""

    command: str  # of minitransformer
    arguments: list[str]
    stdin: bytes = b""
    codes: tuple[int, ...] = (0, 1, 2)
    lines: int | None = None  # of output, if it is known
    is_prompt: bool = False


def mutated(content: bytes, random: Random, max_mutations: int = 4) -> bytes:
    """Replace, insert, delete, repeat or truncate bytes at random."""
    for _ in range(random.randint(1, max_mutations)):
        start, size = random.randrange(len(content) + 1), random.randint(1, 40)
        before, part, after = (
            content[:start], content[start : start + size], content[start + size :]
        )  # fmt: skip
        content = random.choice(
            [
                before + bytes([random.randrange(256)]) + part[1:] + after,
                before + random.choice(NASTY) + part + after,
                before + random.choice(NASTY) + after,
                before + after,
                before + part * 2 + after,
                before,
            ]
        )
    return content


def sentence(random: Random) -> str:
    """Return words, most of which are in the vocabulary, mixed with NASTY."""
    nasty = [piece.decode("utf-8", "replace") for piece in NASTY]
    kinds = random.choices([WORDS, nasty], [7, 3], k=random.randint(0, 12))
    parts = [random.choice(kind) for kind in kinds]
    return random.choice([" ", " ", ""]).join(parts)


def as_argument(text: str) -> str:
    """Remove what a command line cannot hold."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def random_value(random: Random) -> Any:
    """Return a value of any type that JSON or YAML has."""
    return random.choice([None, True, -1, 0, 1, 7, 2**70, 1e308, float("nan"), "", "x", "../x",
                          [], [1], {}, {"a": 1}])  # fmt: skip


def unusual_number(random: Random) -> str:
    """Return a number that an option may not expect, or text that is none."""
    return random.choice(["0", "1", "2", "3", "-1", "1001", "nan", "1e3", "", "x", "9" * 30, "0.5"])


def config_case(folder: Path, random: Random) -> Case:
    """Return a training with a mutated config."""
    (folder / "own.yaml").write_bytes(mutated(CONFIG, random))
    try:
        load_config(folder / "own.yaml", FAST_RUN[1::2])
        codes: tuple[int, ...] = (0, 1, 2)
    except UserError:
        codes = (2,)
    return Case("train", ["--config", "own.yaml", *FAST_RUN], codes=codes)


def override_case(folder: Path, random: Random) -> Case:
    """Return a training with random values of a few settings."""
    settings = [
        (f"{section}.{key}", value)
        for section, values in asdict(Config()).items()
        for key, value in values.items()
    ]
    sets = []
    for _ in range(random.randint(1, 3)):
        key, value = random.choice(settings)
        near = [value, value, not value, f"{value}1", [value], 1, 2, 8, 0.5, "best", "bpe", "pre"]
        far = random.choice([json.dumps(random_value(random)), sentence(random), "1e-4"])
        chosen = json.dumps(random.choice(near)) if random.random() < 0.8 else far
        sets += ["--set", as_argument(f"{key}={chosen}")]
    if random.random() < 0.1:
        sets += ["--set", as_argument(sentence(random))]
    return Case("train", ["--config", "tiny.yaml", *sets, *FAST_RUN])


def corpus_case(folder: Path, random: Random) -> Case:
    """Return a training on a mutated corpus in one of the file formats."""
    pairs = [(f"I go {n}", f"Voy {n}") for n in range(12)]
    kind = random.choice(["tsv", "csv", "jsonl", "parquet", "aligned"])
    path = f"own.{kind}"
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        file = io.BytesIO()
        columns = {"source": [a * 20 for a, _ in pairs], "target": [b * 20 for _, b in pairs]}
        options = {"compression": random.choice(["none", "snappy"]), "use_dictionary": False}
        pyarrow.parquet.write_table(pyarrow.table(columns), file, **options)
        content = file.getvalue()
    else:
        content = {
            "tsv": "".join(f"{a}\t{b}\n" for a, b in pairs),
            "csv": "source,target\n" + "".join(f"{a},{b}\n" for a, b in pairs),
            "jsonl": "".join(f"{json.dumps({'source': a, 'target': b})}\n" for a, b in pairs),
            "aligned": "".join(f"{a}\n" for a, _ in pairs),
        }[kind].encode()
    (folder / path).write_bytes(mutated(content, random, max_mutations=12))
    if kind == "aligned":
        other = "".join(f"{b}\n" for _, b in pairs).encode()
        is_other_damaged = random.random() < 0.5
        (folder / "own.es").write_bytes(mutated(other, random) if is_other_damaged else other)
        path = "[own.aligned, own.es]"
    more = random.choice([[], ["data.split_valid=2"], ["filters.malformed=error"],
                          ["tokenizer.kind=bpe", "tokenizer.vocab_size=9"],
                          [f"data.valid={path}"]])  # fmt: skip
    sets = overrides(f"data.train={path}", *more)
    return Case("train", ["--config", "tiny.yaml", *FAST_RUN, *sets], codes=(0, 1))


def lines_case(folder: Path, random: Random) -> Case:
    """Return a translation of random lines, each of which must give one line of output."""
    lines = [mutated(sentence(random).encode(), random) for _ in range(random.randint(0, 9))]
    content = b"\n".join(lines) + random.choice([b"", b"\n"])
    count = content.count(b"\n") + (content != b"" and not content.endswith(b"\n"))
    options = random.choice([[], ["--scores"], ["--beam", "3"], ["--average", "2"]])
    arguments = ["--run", random.choice(["words", "bpe"]), *options]
    if random.random() < 0.3:
        (folder / "in.txt").write_bytes(content)
        return Case("translate", [*arguments, "--input", "in.txt"], b"", (0,), count)
    return Case("translate", arguments, content, (0,), count)


def options_case(folder: Path, random: Random) -> Case:
    """Return a translation or a walk-through with random options."""
    is_explain = random.random() < 0.6
    names = ["--average"] + (
        ["--step", "--precision"] if is_explain else ["--beam", "--n-best", "--length-penalty"]
    )
    chosen = random.sample(names, random.randint(0, 3))
    numbers = [f"{name}={unusual_number(random)}" for name in chosen]
    forms = [[], ["--tokens"], ["--scores"], ["--checkpoint", "best"], ["--to", "o.txt"]]
    if is_explain:
        forms = [[], ["--full"], ["--to", "o.html"], ["--to", "o.json"], ["--to", "o.md"],
                 ["--to", "o.png"], ["--to", "o.svg", "--merge-subwords"],
                 ["--only", as_argument(sentence(random))],
                 ["--expected", as_argument(sentence(random))]]  # fmt: skip
    sentences = [as_argument(sentence(random)) for _ in range(random.randint(0, 3))]
    run = ["--run", random.choice(["words", "bpe"])]
    arguments = [*run, *numbers, *random.choice(forms), "--", *sentences]
    return Case("explain" if is_explain else "translate", arguments)


def prompt_case(folder: Path, random: Random) -> Case:
    """Return a dialogue of commands and sentences at the prompt."""
    commands = ["walk", "full", "attention", "why", "hide", "head", "position", "force", "reset",
                "help", "", "quit", "nonsense"]  # fmt: skip
    lines = []
    for _ in range(random.randint(1, 12)):
        after = random.choice(
            ["", "words", "1", "off", "encoder.0.0 off", "cross.9.9 on", sentence(random)]
        )
        lines.append(
            f":{random.choice(commands)} {after}" if random.random() < 0.6 else sentence(random)
        )
    content = "\n".join(lines).encode("utf-8", "replace")
    options = random.choice([[], ["--scores"], ["--beam", "2"]])
    arguments = ["--run", random.choice(["words", "bpe"]), *options]
    return Case("translate", arguments, mutated(content, random), (0,), is_prompt=True)


def worked_case(folder: Path, random: Random) -> Case:
    """Return a check of a sheet with other numbers or words, or with mutated bytes."""
    sheet = random.choice(SHEETS).read_bytes()
    if random.random() < 0.6:
        words = re.findall(rb"[\w.]+", sheet)
        for _ in range(random.randint(1, 2)):
            old = random.choice(words)
            new = random.choice([*words, unusual_number(random).encode()])
            pieces = re.split(rb"\b" + re.escape(old) + rb"\b", sheet)
            index = random.randrange(len(pieces))  # of the occurrence to replace; 0: none
            sheet = old.join(pieces[:index]) + new * (index > 0) + old.join(pieces[index:])
    else:
        sheet = mutated(sheet, random)
    (folder / "own.yaml").write_bytes(sheet)
    endings = ("", "json", "md", "tex", "html", "safetensors")
    form = ["--to", f"o.{ending}"] if (ending := random.choice(endings)) else []
    return Case("worked", ["check", "own.yaml", *form])


def evaluation_case(folder: Path, random: Random) -> Case:
    """Return an evaluation on random sentences."""
    rows = "".join(f"{sentence(random)}\t{sentence(random)}\n" for _ in range(4)).encode()
    (folder / "in.tsv").write_bytes(mutated(rows, random))
    (folder / "ref.txt").write_bytes(mutated(rows, random))
    arguments = random.choice(
        [
            ["--split", "valid"], ["--input", "in.tsv"],
            ["--input", "in.tsv", "--references", "ref.txt"],
            ["--input", "in.tsv", "--compare", "words"], ["--beam", unusual_number(random)],
            ["--set", as_argument(f"data.test={sentence(random)}")], ["--set", "data.test=in.tsv"],
        ]
    )  # fmt: skip
    run = random.choice(["words", "bpe"])
    return Case("evaluate", ["--run", run, *arguments])


INPUTS: dict[str, Callable[[Path, Random], Case]] = {
    "config": config_case, "override": override_case, "corpus": corpus_case, "lines": lines_case,
    "options": options_case, "prompt": prompt_case, "worked": worked_case,
    "evaluation": evaluation_case,
}  # fmt: skip
