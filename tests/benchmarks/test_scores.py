"""The score table is computed from finished runs of one config with several seeds."""

import re

import pytest

from benchmarks import scores
from minitransformer.errors import UserError
from tests.support.small_runs import trainer_for


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    paths = [folder / f"seed-{seed}" for seed in (1, 2)]
    for seed, path in enumerate(paths, start=1):
        trainer_for(path, f"training.seed={seed}").fit()
    return paths


def table(monkeypatch, capsys, *arguments: object) -> str:
    monkeypatch.setattr("sys.argv", ["scores", *map(str, arguments)])
    assert scores.main() == 0
    return capsys.readouterr().out


def test_scores_of_seeds_are_shown_as_mean_and_range(runs, monkeypatch, capsys):
    both = table(monkeypatch, capsys, *runs, "--split", "valid", "--beam", "2")
    assert "2 runs of 12 steps, " in both
    singles = [table(monkeypatch, capsys, run, "--split", "valid", "--beam", "2") for run in runs]
    chrf = [
        float(next(line for line in single.splitlines() if "greedy" in line).split("|")[4])
        for single in singles
    ]
    line = next(line for line in both.splitlines() if "greedy" in line)
    mean, lowest, highest = map(float, re.findall(r"[\d.]+", line.split("|")[4]))
    assert (lowest, highest) == (min(chrf), max(chrf))
    assert mean == pytest.approx(sum(chrf) / 2, abs=0.011)  # each is rounded separately


def test_scores_of_different_or_unfinished_runs_are_refused(runs, tmp_path):
    with pytest.raises(UserError, match="a run is named twice"):
        scores.require_same_settings([runs[0], runs[0]])
    trainer_for(tmp_path / "wide", "model.d_model=32").fit()
    with pytest.raises(UserError, match=r"differ in model\.d_model"):
        scores.require_same_settings([runs[0], tmp_path / "wide"])
    half = trainer_for(tmp_path / "half")
    half.step()
    half.save()
    with pytest.raises(UserError, match="half is at step 1 of 12"):
        scores.require_same_settings([runs[0], tmp_path / "half"])


def test_missing_score_is_shown_as_a_dash():
    assert scores.format_range([None, None], 2) == "-"
    assert scores.format_range([1.0, 2.0], 1) == "1.5 (1.0 to 2.0)"
