"""The commands report malformed data, configs and sentences, and never crash."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.overrides import overrides
from tests.support.processes import ROOT, run

RUN = ROOT / "tests" / "fixtures" / "run-format-1"
QUICK = overrides("training.steps=1", "model.d_model=8", "logging.tensorboard=false")


def train(folder: Path, *sets: str, config: str = "tiny.yaml"):
    return run("train.py", "--config", config, *QUICK, *overrides(*sets), folder=folder)


# Each row with its message in the report; None: kept; "": counted in a message above.
ROWS = [
    (b"\xef\xbb\xbfa b\tx y", None),  # a byte-order mark is not text
    (b"c d\tz w\r", None),
    (b"", "1 empty, skipped"),
    (b"only\t", "2 with one side empty, skipped"),
    (b"\tother", ""),
    (b"a\rb\tc", "4 with control characters, skipped"),
    ("a\u0085b\tc".encode(), ""),
    (b"a\x1cb\tc", ""),
    ("a\u2028b\tc".encode(), None),
    (b"caf\xe9\tc", "3 not UTF-8, or with U+FFFD"),
    (b"\xed\xa0\x80\tc", ""),
    ("a\ufffd\tc".encode(), ""),
    (b"a\0b\tc", "1 with NUL characters, skipped"),
    (b"no tab at all", "2 cannot be read, skipped"),
    (b"one\ttwo\tthree", ""),
    (b"source\ttarget", "1 with the column names instead of sentences, skipped"),
    (b"x" * 10_000_000 + b"\ty", "1 too long, skipped"),
    (b"same\tsame", None),
    (b"a b\tx y", None),
    (b"\x1b[31mred\tc", ""),  # counts with the other control characters
    (b'"quoted\tNA', None),
    (b"last\tline", None),
]


def test_bad_rows_are_reported_by_line_and_others_kept(tmp_path):
    (tmp_path / "own.tsv").write_bytes(b"\n".join(row for row, _ in ROWS))
    result = train(tmp_path, "data.train=own.tsv")
    assert result.code == 0, result.err
    kept = [row for row, words in ROWS if words is None]
    summary = f"  train     {len(kept)} pairs kept, {len(ROWS) - len(kept)} dropped"
    assert summary in result.out.splitlines()
    for number, (_, words) in enumerate(ROWS, start=1):
        if words:
            (line,) = [line for line in result.out.splitlines() if words in line]
            assert f"(first: line {number}" in line
    assert "1 with the same text on both sides, kept (first: line 18)" in result.out
    assert "1 duplicate, kept (first: line 19)" in result.out
    words = (tmp_path / "runs/tiny/tokenizer/source.tsv").read_text(encoding="utf-8")
    assert {"last", "same"} <= set(re.findall(r"^(\w+)\t", words, re.MULTILINE))


@pytest.mark.parametrize(
    ("files", "sets", "message"),
    [
        ({"a.en": b"a\nb\nc\n", "a.es": b"x\ny\n"}, ["data.train=[a.en, a.es]"],
         "a.en has 3 lines, a.es has 2"),
        ({"a.en": b"a\r\nb\rc\r\n", "a.es": b"x\ny\nz\n"}, ["data.train=[a.en, a.es]"],
         "a.en has 2 lines, a.es has 3"),
        ({"a.tsv": b""}, ["data.train=a.tsv"], "no usable sentence pairs"),
        ({"a.tsv": b"\n\t\nx\t\n"}, ["data.train=a.tsv"], "no usable sentence pairs"),
        ({"a.tsv": b"no tab\n" * 3}, ["data.train=a.tsv"], "3 cannot be read"),
        ({"a.tsv": b"source\tsource\ttarget\na\tb\tc\n"}, ["data.train=a.tsv"], "duplicate column"),
        ({"a.csv": b"source,source,target\na,b,c\n"}, ["data.train=a.csv"], "duplicate column"),
        ({"a.tsv": b"a\tb\n", "v.tsv": b"a\tc\n"},
         ["data.train=a.tsv", "data.valid=v.tsv", "filters.overlap=error"],
         "1 whose source is also in a held-out split, refused (first: line 1)"),
        ({"a.tsv": b"a\tb\n", "v.tsv": b"zz\tqq\n"},
         ["data.train=a.tsv", "data.valid=v.tsv", "filters.unknown=error"],
         "1 with words or characters that training does not have, refused (first: line 1"),
        ({"a.tsv": b"a\tb\nx\tx\n"}, ["data.train=a.tsv", "filters.same_text=error"],
         "1 with the same text on both sides, refused (first: line 2)"),
    ],
)  # fmt: skip
def test_unusable_data_is_refused_before_a_run_starts(tmp_path, files, sets, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    result = train(tmp_path, *sets)
    assert result.code == 1
    assert message in result.err
    assert result.err.startswith("error: ")
    assert not (tmp_path / "runs").exists()


def test_unknown_words_and_overlap_of_held_out_pairs_are_counted(tmp_path):
    (tmp_path / "own.tsv").write_bytes(b"a b\tx y\nc\tz\n")
    (tmp_path / "valid.tsv").write_bytes(b"a b\tx y\nnew words\tnuevas palabras\n")
    result = train(tmp_path, "data.train=own.tsv", "data.valid=valid.tsv")
    assert result.code == 0, result.err
    assert "1 whose source is also in a held-out split, kept (first: line 1)" in result.out
    assert "50.0% of all source and 50.0% of all target tokens" in result.out


CONFIG = (ROOT / "configs" / "tiny.yaml").read_text(encoding="utf-8")
BILLION_LAUGHS = "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9 if n else 'lol'}]\n" for n in range(9))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONFIG.replace("steps: 600", "stpes: 600"), "training.stpes': did you mean 'steps'?"),
        (CONFIG.replace("steps: 600", "steps: many"), "training.steps: expected a whole number"),
        (CONFIG.replace("dropout: 0.0", "dropout: 1.5", 1), "model.dropout: must be from 0 to"),
        (CONFIG.replace("num_heads: 1 ", "num_heads: 7 "), "must be divisible by"),
        (CONFIG + "\ndata: {}\n", "duplicate key 'data'"),
        (CONFIG.replace("seed: 1 ", "seed: 1\n  seed: 2 "), "duplicate key 'seed'"),
        ("data: !!python/object/apply:os.system [touch exploded]", "tags such as"),
        (BILLION_LAUGHS + CONFIG, "anchors and aliases are not allowed"),
        (CONFIG + "# x\n" * 2_500_000, "larger than 4,000,000 bytes"),
        ("[" * 50_000, "not valid YAML"),
        ("\ufeff\0", "not valid YAML"),
        ("", "the config is empty"),
        (None, "no config 'own.yaml'"),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) > 60 else value,
)  # fmt: skip
def test_invalid_config_is_refused_before_a_run_starts(tmp_path, content, message):
    if content is not None:
        (tmp_path / "own.yaml").write_text(content, encoding="utf-8")
    result = run("train.py", "--config", "own.yaml", folder=tmp_path)
    assert result.code == 2
    assert message in result.err
    assert result.out == ""
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert left <= {"own.yaml"}


def test_config_reads_1e_4_as_a_number(tmp_path):
    result = train(tmp_path, "training.learning_rate=1e-4")
    assert result.code == 0, result.err
    assert "learning_rate: 0.0001\n" in (tmp_path / "runs/tiny/config.yaml").read_text()


LINES = [
    b"I go to school", b"", b"   ", b"\t", b"\xc2\xa0", b"x" * 100_000, b"go " * 34_000,
    "👩‍👩‍👧 🇪🇸 👍🏽".encode(), "আমি স্কুলে যাই। ক্ষ ক\u200cখ ক্\u200dষ".encode(),
    "مرحبا بالعالم".encode(), "\u202eabc\u202c".encode(), b"a\0b", b"\0", b"caf\xff\xfe", b"\xf8",
    b"\xed\xa0\x80\xed\xb0\x80", "Let's\u2028go\u2029now\u0085!".encode(), b"I go\rto school",
    b"\r", b"\x0b\x0c\x1c", b"\x1b[31m", b"\xef\xbb\xbfI go", b":help", b"<EOS> <PAD> <UNK>",
    "▁ ▁".encode(), b"%s %d {0}", b"I go to school",
]  # fmt: skip
BLANK = [number for number, line in enumerate(LINES) if not line.decode("utf-8", "replace").strip()]


@pytest.mark.parametrize("name", ["words", pytest.param("bpe", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ([], b""),
        pytest.param(["--scores"], b"\n", marks=pytest.mark.slow),
        pytest.param(["--beam", "3"], b"", marks=pytest.mark.slow),
        (["--input", "in.txt"], b"\n"),
    ],
)
def test_translate_prints_one_line_per_input_line(name, options, ending, tmp_path):
    content = b"\n".join(LINES) + ending
    (tmp_path / "in.txt").write_bytes(content)
    stdin = b"" if "--input" in options else content
    result = run("translate.py", "--run", RUN / name, *options, folder=tmp_path, stdin=stdin)
    assert result.code == 0, result.err
    assert result.out.endswith("\n")
    out = result.out.removesuffix("\n").split("\n")
    assert len(out) == len(LINES)
    assert len(BLANK) == 6
    assert [out[number] for number in BLANK] == [""] * 6
    assert out[0] == out[-1] != ""
    truncated = re.findall(r"line (\d+): \d+ tokens, the model takes", result.err)
    assert {"7"} <= set(truncated) <= {"6", "7"}  # line 6 is one long word: one token without BPE


@pytest.mark.parametrize(
    "command",
    [
        [ROOT / "translate.py", "--run", RUN / "words", "I go"],
        pytest.param([ROOT / "translate.py", "--run", RUN / "words", "--tokens", "I go"],
                     marks=pytest.mark.slow),
        pytest.param(
            ["-m", "minitransformer", "evaluate", "--run", RUN / "words", "--split", "valid"],
            marks=pytest.mark.slow,
        ),
        pytest.param(["-m", "minitransformer", "worked"], marks=pytest.mark.slow),
    ],
    ids=["translation", "tokens", "evaluation", "worked"],
)  # fmt: skip
def test_output_to_a_full_disk_is_an_error(command):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, *command], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (result.returncode, result.stderr) == (1, b"error: No space left on device\n")
