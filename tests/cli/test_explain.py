"""The explain command prints walk-throughs, and writes pages, text, data and pictures."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from PIL import Image

from minitransformer.explain.heatmaps import NARROW, arrow
from tests.support.faults import SizeLimit
from tests.support.pages import read_page
from tests.support.processes import ROOT, Finished, Running, run
from tests.support.small_runs import trainer_for


def explain(folder: Path, *arguments: object) -> Finished:
    return run("explain", *arguments, folder=folder)


def test_explain_prints_and_checks_a_walkthrough(tiny):
    printed = explain(tiny.folder, "Let's go", "--expected", "Vamos")
    assert (printed.code, "Step 1\n  decoder input  <EOS>\n" in printed.out) == (0, True)
    assert printed.err == "using runs/tiny\n"
    assert "expected       Vamos  <EOS>\n" in printed.out
    assert re.search(r"checked: [\d,]+ values, each recomputed from those before it", printed.out)
    assert "\x1b" not in printed.out
    one = explain(tiny.folder, "Let's go", "--step", 2, "I eat rice")
    assert one.out.count("Step 2\n") == 2
    assert "Step 1" not in one.out
    part = explain(
        tiny.folder, "Let's go", "--only", "decoder.layers.0.cross_attention", "--precision", 1
    )
    paths = set(re.findall(r"\[((?:en|de)coder[\w.]+)\]", part.out))
    assert paths == {"decoder.layers.0.cross_attention"}
    assert not re.search(r"\d\.\d\d", part.out.split("checked")[0])
    positions = explain(tiny.folder, "Let's go", "--only", "encoder.embedding.positions")
    assert "Add positional encoding" in positions.out
    full = explain(tiny.folder, "Let's go", "--full")
    assert len(full.out.splitlines()) > 100


def test_explain_reads_files_and_pipes(tiny, tmp_path):
    lines = "Let's go\n\nI eat rice\n"
    (tmp_path / "in.txt").write_text(lines)
    from_file = explain(tmp_path, "--run", tiny.path, "--input", "in.txt")
    assert from_file.out.count("checked:") == 2
    from_pipe = run("explain", "--run", tiny.path, folder=tmp_path, stdin=lines.encode())
    assert from_pipe.out == from_file.out


def test_walkthrough_flag_of_translate_is_explain(tiny):
    expected = explain(tiny.folder, "Let's go", "--step", 1)
    for arguments in (
        ["--walkthrough", "Let's go", "--step", 1],
        ["Let's go", "--step", 1, "--walkthrough"],
    ):
        assert run("translate.py", *arguments, folder=tiny.folder) == expected
    assert run("translate.py", "--", "--walkthrough", folder=tiny.folder).out.count("\n") == 1


def test_explain_ends_quietly_when_its_reader_does(tiny):
    command = [sys.executable, ROOT / "translate.py", "--walkthrough", "--full", "Let's go"]
    with subprocess.Popen(
        command, cwd=tiny.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b"using runs/tiny\n"
        assert process.wait(60) == 0


def test_explain_to_a_full_disk_leaves_the_earlier_file(tiny, tmp_path):
    """Limit the size of files, as a full disk does."""
    arguments = ("--run", tiny.path, "--to", "page.html", "Let's go")
    assert explain(tmp_path, *arguments).code == 0
    before = (tmp_path / "page.html").read_bytes()
    limited = Running("explain", *arguments, folder=tmp_path, sabotage=SizeLimit(20_000)).finish()
    assert (limited.code, limited.out) == (1, "")
    assert limited.err == "error: page.html: File too large\n"
    assert (tmp_path / "page.html").read_bytes() == before
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"page.html", ".explain.in", ".explain.out", ".explain.err", ".explain.code"}


def test_explain_writes_text_and_data(tiny, tmp_path):
    for name in ("walk.json", "walk.md", "WALK.JSON"):
        written = explain(tmp_path, "--run", tiny.path, "--to", name, "Let's go", "We drink tea")
        assert written == (0, "", f"wrote {name}\n")
    assert len(json.loads((tmp_path / "walk.json").read_text())["walkthroughs"]) == 2
    assert (tmp_path / "WALK.JSON").read_bytes() == (tmp_path / "walk.json").read_bytes()
    assert "# We drink tea →" in (tmp_path / "walk.md").read_text()


def test_explain_replaces_bytes_that_are_not_utf_8(tiny_bn, tmp_path):
    written = explain(tmp_path, "--run", tiny_bn.path, "--to", "page.html", "I go \udcff")
    assert written.code == 0
    data, _ = read_page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert data["sentences"] == ["I go \ufffd"]
    assert data["walks"][0][0]["is_unknown"] == [False, False, True]


def test_explain_writes_a_page_of_all_checkpoints(tiny_bn, tmp_path):
    written = explain(
        tmp_path, "--run", tiny_bn.path, "--to", "page.html", "--checkpoint", "all",
        "I go to school", "You eat fish",
    )  # fmt: skip
    assert written == (0, "", "wrote page.html\n")
    data, _ = read_page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert data["checkpoints"] == ["step 525", "step 600"]
    assert data["sentences"] == ["I go to school", "You eat fish"]
    for walks in data["walks"]:
        assert [walk["translation"] for walk in walks] == ["আমি স্কুলে যাই", "তুমি মাছ খাও"]


def test_explain_draws_and_translates(tiny_bn, tmp_path):
    maps = tmp_path / "maps.svg"
    drawn = explain(tmp_path, "--run", tiny_bn.path, "--to", maps, "I go to school", "You eat fish")
    assert drawn == (0, "আমি স্কুলে যাই\nতুমি মাছ খাও\n", f"wrote {maps}\n")
    root = xml.etree.ElementTree.fromstring(maps.read_text(encoding="utf-8"))
    names = [element.attrib.get("aria-label") for element in root.iter()]
    assert names.count(arrow("I go to school", "আমি স্কুলে যাই")) == 1
    assert names.count("cross-attention, decoder layer 0") == 2
    assert arrow("আমি", "স্কুলে") in names
    drawn = explain(tmp_path, "--run", tiny_bn.path, "--to", "maps.png", "I go to school")
    assert drawn.code == 0
    with Image.open(tmp_path / "maps.png") as picture:
        wide, high = picture.size
    assert high < wide < 2 * (3 * NARROW + 2 * 16)  # at twice the size, without empty margins


def test_explain_has_no_maps_of_a_model_without_attention(tmp_path):
    trainer_for(
        tmp_path / "run", "model.kind=recurrent", "model.attention=none",
        "training.steps=1", "logging.tensorboard=false",
    ).fit()  # fmt: skip
    result = explain(tmp_path, "--run", "run", "--to", "maps.png", "I go home")
    assert (result.code, result.out) == (2, "")
    assert "error: --to maps.png: this model has no attention" in result.err
    assert not (tmp_path / "maps.png").exists()


def test_explain_merges_subwords_in_every_output(bpe_run, tmp_path):
    def output_of(*arguments: object) -> str:
        result = explain(tmp_path, "--run", bpe_run, "--merge-subwords", "I go home", *arguments)
        assert result.code == 0, result.err
        return result.out

    text = output_of()
    assert "\nBy words\nWhy " in text
    assert "  home\n" in text.partition("By words")[2]
    for name in ("walk.md", "walk.json", "page.html", "maps.svg"):
        output_of("--to", name)
    assert "\n## By words\n" in (tmp_path / "walk.md").read_text(encoding="utf-8")
    data = json.loads((tmp_path / "walk.json").read_text(encoding="utf-8"))
    by_words = data["walkthroughs"][0]["words"]
    assert by_words["source"] == ["I", "go", "home", "<EOS>"]
    assert sum(len(word["steps"]) for word in by_words["produced"]) == len(
        data["walkthroughs"][0]["steps"]
    )
    assert '"words":"Why ' in (tmp_path / "page.html").read_text(encoding="utf-8")
    svg = (tmp_path / "maps.svg").read_text(encoding="utf-8")
    assert 'aria-label="home"' in svg
    assert "▁" not in svg


def test_explain_merge_subwords_changes_nothing_for_words(tiny, tmp_path):
    def output_of(*arguments: object) -> str:
        result = explain(tmp_path, "--run", tiny.path, "I go home", *arguments)
        assert result.code == 0, result.err
        return result.out

    assert output_of("--merge-subwords") == output_of()
    drawn = []
    for words in ([], ["--merge-subwords"]):
        output_of("--to", "maps.svg", *words)
        drawn.append((tmp_path / "maps.svg").read_bytes())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no sentence to explain"),
        ([" "], "there is no sentence to explain"),
        (["--to", "page.html", " "], "there is no sentence to explain"),
        (["--to", "walk.txt", "Go"], "must end in .html, .md, .json, .png or .svg"),
        (["--to", "maps.jpg", "Go"], "must end in .html, .md, .json, .png or .svg"),
        (["--to", "I go to school"], "must end in .html, .md, .json, .png or .svg"),
        (["--to", "folder.png", "Go"], "--to folder.png: a folder, not a file"),
        (["--to", "no/page.html", "Go"], "--to no/page.html: there is no folder no"),
        (["--to", "walk.json", "Go", "--step", "1"], "--step is for the terminal; a file has"),
        (["--to", "page.html", "--full", "Go"], "--full is for the terminal; a file has"),
        (["--to", "maps.png", "--expected", "c", "Go"], "--expected does not go with --to maps"),
        (["--to", "maps.png", "--precision", "0", "Go"], "--precision does not go with --to maps"),
        (["--to", "maps.png", *["I go home"] * 41], "at most 40 sentences"),
        (["--checkpoint", "all", "Go"], "--checkpoint all goes with --to page.html"),
        (["--to", "a.json", "--checkpoint", "all", "Go"], "--checkpoint all goes with --to page"),
        (["a", "b", "--expected", "c"], "--expected is for one sentence"),
        (["Let's go", "--only", "encoder", "--step", "2"], "no such part in step 2"),
        (["Let's go", "--step", "9"], "has steps 1 to 2"),
        (["Let's go", "--step", "0"], "has steps 1 to 2"),
        (["Let's go", "--only", "decoder.layers.7"], "there is no such part; --full"),
        (["Let's go", "--only", ""], "there is no such part; --full"),
        (["Let's go", "--only", "cross_attention"], "mean 'decoder.layers.0.cross_attention'?"),
        (["Let's go", "--precision", "99"], "--precision 99: must be from 0 to 9"),
        (["Let's go", "--scores"], "--scores is an option of translate"),
        (["page.html", "Go"], "'page.html' is a file, not a sentence: did you mean --to page.html"),
        (["--average", "2", "--checkpoint", "last", "Go"], "--average does not go with"),
    ],
)
def test_explain_usage_error_is_one_line(arguments, message, tiny, tmp_path):
    (tmp_path / "folder.png").mkdir()
    result = explain(tmp_path, "--run", tiny.path, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert len([line for line in result.err.splitlines() if "error: " in line]) == 1
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [
        "folder.png"
    ]
