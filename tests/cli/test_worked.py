"""The worked command lists, shows, converts and checks sheets."""

import json
import os
import re

import pytest
import torch

from minitransformer.checkpoint import model_tensors, read_tensors
from minitransformer.model.trace import record
from minitransformer.training.resume import WEIGHTS
from minitransformer.translator import Translator
from minitransformer.worked.engine import check_sheet
from minitransformer.worked.reader import SHIPPED, load_shipped
from minitransformer.worked.report import sheet_text
from minitransformer.worked.sheet_model import run_tensors, trace_sheet
from tests.support.own_sheets import HOMEWORK
from tests.support.processes import Finished, run


def worked(folder, *arguments: object) -> Finished:
    return run("worked", *arguments, folder=folder)


def written(folder, *arguments: object) -> str:
    """Return what a command writes to the file that is its last argument."""
    name = arguments[-1]
    assert worked(folder, *arguments) == (0, f"wrote {name}\n", "")
    return (folder / name).read_text(encoding="utf-8")


def test_worked_counts_the_values_of_all_sheets(tmp_path):
    result = worked(tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "all                         638    286    265     33     29     18      7      0" in (
        result.out
    )
    assert all(len(line) <= 80 for line in result.out.splitlines())
    assert worked(tmp_path, "list") == result
    entries = json.loads(written(tmp_path, "list", "--to", "all.json"))
    assert [entry["id"] for entry in entries] == list(SHIPPED[:-1])
    verdicts = ("agrees", "rounded", "errata_origin", "errata_propagated", "ocr", "not_checkable",
                "unexplained")  # fmt: skip
    assert all(list(entry) == ["id", "title", "values", *verdicts, "slips"] for entry in entries)
    assert all(entry["values"] == sum(entry[name] for name in verdicts) for entry in entries)
    assert sorted({slip for entry in entries for slip in entry["slips"]}) == list(range(1, 26))


@pytest.mark.parametrize("name", SHIPPED)
def test_worked_text_fits_80_columns(name):
    out = sheet_text(check_sheet(load_shipped(name)))
    for step in load_shipped(name).steps:
        assert (step.title or step.name) in " ".join(out.split())
    for slip in load_shipped(name).slips:
        assert f"slip {slip.number}" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_worked_writes_json_markdown_and_latex(tmp_path):
    sheet = json.loads(written(tmp_path, "show", "masked-4x3", "--to", "sheet.json"))
    values = [value for step in sheet["steps"] for value in step["printed"]]
    assert {"cell": [1, 2], "printed": "-inf", "ours": "-inf", "verdict": "agrees",
            "how": "agrees"} in values  # fmt: skip
    markdown = written(tmp_path, "show", "exam-q1", "--to", "sheet.md")
    assert "| `times(A, V)` | [3.4, 3.8, 1.8; 3.5, 4.0, 1.8; 3.5, 3.9, 1.8] |" in markdown
    assert "- Z: slip 19 at [2,2]: printed 4.0; right 3.9285." in markdown
    latex = written(tmp_path, "list", "--to", "all.tex")
    assert latex.count(r"\begin{document}") == latex.count(r"\end{document}") == 1
    assert latex.count(r"\begin{bmatrix}") == latex.count(r"\end{bmatrix}") > 250
    assert r"\underline{18}^{(1)}" in latex
    assert r"1.27\cdot 10^{-198}" in latex
    bare = re.sub(r"\\.", "", latex)
    assert bare.count("{") == bare.count("}")
    assert "%" not in "".join(bare.splitlines()[1:])


def test_worked_lists_the_operations(tmp_path):
    listed = worked(tmp_path, "operations").out
    assert "dot_scores(Q, K)                  Q Kᵀ, a row per query\n" in listed
    assert all(len(line) <= 100 for line in listed.splitlines())
    assert len(listed.splitlines()) >= 40


def test_worked_exits_with_1_for_an_own_sheet_with_a_slip(tmp_path):
    (tmp_path / "mine.yaml").write_text(HOMEWORK)
    right = worked(tmp_path, "check", "mine.yaml")
    assert (right.code, right.err) == (0, "")
    assert right.out.startswith("Homework\n")
    (tmp_path / "mine.yaml").write_text(HOMEWORK.replace("[2, 3, 5]", "[2, 3, 9]"))
    wrong = worked(tmp_path, "check", "mine.yaml")
    assert wrong.code == 1
    assert "first slip: step E, cell [1,3]: printed 9, right 5" in wrong.out
    assert worked(tmp_path, "check", "mine.yaml", "--to", "found.json").code == 1
    found = json.loads((tmp_path / "found.json").read_text())["found"]
    assert [(each["step"], each["cell"], each["follow"]) for each in found] == [("E", [1, 3], [])]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "let-go"], 2, "there is no example 'let-go': did you mean 'lets-go'?"),
        (["show"], 2, "minitransformer worked show: name an example, such as lets-go"),
        (["check"], 2, "minitransformer worked check: name a file"),
        (["lets-go"], 2, "no action 'lets-go': did you mean minitransformer worked show lets-go?"),
        (["my.yaml"], 2, "no action 'my.yaml': did you mean minitransformer worked check my.yaml?"),
        (["chek", "broken.yaml"], 2, "there is no action 'chek': did you mean 'check'?"),
        (["list", "lets-go"], 2, "unexpected 'lets-go': list takes no name"),
        (["check", "absent.yaml"], 2, "there is no file 'absent.yaml'"),
        (["check", "."], 2, "Is a directory"),
        (["check", "latin1.yaml"], 2, "latin1.yaml: not readable as UTF-8"),
        (["check", "broken.yaml"], 2, "broken.yaml: line 2:"),
        (["show", "lets-go", "--run", "."], 1, "lets-go has its own numbers: it needs no --run"),
        (["show", "school", "--run", "absent"], 1, "absent is not a run folder"),
        (["show", "broken.yaml"], 2, "is a file: check it with minitransformer worked check brok"),
        (["--run", "x"], 2, "--run goes with show and check, of a procedure such as school"),
        (["list", "--to", "x.safetensors"], 2, "the name must end in .html, .md, .tex or .json"),
        (["operations", "--to", "x.md"], 2, "--to does not go with operations"),
        (
            ["show", "school", "--to", "x.safetensors"],
            2,
            "school.yaml: the sheet has no model, so there are no weights to write",
        ),
        (["show", "lets-go", "--to", "no/x.md"], 2, "--to no/x.md: there is no folder no"),
    ],
)
def test_worked_error_is_one_line(arguments, code, message, tmp_path):
    (tmp_path / "latin1.yaml").write_bytes("title: né".encode("latin1"))
    (tmp_path / "broken.yaml").write_text("a: 1\n b: [")
    result = worked(tmp_path, *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.write_bytes(b"# x\n" * 1_000_001), "larger than 4,000,000 bytes"),
    ],
    ids=["device", "pipe", "large"],
)
def test_endless_sheet_or_config_is_refused(make, message, tmp_path):
    make(tmp_path / "own.yaml")
    for result in (
        worked(tmp_path, "check", "own.yaml"),
        run("train.py", "--config", "own.yaml", folder=tmp_path),
    ):
        assert (result.code, result.err) == (2, f"error: own.yaml: {message}\n")


