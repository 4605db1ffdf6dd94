"""Each pitfall has its effect on training, and a check finds it before the first step."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from minitransformer.cli import run_command
from minitransformer.cli.doctor import PITFALL_NAMES, main
from minitransformer.config import find_config
from minitransformer.doctor import pitfalls
from minitransformer.doctor.pitfalls import (
    PITFALLS,
    Twin,
    check_lines,
    patched,
    pitfall_config,
    train_twin,
)
from minitransformer.doctor.report import OK
from minitransformer.model import transformer
from tests.support.processes import ROOT


def twins(name: str, config: str = "tiny.yaml") -> tuple[Twin, Twin]:
    pitfall = PITFALLS[name]
    settings = pitfall_config(pitfall, find_config(config), [])
    return (
        train_twin(settings, pitfall, nullcontext()),
        train_twin(settings, pitfall, patched(pitfall.patches)),
    )


def not_ok(twin: Twin) -> list[str]:
    return [result.name for result in twin.results if result.status != OK]


def exact(twin: Twin) -> float:
    return twin.evaluations[-1]["valid"].exact_match.mean


def free_running(twin: Twin) -> float:
    return twin.evaluations[-1]["valid"].accuracy_free_running.mean


def teacher_forced(twin: Twin) -> float:
    return twin.evaluations[-1]["valid"].accuracy_teacher_forced.mean


def fraction(twin: Twin) -> float:
    """Return a measurement such as "29 of 45" as a fraction."""
    count, total = twin.measured.split(" of ")
    return int(count) / int(total)


def test_pitfall_names_are_those_of_the_command():
    assert list(PITFALL_NAMES) == list(PITFALLS)


@pytest.mark.parametrize("name", PITFALLS)
def test_right_lines_of_a_pitfall_are_in_the_code(name):
    pitfall = PITFALLS[name]
    files = [ROOT / "minitransformer" / file for file in pitfall.file.split(" and ")]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    for line in pitfall.right:
        assert line in code
    assert pitfall.wrong != pitfall.right


@pytest.mark.parametrize("name", PITFALLS)
def test_patched_replaces_attributes_and_restores_them(name):
    patches = PITFALLS[name].patches
    right = [getattr(owner, attribute) for owner, attribute, _ in patches]
    with patched(patches):
        for owner, attribute, wrong in patches:
            assert getattr(owner, attribute) is wrong
    assert [getattr(owner, attribute) for owner, attribute, _ in patches] == right


def test_break_prints_cause_effect_and_the_check_that_finds_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PITFALLS, "causal", replace(PITFALLS["causal"], steps=8))
    causal_mask = transformer.causal_mask
    assert main(["--break", "causal"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "causal: the decoder's causal mask is missing"
    assert "  wrong   mask = padding_mask(target, self.pad_id)" in lines
    assert any(line.split() == ["tiny.yaml,", "8", "steps", "right", "wrong"] for line in lines)
    assert any(line.startswith("  FAIL  causality ") for line in lines)
    assert max(map(len, lines)) <= 102
    assert transformer.causal_mask is causal_mask
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("causal", [], "a recurrent decoder has no causal mask"),
        ("positions", [], "a recurrent encoder depends on word order without positions"),
        ("scale", [], "the states of a recurrent model stay between -1 and 1"),
        ("softmax", ["--set", "model.attention=none"], "this model has no attention"),
    ],
)
def test_break_refuses_a_pitfall_that_the_model_cannot_have(capsys, name, changes, message):
    arguments = ["--break", name, "--config", "tiny-rnn", *changes]
    assert run_command(lambda: main(arguments)) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith(f"error: --break {name}: {message}")


def test_break_all_trains_only_the_pitfalls_that_the_model_can_have(monkeypatch, capsys):
    trained = []
    monkeypatch.setattr(pitfalls, "comparison_lines", lambda *arguments: [])

    def untrained_twin(config, pitfall, mistake):
        trained.append(config.model.kind)
        return SimpleNamespace(results=[])

    monkeypatch.setattr(pitfalls, "train_twin", untrained_twin)
    assert main(["--break", "all", "--config", "tiny-rnn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("causal", "positions", "scale"):
        assert f"{name}: {PITFALLS[name].not_recurrent}" in lines
    shown = [name for name in PITFALLS if f"{name}: {PITFALLS[name].title}" in lines]
    assert shown == ["padding", "shift", "softmax", "eval"]
    assert trained == ["recurrent"] * 2 * len(shown)


def test_check_lines_say_so_if_the_check_finds_nothing():
    (line,) = check_lines(PITFALLS["causal"], [])
    assert line == "  The check meant for it does not find it in this model."


@pytest.mark.slow
@pytest.mark.parametrize("name", ["padding", "shift", "softmax", "eval"])
def test_recurrent_twin_is_worse_and_a_check_finds_it(name):
    right, wrong = twins(name, "tiny-rnn.yaml")
    assert not_ok(right) == []
    assert PITFALLS[name].check in not_ok(wrong)
    assert exact(right) > 0.9
    assert exact(wrong) < exact(right) - 0.1
    if name == "softmax":
        assert (right.measured, wrong.measured == "1.00") == ("1.00", False)
    else:
        assert fraction(right) == 0
        assert fraction(wrong) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", PITFALLS)
def test_twin_is_worse_and_a_check_finds_it(name):
    right, wrong = twins(name)
    assert not_ok(right) == []
    assert PITFALLS[name].check in not_ok(wrong)
    if name == "causal":  # it attends to the label
        assert teacher_forced(wrong) > 0.95
        assert free_running(wrong) < teacher_forced(wrong) - 0.3
        assert exact(wrong) < exact(right) - 0.5
        assert (right.measured, wrong.measured > "0%") == ("0%", True)
    elif name == "padding":
        assert fraction(right) == 0
        assert fraction(wrong) > 0.2
    elif name == "shift":  # it copies its input
        assert teacher_forced(wrong) == 1
        assert free_running(wrong) == 0
        assert (fraction(right), fraction(wrong)) == (0, 1)
    elif name == "positions":
        assert exact(right) > 0.4
        assert exact(wrong) < 0.1
        assert fraction(right) < 0.1
        assert fraction(wrong) > 0.95
    elif name == "scale":
        assert float(wrong.measured) > float(right.measured) + 3
        assert exact(wrong) < exact(right) - 0.2
    elif name == "softmax":
        assert right.measured == "1.00"
        assert wrong.measured != "1.00"
        assert free_running(wrong) < 0.5 < free_running(right)
    elif name == "eval":
        assert fraction(right) == 0
        assert fraction(wrong) > 0.3
        assert exact(wrong) < exact(right) - 0.2
