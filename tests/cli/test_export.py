"""The export command writes a folder for CTranslate2, and prints the Python that uses it."""

from pathlib import Path

import pytest

from minitransformer.translator import Translator
from tests.support.processes import Finished, run
from tests.support.small_runs import trainer_for

pytest.importorskip("ctranslate2", reason="needs: pip install -e '.[export]'")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a run that can be exported and has learned its sentences."""
    folder = tmp_path_factory.mktemp("trained")
    trainer_for(
        folder / "run", "model.norm=pre", "model.d_model=32", "model.dropout=0",
        "training.batch_tokens=900", "training.steps=60", "training.save_every=60",
        "evaluation.every=60", "logging.tensorboard=false",
    ).fit()  # fmt: skip
    return folder


def export(folder: Path, *arguments: object) -> Finished:
    return run("export", *arguments, folder=folder)


def test_export_prints_python_that_translates_alike(trained):
    first = export(trained, "--run", "run", "--to", "new/out", "--int8")
    assert first.code == 0
    assert first.err.startswith("exported run (step-000060) to new/out: int8, ")
    small = (trained / "new" / "out" / "model.bin").stat().st_size
    second = export(trained, "--run", "run", "--to", "new/out", "--checkpoint", "last")
    assert second.code == 0
    assert (trained / "new" / "out" / "model.bin").stat().st_size > small
    assert [path.name for path in (trained / "new").iterdir()] == ["out"]
    (trained / "shown.py").write_text(second.out)
    shown = run(str(trained / "shown.py"), folder=trained)
    assert shown.out == Translator.load(trained / "run")("Let's go") + "\n"


def test_export_error_is_one_line(trained, tmp_path):
    (trained / "mine").mkdir()
    (trained / "mine" / "config.json").write_text("{}")
    trainer_for(trained / "seed", "training.steps=1", "logging.tensorboard=false").fit()
    changes = ("model.kind=recurrent", "training.steps=1", "logging.tensorboard=false")
    trainer_for(trained / "gru", *changes).fit()
    other = "to export, train with"
    for run_name, to, code, message in (
        ("absent", "out", 1, "absent is not a run folder (there is no such folder)"),
        ("run", "mine", 1, "mine is not empty and not an export; choose another folder"),
        ("run", "run/config.yaml", 2, "--to run/config.yaml: a file, not a folder"),
        ("seed", "out", 2, f"CTranslate2 has no model.norm: none; {other} --set model.norm=pre"),
        (
            "gru",
            "out",
            2,
            f"CTranslate2 has no model.kind: recurrent; {other} --set model.kind=transformer",
        ),
    ):
        result = export(trained, "--run", run_name, "--to", to)
        assert (result.code, result.out, result.err) == (code, "", f"error: {message}\n")
    assert not (trained / "out").exists()
    nowhere = export(trained, "--run", "run")
    expected = "error: name the folder to write, such as --to exported\n"
    assert (nowhere.code, nowhere.err) == (2, expected)