def test_procedure_is_checked_on_a_run(tiny_bn, tmp_path):
    read_only = worked(tmp_path, "show", "school")
    assert read_only.code == 0
    assert "to check it: minitransformer train --config tiny-bn.yaml" in read_only.out
    shown = worked(tiny_bn.folder, "show", "school")
    assert shown.code == 0, shown.out
    assert "“Add the V embedding of each token to their original embedding”: agrees" in shown.out
    steps = json.loads(written(tiny_bn.folder, "show", "school", "--to", "school.json"))["steps"]
    hows = [step["how"] for step in steps if step["text"]]
    assert hows == ["agrees"] * 15 + ["scan"] * 5
    [[difference]] = steps[-1]["ours"]
    assert difference < 1e-12


def test_procedure_needs_a_run_that_knows_its_words(tmp_path, tiny):
    result = worked(tmp_path, "show", "school", "--run", tiny.path)
    assert result.code == 1
    assert "does not know the words of “I go to school → আমি স্কুলে যাই”" in result.err


@pytest.mark.parametrize("sheet", ["lets-go", "lets-go-as-printed"])
def test_init_from_a_sheet_decodes_its_vectors(sheet, tmp_path):
    trained = run("train.py", "--config", "lets-go.yaml", "--set", f"training.init_from={sheet}",
                  folder=tmp_path)  # fmt: skip
    assert trained.code == 0, trained.err
    assert "81, 15 of them trained" in trained.out
    translator = Translator.load(tmp_path / "runs" / "lets-go")
    [translation] = translator.translate(["Let's go"])
    assert translation.tokens == ["Vamos", "<EOS>"]
    source = torch.tensor([translation.source.ids])
    target = torch.tensor([[translator.tokenizer.start_id, translation.token_scores[0].id]])
    with record(translator.model) as tensors:
        translator.model(source, target)
    expected = trace_sheet(load_shipped(sheet))
    for name in ("encoder.output", "decoder.output"):  # the latter are vectors (3) and (5)
        torch.testing.assert_close(tensors[name], expected[name].float(), rtol=1e-5, atol=1e-5)


def test_worked_weights_equal_the_shipped_ones(tmp_path):
    made = worked(tmp_path, "show", "lets-go", "--to", "sheet.safetensors")
    assert (made.code, made.out, made.err) == (0, "wrote sheet.safetensors\n", "")
    weights = read_tensors(tmp_path / "sheet.safetensors")
    torch.testing.assert_close(
        weights, read_tensors(WEIGHTS / "lets-go.safetensors"), rtol=0, atol=0
    )
    for run_name, start in (("sheet", "lets-go"), ("file", "sheet.safetensors")):
        trained = run("train.py", "--config", "lets-go.yaml", "--run", run_name,
                      "--set", f"training.init_from={start}", folder=tmp_path)  # fmt: skip
        assert trained.code == 0, trained.err
    of_sheet, of_file = (
        model_tensors(Translator.load(tmp_path / name).model) for name in ("sheet", "file")
    )
    torch.testing.assert_close(of_file, of_sheet, rtol=0, atol=0)


def test_procedure_fails_on_changed_tensors(tiny_bn):
    sheet = load_shipped("school")
    tensors = run_tensors(sheet, tiny_bn.path)
    assert check_sheet(sheet, tensors).is_explained
    for name in ("states", "Q", "updated_V", "memory", "latest", "cross_K", "output", "logits"):
        changed = {**tensors, name: tensors[name].flip(0) + 0.1}
        checked = check_sheet(sheet, changed)
        assert not checked.is_explained, name
        assert any("the verdict is 'unexplained'" in error for error in checked.errors)
