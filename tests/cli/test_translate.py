"""The translate command translates arguments, files, pipes and lines typed on a terminal."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Running, run
from tests.support.small_runs import trainer_for


def translate(folder: Path, *arguments: object, stdin: bytes = b""):
    return run("translate.py", *arguments, folder=folder, stdin=stdin)


def test_translate_takes_sentences_as_arguments(tiny):
    result = translate(tiny.folder, "Let's go", "I go to school")
    assert result == (0, "Vamos\nVoy a la escuela\n", "using runs/tiny\n")


def test_translate_reads_a_pipe_and_writes_bangla(tiny_bn):
    result = translate(tiny_bn.folder, "--run", tiny_bn.path, stdin=b"I go to school\n")
    assert result == (0, "আমি স্কুলে যাই\n", "")


@pytest.mark.parametrize("ending", [b"\n", b""])
def test_translate_prints_a_line_for_each_line(tiny, ending):
    lines = [
        b"Let's go", b"", b"   ", b"Let's go\r", b"caf\xff\xfe \x00 go", "Let's\u2028go".encode(),
        "👩‍👩‍👧 আমি من".encode(), b"go " * 30_000, b'"', b"Let's go",
    ]  # fmt: skip
    result = translate(tiny.folder, stdin=b"\n".join(lines) + ending)
    assert result.code == 0
    translations = result.out.removesuffix("\n").split("\n")
    assert len(translations) == len(lines)
    assert translations[:4] == ["Vamos", "", "", "Vamos"]
    assert translations[5] == "Vamos"
    assert translations[-1] == "Vamos"
    assert "line 8: 30000 tokens, the model takes 64; the last 29936 were left out" in result.err


def test_translate_with_subwords_prints_a_line_for_each_line(tmp_path):
    trainer_for(tmp_path / "run", "tokenizer.kind=bpe", "tokenizer.vocab_size=60").fit()
    lines = [
        b"", b"   ", b"\t", b"x" * 100_000, b"go " * 30_000, "👩‍👩‍👧".encode(),
        "কর্ম ক\u200cখ".encode(), "مرحبا".encode(), b"a\0b", b"caf\xff\xfe",
        "Let's\u2028go".encode(), b"\r", b"I go",
    ]  # fmt: skip
    result = translate(tmp_path, "--run", "run", stdin=b"\n".join(lines))
    assert result.code == 0
    translations = result.out.removesuffix("\n").split("\n")
    assert len(translations) == len(lines)
    assert translations[:3] == ["", "", ""]
    assert translations[11] == ""
    assert "line 4: 100001 tokens, the model takes 64" in result.err
    assert "line 8: unknown character 'م'" in result.err
    argument = os.fsdecode(b"I \xff go")
    assert translate(tmp_path, "--run", "run", argument).out.count("\n") == 1
    shown = translate(tmp_path, "--run", "run", "--tokens", "--to", "seen.txt", argument)
    assert shown.code == 0
    assert "U+FFFD REPLACEMENT CHARACTER" in (tmp_path / "seen.txt").read_text(encoding="utf-8")


def test_translate_prints_nothing_for_no_input(tiny):
    assert translate(tiny.folder).out == ""


def test_translate_reads_and_writes_files(tiny, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbfLet's go\n\nI eat bread\n")
    result = translate(tiny.folder, "--input", tmp_path / "in.txt", "--to", tmp_path / "out.txt")
    assert (result.code, result.out) == (0, "")
    assert (tmp_path / "out.txt").read_bytes() == b"Vamos\n\nComo pan\n"


def test_unknown_word_gets_a_suggestion(tiny):
    result = translate(tiny.folder, "let's go", "I eat pizza")
    assert result.out.count("\n") == 2
    assert "line 1: unknown word 'let's': did you mean 'Let's'?\n" in result.err
    assert "line 2: unknown word 'pizza'\n" in result.err


def test_typographic_apostrophe_is_normalized(tiny):
    assert translate(tiny.folder, "Let’s go") == (0, "Vamos\n", "using runs/tiny\n")


def test_unknown_words_are_shortened(tiny):
    words = " ".join(f"w{number}" for number in range(20))
    result = translate(tiny.folder, stdin=f"{words}\n\x1b[31m{'x' * 5000}\n".encode())
    warnings = result.err.splitlines()[1:]
    assert warnings[4:6] == ["line 1: unknown word 'w4'", "line 1: and 15 more unknown words"]
    assert "\x1b" not in result.err
    assert max(map(len, warnings)) < 120


def test_translate_scores_follow_the_translation(tiny):
    result = translate(tiny.folder, "--scores", "Let's go")
    text, vamos, end = result.out.removesuffix("\n").split("\t")
    assert text == "Vamos"
    token, probability, *alternatives = vamos.split(" ")
    assert token == "Vamos"
    assert 0.5 < float(probability) <= 1
    assert len(alternatives) == 6
    assert end.startswith("<EOS> ")


def test_translate_n_best_has_scores(tiny):
    result = translate(tiny.folder, "--beam", 4, "Let's go", "I go to school")
    assert result.out == "Vamos\nVoy a la escuela\n"
    result = translate(tiny.folder, "--beam", 4, "--n-best", 3, "Let's go", "I go to school")
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert len(rows) == 6
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3
    assert (rows[0][1], rows[3][1]) == ("Vamos", "Voy a la escuela")
    for three in (rows[:3], rows[3:]):
        scores = [float(score) for _, _, score in three]
        assert scores == sorted(scores, reverse=True)
    result = translate(tiny.folder, "--beam", 2, "--scores", "Let's go")
    text, first, end = result.out.rstrip("\n").split("\t")
    assert (text, first.split()[0], end.split()[0]) == ("Vamos", "Vamos", "<EOS>")


def test_translate_loads_only_the_core(tiny):
    command = [sys.executable, "-X", "importtime", ROOT / "translate.py", "Let's go"]
    result = subprocess.run(command, cwd=tiny.folder, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "minitransformer.model.transformer" in loaded
    unneeded = tuple(
        f"minitransformer.{name}"
        for name in ("console", "doctor", "evalu", "explain", "export", "metrics", "model.loss",
                     "model.recurrent", "prompt", "training", "worked")
    )  # fmt: skip
    assert not [name for name in loaded if name.startswith(unneeded)]
    assert len([name for name in loaded if name.startswith("minitransformer.")]) <= 20


def test_translate_answers_each_line_at_once(tiny):
    process = subprocess.Popen(
        [sys.executable, ROOT / "translate.py"], cwd=tiny.folder, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        for _ in range(2):
            process.stdin.write(b"Let's go\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"Vamos\n"
        process.stdin.close()
        assert process.wait(30) == 0


def test_translate_ends_quietly_when_its_reader_does(tiny):
    process = subprocess.Popen(
        [sys.executable, ROOT / "translate.py"], cwd=tiny.folder, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        process.stdin.write(b"Let's go\n" * 200)
        process.stdin.close()
        assert process.stdout.readline() == b"Vamos\n"
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b"using runs/tiny\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["hi"], 1, "/runs; make one with: python train.py --config tiny.yaml"),
        (["--input", "."], 2, "a folder, not a file"),
        (["--run", "absent", "hi"], 1, "absent is not a run folder"),
        (["--input", "absent.txt"], 2, "--input absent.txt: no such file"),
        (["--input", "some.txt", "hi"], 2, "give sentences or --input, not both"),
        (["--runn", "x"], 2, "there is no option --runn: did you mean '--run'?"),
        (["old", "hi"], 2, "'old' is a run: did you mean --run old?"),
        (["--to", "page.html", "hi"], 2, "to see how they are made: minitransformer explain --to"),
        (["--run", "some", "hi"], 1, "some is not a run folder: did you mean 'runs/some'?"),
        (["--run", "runs/sone", "hi"], 1, "sone is not a run folder: did you mean 'runs/some'?"),
        (["--to", "no/out.txt", "hi"], 2, "--to no/out.txt: there is no folder no"),
        (["--input", "some.txt", "--to", "some.txt"], 2, "would be read and written"),
        (["--beam", "0", "hi"], 2, "--beam 0: must be from 1 to 1000"),
        (["--beam", "3", "--length-penalty", "nan", "hi"], 2, "--length-penalty nan: must be"),
        (["--n-best", "2", "hi"], 2, "--n-best 2: needs --beam 2 or more"),
        (["--beam", "2", "--n-best", "3", "hi"], 2, "--n-best 3: needs --beam 3 or more"),
        (["--beam", "2", "--tokens", "hi"], 2, "--tokens does not translate: it cannot be"),
        (["--average", "2", "--checkpoint", "last", "hi"], 2, "does not go with --checkpoint"),
    ],
)
def test_translate_usage_error_is_one_line(tmp_path, arguments, code, message):
    (tmp_path / "some.txt").write_text("hi")
    for folder in ("old", "runs/some"):
        (tmp_path / folder / "checkpoints").mkdir(parents=True)
    result = translate(tmp_path, *arguments)
    assert result.code == code
    assert message in result.err
    assert len([line for line in result.err.splitlines() if "error: " in line]) == 1
    assert result.out == ""
    assert (tmp_path / "some.txt").read_text() == "hi"


def test_translate_runs_with_closed_streams(tiny):
    processes = {
        closing: subprocess.Popen(
            ["bash", "-c", f"'{sys.executable}' '{ROOT / 'translate.py'}' {closing}"],
            cwd=tiny.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for closing in ("<&-", ">&-", "2>&-")
    }  # fmt: skip
    for closing, process in processes.items():
        out, err = process.communicate(b"Let's go\n", timeout=60)
        assert process.returncode == 0, err
        assert out == (b"Vamos\n" if closing == "2>&-" else b"")
        assert b"Traceback" not in err


def test_translate_takes_options_between_sentences(tiny):
    result = translate(tiny.folder, "Let's go", "--run", "runs/tiny", "I go to school")
    assert result == (0, "Vamos\nVoy a la escuela\n", "")


def test_translate_single_words_get_a_note(tiny):
    result = translate(tiny.folder, "--run", "runs/tiny", "Let's", "go")
    assert (result.code, result.out.count("\n")) == (0, 2)
    assert result.err.startswith('note: 2 sentences; for one, write "Let\'s go"\n')


def test_translate_after_two_dashes_is_a_sentence(tiny):
    result = translate(tiny.folder, "I go", "--run", "runs/tiny", "I go", "--", "--to", "Let's go")
    assert (result.code, result.out.count("\n")) == (0, 4)
    assert result.out.endswith("\nVamos\n")


def test_translate_sentence_that_names_a_file_gets_a_note(tiny, tmp_path):
    (tmp_path / "in.txt").write_text("Let's go\n")
    result = translate(tmp_path, "--run", tiny.path, "in.txt")
    assert (result.code, result.out.count("\n")) == (0, 1)
    assert "note: there is a file 'in.txt'; --input reads its lines\n" in result.err


class Terminal:
    """The test's end of a pseudo-terminal."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.unread = b""

    def type(self, keys: bytes) -> None:
        os.write(self.handle, keys)

    def press_until(self, key: bytes, wanted: bytes) -> None:
        """Press a key repeatedly, as readline notices a signal only while it waits for a key."""
        for _ in range(10):
            if wanted in self.unread:
                break
            self.type(key)
            until = time.monotonic() + 3
            while wanted not in self.unread and time.monotonic() < until:
                if select.select([self.handle], [], [], 0.5)[0]:
                    self.unread += os.read(self.handle, 1000)
        self.read_until(wanted)

    def read_until(self, wanted: bytes) -> bytes:
        """Return the output up to and including `wanted`; what follows stays unread."""
        deadline = time.monotonic() + 30
        while wanted not in self.unread:
            assert time.monotonic() < deadline, self.unread
            if select.select([self.handle], [], [], 1)[0]:
                self.unread += os.read(self.handle, 1000)
        shown, _, self.unread = self.unread.partition(wanted)
        return shown + wanted


def test_prompt_answers_on_a_terminal(tiny):
    handle, child = pty.openpty()
    terminal = Terminal(handle)
    with os.fdopen(handle, "rb", buffering=0), os.fdopen(child, "rb", buffering=0):
        running = Running(
            "translate.py", "--scores", folder=tiny.folder, terminal=os.ttyname(child)
        )
        terminal.read_until(b"> ")
        terminal.type(b"Let's go\r")
        assert b"\nVamos\r\n  Vamos " in terminal.read_until(b"<EOS>")
        terminal.read_until(b"> ")
        terminal.type(b"half a sent")
        terminal.read_until(b"half a sent")
        terminal.press_until(b"\x03", b"> ")  # Ctrl-C
        terminal.type(b"\x1b[A\r")  # the previous line
        assert b"\nVamos\r\n  Vamos " in terminal.read_until(b"<EOS>")
        terminal.read_until(b"> ")
        terminal.type(b"\x04")  # Ctrl-D
        assert running.finish().code == 0
