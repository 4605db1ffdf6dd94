"""A randomly damaged run loads an undamaged checkpoint or is refused."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer.errors import CheckpointError
from minitransformer.run import Checkpoint, RunFolder
from tests.support.damage import apply_edit, edits, result_or_error
from tests.support.small_runs import same_bits, trainer_for


@pytest.fixture(scope="module", params=["words", "bpe"])
def undamaged(request, tmp_path_factory) -> RunFolder:
    """A run with two checkpoints."""
    folder = tmp_path_factory.mktemp("undamaged") / "run"
    kind = ("tokenizer.kind=bpe", "tokenizer.vocab_size=60") if request.param == "bpe" else ()
    trainer_for(folder, "training.steps=8", "data.limit=6", "model.d_model=8", *kind).fit()
    run = RunFolder(folder)
    assert len(run.steps()) == 2
    return run


def is_same(first: Checkpoint, second: Checkpoint) -> bool:
    """Return whether both have the same state and the same bits in every tensor."""
    return (
        dataclasses.asdict(first.state) == dataclasses.asdict(second.state)
        and same_bits(first.model, second.model)
        and same_bits(first.optimizer, second.optimizer)
    )


damage = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.sampled_from(["edit", "edit", "edit", "delete", "empty", "swap"]),
        edits,
    ),
    min_size=1,
    max_size=4,
)


def apply_damage(run: Path, drawn: list) -> None:
    for index, kind, edit in drawn:
        files = sorted(path for path in run.rglob("*") if path.is_file())
        files = [path for path in files if path.name not in ("config.yaml", "metrics.jsonl")]
        path = files[index % len(files)]
        if kind == "edit":
            path.write_bytes(apply_edit(path.read_bytes(), edit))
        elif kind == "delete":
            path.unlink()
        elif kind == "swap":  # with the same file of another step, or another file
            path.write_bytes(files[(index + 3) % len(files)].read_bytes())
        else:
            path.write_bytes(b"")


@given(drawn=damage)
def test_randomly_damaged_checkpoint_is_never_loaded(undamaged, drawn):
    copy = undamaged.path.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(undamaged.path, copy)
    apply_damage(copy, drawn)
    expected = {step: undamaged.load(step, for_training=True) for step in undamaged.steps()}
    newest = max(expected)
    complaints: list[str] = []
    found = result_or_error(
        lambda: RunFolder(copy).load_newest(complaints, for_training=True), CheckpointError
    )
    if isinstance(found, CheckpointError):
        assert "\n" not in str(found)
        return
    assert is_same(found, expected[found.state.step])
    assert bool(complaints) == (found.state.step != newest and newest in RunFolder(copy).steps())
    config = undamaged.load_config()
    loaded, written = RunFolder(copy).load_tokenizer(config), undamaged.load_tokenizer(config)
    assert loaded.to_files() == written.to_files()


def test_is_same_detects_one_changed_value(undamaged):
    first, second = (undamaged.load(max(undamaged.steps()), for_training=True) for _ in range(2))
    assert is_same(first, second)
    next(iter(second.optimizer.values())).view(-1)[0] += 1e-3
    assert not is_same(first, second)
