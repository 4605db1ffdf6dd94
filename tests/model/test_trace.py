"""Recording does not change a model's outputs, and names tensors by their module's path."""

import pytest
import torch

from minitransformer.model.trace import record
from tests.support.variants import VARIANTS, build, ids


@pytest.mark.parametrize("name", VARIANTS)
def test_recording_does_not_change_the_logits(name):
    model = build(VARIANTS[name])
    source, target = ids(2, 5), ids(2, 4, seed=2)
    plain = model(source, target)
    with record(model) as tensors:
        recorded = model(source, target)
    assert torch.equal(plain, recorded)
    assert torch.equal(tensors["logits"], recorded)
    assert torch.equal(plain, model(source, target))


@pytest.mark.parametrize("name", VARIANTS)
def test_recorded_names_begin_with_module_paths(name):
    model = build(VARIANTS[name])
    with record(model) as tensors:
        model(ids(1, 3), ids(1, 2, seed=2))
    paths = {path for path, _ in model.named_modules()}
    assert {name.rpartition(".")[0] for name in tensors} <= paths


def test_recorded_names_of_an_attention():
    model = build(VARIANTS["minimal"])
    with record(model) as tensors:
        model(ids(1, 3), ids(1, 2, seed=2))
    assert tensors["decoder.layers.0.cross_attention.weights"].shape == (1, 1, 2, 3)
    assert {name for name in tensors if name.startswith("decoder.layers.0.self_attention.")} == {
        f"decoder.layers.0.self_attention.{part}"
        for part in ("query", "key", "value", "scores", "scaled", "weights", "context", "output")
    }


def record_forced_and_in_steps(model):
    """Record a teacher-forced call, and each step with a cache."""
    source, target = ids(1, 4), ids(1, 5, seed=2)
    with record(model) as forced:
        model(source, target)
    memory = model.encode(source)
    cache = model.new_cache(memory)
    steps = []
    for position in range(5):
        with record(model) as step:
            model.decode(target[:, position : position + 1], memory, cache)
        steps.append(step)
    return forced, steps


def test_recorded_cached_step_is_a_row_of_the_forced_recording():
    forced, steps = record_forced_and_in_steps(build(VARIANTS["pre-norm"]))
    for position, step in enumerate(steps):
        for name in ("query", "context", "output"):
            path = f"decoder.layers.2.cross_attention.{name}"
            torch.testing.assert_close(
                step[path][..., 0, :], forced[path][..., position, :], atol=1e-5, rtol=1e-5
            )
        row = step["decoder.layers.1.self_attention.weights"][..., 0, :]
        full = forced["decoder.layers.1.self_attention.weights"][..., position, : position + 1]
        torch.testing.assert_close(row, full, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gru-bidirectional", "lstm"])
def test_recorded_recurrent_step_is_a_row_of_the_forced_recording(name):
    forced, steps = record_forced_and_in_steps(build(VARIANTS[name]).double())
    of_source = ("attention.source", "attention.value")
    for position, step in enumerate(steps):
        rows = [path for path in step if path.startswith(("decoder.layers.", "decoder.attention."))]
        rows = [path for path in rows if not path.endswith(of_source)]
        assert len(rows) == {"gru-bidirectional": 2 * 5, "lstm": 2 * 8}[name] + 7
        for path in rows:
            torch.testing.assert_close(step[path][..., 0, :], forced[path][..., position, :])


@pytest.mark.parametrize("name", ["minimal", "gru", "lstm-bidirectional"])
def test_recorded_tensors_are_detached_copies(name):
    model = build(VARIANTS[name])
    with record(model) as tensors:
        logits = model(ids(1, 3), ids(1, 2, seed=2))
    kept = tensors["logits"].clone()
    with torch.no_grad():
        logits.zero_()
    assert torch.equal(tensors["logits"], kept)
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_two_calls_in_one_recording_are_refused():
    model = build(VARIANTS["minimal"])
    with record(model):
        model(ids(1, 3), ids(1, 2, seed=2))
        with pytest.raises(RuntimeError, match="was recorded twice: record one call at a time"):
            model(ids(1, 3), ids(1, 2, seed=2))


def test_recording_without_a_call_is_refused():
    with (
        pytest.raises(RuntimeError, match="nothing was recorded"),
        record(build(VARIANTS["minimal"])),
    ):
        pass


def test_recording_ends_after_an_error():
    model = build(VARIANTS["minimal"])
    with pytest.raises(ZeroDivisionError), record(model):
        raise ZeroDivisionError
    model(ids(1, 3), ids(1, 2, seed=2))
    model(ids(1, 3), ids(1, 2, seed=2))


def test_recording_ignores_other_models():
    model, other = build(VARIANTS["minimal"]), build(VARIANTS["minimal"], seed=5)
    with record(model) as tensors:
        other(ids(1, 3), ids(1, 2, seed=2))
        logits = model(ids(1, 3), ids(1, 2, seed=2))
    assert torch.equal(tensors["logits"], logits)
