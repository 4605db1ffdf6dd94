"""The comparison with recurrent models is one of equals, and its picture shows all of them."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from PIL import Image

from benchmarks import ancestors_runs
from benchmarks.ancestors import bleu_by_length, words
from benchmarks.ancestors_panels import (
    COLOURS,
    LABEL_GAP,
    Panel,
    Result,
    as_json,
    buckets_by_length,
    cells,
    draw,
    draw_panel,
    print_panel,
    read_panels,
    span,
    spread,
)
from benchmarks.ancestors_runs import RECURRENT_REVERSE, REVERSE, Contestant, contestants
from benchmarks.measuring import write_json
from minitransformer.config import changed_keys
from minitransformer.errors import DataError, UsageError
from minitransformer.evaluation import Sample
from tests.processes import ROOT
from tests.small_runs import RECURRENT, small_config, trainer_for


def result(name: str, by_length: list[float | None]) -> Result:
    return Result(
        name=name, label=f"GRU with {name}", parameters=1234567,
        tokens_per_second=[45600.0, 45678.9, 45700.0], bleu=None, chrf=61.234, exact_match=0.1234,
        sentences_per_second=[90.0, 100.0, 110.0, 120.0, 130.0], by_length=by_length,
    )  # fmt: skip


@pytest.fixture
def panels() -> list[Panel]:
    results = [result(name, [None, 40.0, 30.0 - 9 * index]) for index, name in enumerate(COLOURS)]
    lengths = ["3", "4–5", "6–9"]
    corpus = Panel("ours", "words", "BLEU", lengths, [3.0, 4.5, 7.5], None, ["all"], results)
    return [corpus, corpus._replace(name="reverse", longest=4)]


def test_buckets_are_about_as_full_as_each_other():
    assert buckets_by_length(list(range(1, 101)), 5) == [
        range(1, 21), range(21, 41), range(41, 61), range(61, 81), range(81, 101),
    ]  # fmt: skip


def test_sentences_of_one_length_share_a_bucket():
    lengths = [7] + [6] * 4 + [5] * 13 + [4] * 12 + [3] * 15
    assert list(map(span, buckets_by_length(lengths, 5))) == ["3", "4", "5", "6–7"]
    assert buckets_by_length([8, 8, 8], 5) == [range(8, 9)]


def test_bleu_by_length_is_that_of_each_buckets_own_sentences():
    def sample(text: str, translation: str) -> Sample:
        return Sample(text, text, translation, teacher_forced="", is_exact=False)

    long, other = "a b c d e f g", "h i j k l m n"
    samples = [sample("a b", "a b"), sample(long, long), sample(other, "x"), sample("a b c d", "y")]
    buckets = [range(2, 3), range(4, 5), range(7, 8)]
    short, wrong, half = bleu_by_length(samples, buckets, "13a")
    assert short is None
    assert wrong == 0
    assert half == pytest.approx(100 * 2.718281828 ** (1 - 14 / 8) * (7 / 8) ** 0.25, abs=0.01)
    assert words(" two  words ") == 2


def test_a_row_tells_every_number_of_a_model():
    assert cells(result("transformer", [])) == (
        "GRU with transformer", "1,234,567", "45,679 (45,639 to 45,689)", "-", "61.23", "12.3%",
        "110 (100 to 120)",
    )  # fmt: skip


def test_numbers_come_back_from_their_file_as_they_were(panels, tmp_path, capsys):
    write_json(tmp_path / "numbers.json", as_json(panels))
    again = read_panels(tmp_path / "numbers.json")
    assert again == panels
    print_panel(again[0])
    assert "| GRU with recurrent | - | 40.0 | 21.0 |" in capsys.readouterr().out
    (tmp_path / "numbers.json").write_text(json.dumps({"seconds": 1}))
    with pytest.raises(DataError, match=r"numbers\.json is not a file that --json wrote"):
        read_panels(tmp_path / "numbers.json")


def test_every_model_is_a_line_with_a_label_of_its_colour(panels):
    axes = Figure().subplots()
    draw_panel(axes, panels[1])
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert [list(line.get_ydata()[1:]) for line in lines] == [[40, 30], [40, 21], [40, 12]]
    labels = {text.get_text(): text.get_color() for text in axes.texts}
    for line, name in zip(lines, COLOURS, strict=True):
        assert labels[f"GRU\nwith {name}"] == line.get_color()
    assert len({line.get_linestyle() for line in lines}) == 3
    assert [4, 4] in [list(line.get_xdata()) for line in axes.lines]  # the longest in training


def test_the_picture_has_a_panel_for_each_corpus(panels, tmp_path):
    sizes = []
    for shown in (panels[:1], panels):
        draw(shown, str(tmp_path / "ancestors.png"))
        with Image.open(tmp_path / "ancestors.png") as picture:
            assert picture.format == "PNG"
            sizes.append(picture.size)
    assert sizes[1] == (2 * sizes[0][0], sizes[0][1])


@pytest.mark.parametrize("heights", [[0.0, 0.0, 0.0], [0.5, 0.51, 0.9], [0.97, 0.98, 1.0]])
def test_labels_stand_apart_and_inside_the_panel(heights):
    placed = spread(heights)
    assert all(upper - lower > LABEL_GAP - 1e-9 for lower, upper in pairwise(placed))
    assert placed[0] >= 0
    assert placed[-1] <= 1
    assert spread([0.1, 0.5, 0.9]) == [0.1, 0.5, 0.9]


@pytest.mark.parametrize(
    ("pair", "sets", "of_recurrent"),
    [
        (("tiny", "tiny-rnn"), [], ()),
        (("multi30k", "multi30k-rnn"), ["training.steps=900"], ()),
        (("reverse", "reverse"), list(REVERSE), RECURRENT_REVERSE),
    ],
    ids=["tiny", "multi30k", "reverse"],
)
def test_contestants_differ_as_models_alone(pair, sets, of_recurrent, tmp_path):
    first, second, third = contestants(pair, sets, of_recurrent, tmp_path)
    assert {key.split(".")[0] for key in changed_keys(first.config, second.config)} == {"model"}
    assert list(changed_keys(second.config, third.config)) == ["model.attention"]
    assert third.config.model.attention == "none"
    assert len({each.run for each in (first, second, third)}) == 3


@pytest.mark.parametrize(
    ("pair", "of_recurrent", "complaint"),
    [
        (("tiny-rnn", "tiny"), (), r"tiny-rnn\.yaml is no Transformer"),
        (("tiny", "tiny"), (), r"tiny\.yaml is no recurrent model with attention"),
        (("tiny-bn", "tiny-rnn"), (), r"tiny-bn\.yaml and tiny-rnn\.yaml differ in data\.train"),
        (("tiny", "tiny-rnn"), ("model.source_eos=true",), r"differ in model\.source_eos; make"),
    ],
)
def test_unequals_are_refused(pair, of_recurrent, complaint, tmp_path):
    with pytest.raises(UsageError, match=complaint):
        contestants(pair, [], of_recurrent, tmp_path)


def test_a_finished_run_of_another_model_is_not_taken_for_this_one(tmp_path):
    path = tmp_path / "run"
    trainer_for(path, *RECURRENT).save()
    other = small_config(*RECURRENT, "model.cell=lstm", "model.dropout=0.4")
    with pytest.raises(DataError, match=r"run has another model\.dropout, model\.cell; choose"):
        ancestors_runs.tested(Contestant("recurrent", path, ROOT, [], other))


@pytest.mark.slow
def test_the_benchmark_trains_one_after_the_other_and_then_only_tests(tmp_path):
    def told(*arguments: object) -> subprocess.CompletedProcess[str]:
        finished = subprocess.run(
            [sys.executable, "-m", "benchmarks.ancestors", *map(str, arguments)],
            cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        return finished

    def without_speeds(output: str) -> str:
        return re.sub(r"[\d,]+ \([\d,]+ to [\d,]+\)", "so many", output)

    short = ("--runs", tmp_path / "runs", "--steps", 30, "--reverse-steps", 200)
    alone = told(*short, "--part", "corpus", "--only", "recurrent")
    assert len(re.findall("30 steps took", alone.stderr)) == 1
    numbers = tmp_path / "numbers.json"
    everything = told(*short, "--json", numbers)
    assert len(re.findall("30 steps took", everything.stderr)) == 2
    assert len(re.findall("200 steps took", everything.stderr)) == 3
    again = told(*short)
    assert "steps took" not in again.stderr
    assert without_speeds(again.stdout) == without_speeds(everything.stdout)
    assert again.stdout.count("%") > 6  # what is left are the scores
    drawn = told("--from-json", numbers, "--plot", tmp_path / "ancestors.png")
    assert drawn.stdout == everything.stdout
    assert (tmp_path / "ancestors.png").stat().st_size > 10_000
