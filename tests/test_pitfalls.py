"""The pitfall lab: each classic mistake shows its symptom, and is caught before the first step."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minitransformer.command_line import run_command
from minitransformer.config import find_config
from minitransformer.doctor import pitfalls as pitfall_lab
from minitransformer.doctor.__main__ import PITFALLS, main
from minitransformer.doctor.findings import OK
from minitransformer.doctor.pitfalls import BREAKAGES, SYMPTOMS, Twin, short_config, train_twin
from minitransformer.model import transformer
from tests.processes import ROOT


@pytest.fixture(autouse=True)
def same_threads_afterwards():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def twins(name: str, config: str = "tiny.yaml") -> tuple[Twin, Twin]:
    breakage, symptom = BREAKAGES[name], SYMPTOMS[name]
    settings = short_config(breakage, find_config(config), [])
    return (
        train_twin(settings, symptom, nullcontext()),
        train_twin(settings, symptom, breakage.made()),
    )


def exact(twin: Twin) -> float:
    return twin.after["valid"].exact_match.mean


def alone(twin: Twin) -> float:
    return twin.after["valid"].accuracy_free_running.mean


def given(twin: Twin) -> float:
    return twin.after["valid"].accuracy_teacher_forced.mean


def counted(twin: Twin) -> float:
    """A symptom of the form "29 of 45" as a share."""
    count, total = twin.symptom.split(" of ")
    return int(count) / int(total)


def test_every_pitfall_of_the_command_has_a_breakage_and_a_symptom():
    assert list(PITFALLS) == list(BREAKAGES) == list(SYMPTOMS)


@pytest.mark.parametrize("name", BREAKAGES)
def test_the_right_lines_are_those_of_the_code(name):
    breakage = BREAKAGES[name]
    files = [ROOT / "minitransformer" / file for file in breakage.file.split(" and ")]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    for line in breakage.right:
        assert line in code
    assert breakage.wrong != breakage.right


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_mistake_is_made_within_and_undone_afterwards(name):
    places = BREAKAGES[name].places
    right = [getattr(owner, attribute) for owner, attribute, _ in places]
    with BREAKAGES[name].made():
        for owner, attribute, wrong in places:
            assert getattr(owner, attribute) is wrong
    assert [getattr(owner, attribute) for owner, attribute, _ in places] == right


def test_the_lab_tells_cause_symptom_and_what_catches_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(BREAKAGES, "causal", replace(BREAKAGES["causal"], steps=8))
    causal_mask = transformer.causal_mask
    assert main(["--break", "causal"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "causal: the decoder's causal mask is forgotten"
    assert "  wrong   mask = padding_mask(target, self.pad_id)" in lines
    assert any(line.split() == ["tiny.yaml,", "8", "steps", "right", "wrong"] for line in lines)
    assert any(line.startswith("  FAIL  no look ahead ") for line in lines)
    assert max(map(len, lines)) <= 102
    assert transformer.causal_mask is causal_mask
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("causal", [], "a recurrent decoder has no causal mask"),
        ("positions", [], "a recurrent encoder notices the order of words without positions"),
        ("scale", [], "the states of a recurrent model stay between -1 and 1"),
        ("softmax", ["--set", "model.attention=none"], "this model has no attention"),
    ],
)
def test_a_mistake_that_a_model_cannot_make_is_refused_in_one_line(
    capsys, name, changes, complaint
):
    arguments = ["--break", name, "--config", "tiny-rnn", *changes]
    assert run_command(lambda: main(arguments)) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith(f"error: --break {name}: {complaint}")


def test_of_all_mistakes_a_recurrent_model_makes_those_that_it_can(monkeypatch, capsys):
    trained = []
    monkeypatch.setattr(pitfall_lab, "symptom_lines", lambda *arguments: [])

    def twin(config, symptom, mistake):
        trained.append(config.model.kind)
        return Twin([], {}, "")

    monkeypatch.setattr(pitfall_lab, "train_twin", twin)
    assert main(["--break", "all", "--config", "tiny-rnn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("causal", "positions", "scale"):
        assert f"{name}: {BREAKAGES[name].recurrent}" in lines
    made = [name for name in BREAKAGES if f"{name}: {BREAKAGES[name].title}" in lines]
    assert made == ["padding", "shift", "softmax", "eval"]
    assert trained == ["recurrent"] * 2 * len(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["padding", "shift", "softmax", "eval"])
def test_a_recurrent_twin_learns_worse_in_its_own_way_and_is_caught(name):
    right, wrong = twins(name, "tiny-rnn.yaml")
    assert [finding for finding in right.findings if finding.verdict != OK] == []
    assert BREAKAGES[name].check in [
        finding.name for finding in wrong.findings if finding.verdict != OK
    ]
    assert exact(right) > 0.9
    assert exact(wrong) < exact(right) - 0.1
    if name == "softmax":
        assert (right.symptom, wrong.symptom == "1.00") == ("1.00", False)
    else:
        assert counted(right) == 0
        assert counted(wrong) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKAGES)
def test_a_twin_learns_worse_in_its_own_way_and_is_caught(name):
    right, wrong = twins(name)
    assert [finding for finding in right.findings if finding.verdict != OK] == []
    assert BREAKAGES[name].check in [
        finding.name for finding in wrong.findings if finding.verdict != OK
    ]
    if name == "causal":  # what it sees is what it should say
        assert given(wrong) > 0.95
        assert alone(wrong) < given(wrong) - 0.3
        assert exact(wrong) < exact(right) - 0.5
        assert (right.symptom, wrong.symptom > "0%") == ("0%", True)
    elif name == "padding":
        assert counted(right) == 0
        assert counted(wrong) > 0.2
    elif name == "shift":  # perfect, and says nothing
        assert given(wrong) == 1
        assert alone(wrong) == 0
        assert (counted(right), counted(wrong)) == (0, 1)
    elif name == "positions":
        assert exact(right) > 0.4
        assert exact(wrong) < 0.1
        assert counted(right) < 0.1
        assert counted(wrong) > 0.95
    elif name == "scale":
        assert float(wrong.symptom) > float(right.symptom) + 3
        assert exact(wrong) < exact(right) - 0.2
    elif name == "softmax":
        assert right.symptom == "1.00"
        assert wrong.symptom != "1.00"
        assert alone(wrong) < 0.5 < alone(right)
    elif name == "eval":
        assert counted(right) == 0
        assert counted(wrong) > 0.3
        assert exact(wrong) < exact(right) - 0.2
