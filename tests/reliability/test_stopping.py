"""SIGINT and SIGTERM, once or twice and at any point, lose nothing and print no traceback."""

import shutil
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import pytest

from minitransformer.run import RunFolder
from tests.support.faults import Fault, Sabotage, signal_at_call
from tests.support.survival import (
    Job,
    Uninterrupted,
    check_newest,
    differences,
    errors_and_notes,
    run_in,
    side_by_side,
    start,
    uninterrupted_in,
)

TWO_PROCESSES = ("training.processes=2", "training.join_timeout=60")
TRAINER, RESUME = "minitransformer.training.trainer", "minitransformer.training.resume"
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="finds the names of open files in /proc"
)


def stopped(
    folder: Path, expected: Uninterrupted, sabotage: Sabotage, codes: set[int], *changes: str
) -> Job:
    """Stop a run by a signal, check its exit code, resume it and compare the results."""
    folder.mkdir()
    running = start(folder, sabotage, *changes)
    yield running, []
    first = running.finish()  # fails if there is a traceback
    assert first.code in codes, (sabotage, first.err)
    assert all(line in ("", "interrupted") for line in unexpected(first.err)), sabotage
    check_newest(run_in(folder))
    running = start(folder, None, *changes)
    yield running, []
    again = running.finish()
    assert (again.code, errors_and_notes(again)) == (0, []), sabotage
    assert differences(run_in(folder), expected.outcome) == [], sabotage
    shutil.rmtree(folder)


def unexpected(err: str) -> list[str]:
    return [line for line in err.splitlines() if not line.startswith("warning: ")]


def test_signal_at_any_stage_stops_the_run_and_it_resumes(uninterrupted, tmp_path):
    loading, batch = (RESUME, "prepare_dataset"), (TRAINER, "learning_rate")
    evaluation = (TRAINER, "Trainer.evaluate_splits")
    save = uninterrupted.call_index("write", "step-000006.part/model.safetensors")
    cases: list[tuple[Sabotage, set[int]]] = [
        (signal_at_call(SIGINT, *loading), {130}),
        (signal_at_call(SIGTERM, *loading), {-SIGTERM}),  # nothing to save: the default action
        (signal_at_call(SIGINT, *batch), {130}),
        (signal_at_call(SIGTERM, *evaluation), {143}),
        (Fault("SIGTERM", save), {143}),
        (Fault("SIGINT twice", save), {-SIGINT}),  # ends at once, in mid-save
    ]
    side_by_side(
        stopped(tmp_path / str(number), uninterrupted, sabotage, codes)
        for number, (sabotage, codes) in enumerate(cases)
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGINT twice", "SIGTERM twice"])
def test_signal_at_any_disk_write_loses_nothing(uninterrupted, tmp_path, how):
    number = Signals[how.split()[0]]
    # From here on, the trainer handles signals.
    handled = uninterrupted.call_index("rename", ".config.yaml.part") + 2
    saved = uninterrupted.call_index("rename", ".last.part")

    def codes(point: int) -> set[int]:
        if point < handled:
            return {128 + number, -number}
        if point <= saved:
            return {-number, 128 + number} if how.endswith("twice") else {128 + number}
        return {0, 128 + number, -number}  # the run is finished: the signal may come too late

    side_by_side(
        stopped(tmp_path / str(point), uninterrupted, Fault(how, point), codes(point))
        for point in range(1 + len(how) % 9, len(uninterrupted.points), 9)
    )


@pytest.mark.slow
def test_signal_to_two_processes_loses_nothing(tmp_path):
    (tmp_path / "uninterrupted").mkdir()
    uninterrupted = uninterrupted_in(tmp_path / "uninterrupted", *TWO_PROCESSES)
    save = uninterrupted.call_index("write", "step-000006.part/optimizer.safetensors")
    cases: list[tuple[Sabotage, set[int]]] = [
        (Fault("SIGTERM", save), {143}),
        (Fault("SIGINT twice", save), {-SIGINT}),
        (signal_at_call(SIGINT, RESUME, "prepare_dataset"), {-SIGINT}),  # nothing to save
        (signal_at_call(SIGTERM, TRAINER, "Trainer.evaluate_splits"), {143}),
    ]
    side_by_side(
        (
            stopped(tmp_path / str(number), uninterrupted, sabotage, codes, *TWO_PROCESSES)
            for number, (sabotage, codes) in enumerate(cases)
        ),
        at_once=1,
    )


def test_signal_during_a_save_keeps_that_step(uninterrupted, tmp_path):
    fault = Fault("SIGTERM", uninterrupted.call_index("mkdir", ".step-000006.part") + 1)
    assert start(tmp_path, fault).finish().code == 143
    assert RunFolder(run_in(tmp_path)).pointed("last") == 6
