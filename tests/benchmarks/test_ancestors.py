"""The benchmark of recurrent models compares equal configs, and prints and plots the results."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from PIL import Image

from benchmarks import ancestors_runs
from benchmarks.ancestors import bleu_by_length, count_words
from benchmarks.ancestors_panels import (
    COLOURS,
    LABEL_GAP,
    Panel,
    Result,
    buckets_by_length,
    format_bucket,
    plot,
    plot_panel,
    print_panel,
    read_panels,
    spread_labels,
    table_row,
    to_json,
)
from benchmarks.ancestors_runs import RECURRENT_REVERSE, REVERSE, ModelRun, model_runs
from benchmarks.measuring import write_json
from minitransformer.config import changed_keys
from minitransformer.errors import DataError, UsageError
from minitransformer.evaluation import Sample
from tests.support.processes import ROOT
from tests.support.small_runs import RECURRENT, small_config, trainer_for


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
    return [corpus, corpus._replace(name="reverse", max_train_length=4)]


def test_buckets_have_about_equal_sizes():
    assert buckets_by_length(list(range(1, 101)), 5) == [
        range(1, 21), range(21, 41), range(41, 61), range(61, 81), range(81, 101),
    ]  # fmt: skip


def test_sentences_of_one_length_share_a_bucket():
    lengths = [7] + [6] * 4 + [5] * 13 + [4] * 12 + [3] * 15
    assert list(map(format_bucket, buckets_by_length(lengths, 5))) == ["3", "4", "5", "6–7"]
    assert buckets_by_length([8, 8, 8], 5) == [range(8, 9)]


def test_bleu_by_length_scores_each_bucket_alone():
    def sample(text: str, translation: str) -> Sample:
        return Sample(text, text, translation, teacher_forced="", is_exact=False)

    long, other = "a b c d e f g", "h i j k l m n"
    samples = [sample("a b", "a b"), sample(long, long), sample(other, "x"), sample("a b c d", "y")]
    buckets = [range(2, 3), range(4, 5), range(7, 8)]
    short, wrong, half = bleu_by_length(samples, buckets, "13a")
    assert short is None
    assert wrong == 0
    assert half == pytest.approx(100 * 2.718281828 ** (1 - 14 / 8) * (7 / 8) ** 0.25, abs=0.01)
    assert count_words(" two  words ") == 2


def test_table_row_formats_all_numbers_of_a_model():
    assert table_row(result("transformer", [])) == (
        "GRU with transformer", "1,234,567", "45,679 (45,639 to 45,689)", "-", "61.23", "12.3%",
        "110 (100 to 120)",
    )  # fmt: skip


def test_panels_survive_writing_and_reading(panels, tmp_path, capsys):
    write_json(tmp_path / "numbers.json", to_json(panels))
    again = read_panels(tmp_path / "numbers.json")
    assert again == panels
    print_panel(again[0])
    assert "| GRU with recurrent | - | 40.0 | 21.0 |" in capsys.readouterr().out
    (tmp_path / "numbers.json").write_text(json.dumps({"seconds": 1}))
    with pytest.raises(DataError, match=r"numbers\.json is not a file that --json wrote"):
        read_panels(tmp_path / "numbers.json")


def test_panel_has_a_line_and_a_label_per_model(panels):
    axes = Figure().subplots()
    plot_panel(axes, panels[1])
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert [list(line.get_ydata()[1:]) for line in lines] == [[40, 30], [40, 21], [40, 12]]
    labels = {text.get_text(): text.get_color() for text in axes.texts}
    for line, name in zip(lines, COLOURS, strict=True):
        assert labels[f"GRU\nwith {name}"] == line.get_color()
    assert len({line.get_linestyle() for line in lines}) == 3
    assert [4, 4] in [list(line.get_xdata()) for line in axes.lines]  # longest training sentence


def test_plot_has_a_panel_per_corpus(panels, tmp_path):
    sizes = []
    for plotted in (panels[:1], panels):
        plot(plotted, str(tmp_path / "ancestors.png"))
        with Image.open(tmp_path / "ancestors.png") as picture:
            assert picture.format == "PNG"
            sizes.append(picture.size)
    assert sizes[1] == (2 * sizes[0][0], sizes[0][1])


@pytest.mark.parametrize("heights", [[0.0, 0.0, 0.0], [0.5, 0.51, 0.9], [0.97, 0.98, 1.0]])
def test_labels_do_not_overlap_and_stay_inside_the_panel(heights):
    positions = spread_labels(heights)
    assert all(upper - lower > LABEL_GAP - 1e-9 for lower, upper in pairwise(positions))
    assert positions[0] >= 0
    assert positions[-1] <= 1
    assert spread_labels([0.1, 0.5, 0.9]) == [0.1, 0.5, 0.9]


@pytest.mark.parametrize(
    ("pair", "sets", "recurrent_sets"),
    [
        (("tiny", "tiny-rnn"), [], ()),
        (("multi30k", "multi30k-rnn"), ["training.steps=900"], ()),
        (("reverse", "reverse"), list(REVERSE), RECURRENT_REVERSE),
    ],
    ids=["tiny", "multi30k", "reverse"],
)
def test_models_differ_only_in_model_settings(pair, sets, recurrent_sets, tmp_path):
    first, second, third = model_runs(pair, sets, recurrent_sets, tmp_path)
    assert {key.split(".")[0] for key in changed_keys(first.config, second.config)} == {"model"}
    assert list(changed_keys(second.config, third.config)) == ["model.attention"]
    assert third.config.model.attention == "none"
    assert len({each.path for each in (first, second, third)}) == 3


@pytest.mark.parametrize(
    ("pair", "recurrent_sets", "message"),
    [
        (("tiny-rnn", "tiny"), (), r"tiny-rnn\.yaml is no Transformer"),
        (("tiny", "tiny"), (), r"tiny\.yaml is no recurrent model with attention"),
        (("tiny-bn", "tiny-rnn"), (), r"tiny-bn\.yaml and tiny-rnn\.yaml differ in data\.train"),
        (("tiny", "tiny-rnn"), ("model.source_eos=true",), r"differ in model\.source_eos; make"),
    ],
)
def test_unequal_configs_are_refused(pair, recurrent_sets, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        model_runs(pair, [], recurrent_sets, tmp_path)


def test_finished_run_of_another_model_is_refused(tmp_path):
    path = tmp_path / "run"
    trainer_for(path, *RECURRENT).save()
    other = small_config(*RECURRENT, "model.cell=lstm", "model.dropout=0.4")
    with pytest.raises(DataError, match=r"run has another model\.dropout, model\.cell; choose"):
        ancestors_runs.evaluate_run(ModelRun("recurrent", path, ROOT, [], other))


@pytest.mark.slow
def test_benchmark_trains_once_and_then_only_evaluates(tmp_path):
    def run_benchmark(*arguments: object) -> subprocess.CompletedProcess[str]:
        finished = subprocess.run(
            [sys.executable, "-m", "benchmarks.ancestors", *map(str, arguments)],
            cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        return finished

    def without_speeds(output: str) -> str:
        return re.sub(r"[\d,]+ \([\d,]+ to [\d,]+\)", "SPEED", output)

    short = ("--runs", tmp_path / "runs", "--steps", 30, "--reverse-steps", 200)
    one_model = run_benchmark(*short, "--part", "corpus", "--only", "recurrent")
    assert len(re.findall("30 steps took", one_model.stderr)) == 1
    numbers = tmp_path / "numbers.json"
    all_models = run_benchmark(*short, "--json", numbers)
    assert len(re.findall("30 steps took", all_models.stderr)) == 2
    assert len(re.findall("200 steps took", all_models.stderr)) == 3
    again = run_benchmark(*short)
    assert "steps took" not in again.stderr
    assert without_speeds(again.stdout) == without_speeds(all_models.stdout)
    assert again.stdout.count("%") > 6  # the scores were compared
    plotted = run_benchmark("--from-json", numbers, "--plot", tmp_path / "ancestors.png")
    assert plotted.stdout == all_models.stdout
    assert (tmp_path / "ancestors.png").stat().st_size > 10_000
