"""The TensorBoard events of a run have the measured values, without duplicates."""

import html
import itertools
import json
import re
import subprocess
import sys

import markdown
import numpy as np
import pytest

from minitransformer.config import load_config
from minitransformer.data.corpus import Pair
from minitransformer.explain import tensorboard as tensorboard_module
from minitransformer.explain.attention_maps import attention_views
from minitransformer.explain.heatmaps import as_png, attention_picture
from minitransformer.explain.tensorboard import (
    EventFile,
    Example,
    TensorBoard,
    choose_examples,
    event_record,
    example_views,
    markdown_table,
    scalars,
    tag_part,
    version_record,
    views_to_draw,
    walk_events,
)
from minitransformer.explain.walkthrough import walk_through
from minitransformer.run import RunFolder
from minitransformer.settings import TrainingConfig
from minitransformer.training.optimizer import learning_rate
from minitransformer.translator import Translator
from tests.support.events import everything_without_clock, points, series
from tests.support.processes import ROOT
from tests.support.small_runs import trainer_for, translator_for

EVALUATED = list(range(0, 601, 75))
METRICS = ("loss", "perplexity", "accuracy_teacher_forced", "accuracy_free_running", "exact_match",
           "bleu", "chrf")  # fmt: skip


@pytest.fixture(scope="module")
def shown(tiny_bn):
    return series(tiny_bn.path / "events.out.tfevents")


@pytest.fixture(scope="module")
def translator(tiny_bn):
    return Translator.load(tiny_bn.path)


@pytest.fixture(scope="module")
def metrics(tiny_bn):
    lines = (tiny_bn.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("split", "group"), [("valid", "valid"), ("train", "train_pairs")])
def test_evaluation_scalars_are_those_of_metrics_jsonl(shown, metrics, split, group):
    rows = {row["step"]: row for row in metrics if row["split"] == split}
    assert list(rows) == EVALUATED
    for name in METRICS:
        assert shown[f"{group}/{name}"] == {
            step: np.float32(row[name]) for step, row in rows.items()
        }


def test_train_scalars_have_a_point_for_each_step(shown):
    steps = list(range(1, 601))
    for name in ("loss", "perplexity", "accuracy", "learning_rate", "gradient_norm",
                 "tokens_per_second"):  # fmt: skip
        assert list(shown[f"train/{name}"]) == steps
    tiny = TrainingConfig(schedule="cosine", learning_rate=0.01, warmup_steps=0, steps=600)
    for step, rate in shown["train/learning_rate"].items():
        assert rate == pytest.approx(learning_rate(step, tiny), rel=1e-6)
    losses, perplexities = shown["train/loss"], shown["train/perplexity"]
    assert all(
        perplexities[step] == pytest.approx(np.exp(losses[step]), rel=1e-5) for step in steps
    )
    # Without dropout, the losses of a batch and of an evaluation differ only in their pairs.
    assert losses[600] == pytest.approx(shown["train_pairs/loss"][600], rel=0.5)
    assert shown["train/accuracy"][600] == 1.0


def test_train_scalars_follow_logging_every(tmp_path):
    trainer_for(
        tmp_path / "run", "logging.every=5", "model.max_length=12", callbacks=[TensorBoard()]
    ).fit()
    assert list(series(tmp_path / "run/events.out.tfevents")["train/loss"]) == [5, 10]


def test_step_loss_is_without_label_smoothing(tmp_path):
    losses = {}
    for smoothing in ("0.0", "0.3"):
        trainer = trainer_for(tmp_path / smoothing, f"training.label_smoothing={smoothing}")
        losses[smoothing] = trainer.step().loss
    assert losses["0.0"] == losses["0.3"]


def test_images_are_the_attention_of_the_model(shown, translator):
    examples = [
        Example("I go to school", "আমি স্কুলে যাই"),
        Example("I go to the field", "আমি মাঠে যাই"),
    ]
    expected = {
        f"attention/{number} {example.source}/{view.where}/layer-{view.layer}": view
        for number, example in enumerate(examples, start=1)
        for view in example_views(translator, example)
    }
    assert len(expected) == 6
    assert {tag for tag in shown if tag.startswith("attention/")} == set(expected)
    for tag, view in expected.items():
        assert list(shown[tag]) == EVALUATED
        assert shown[tag][600] == as_png(attention_picture(view))
        assert shown[tag][0] != shown[tag][600]


def test_example_views_are_labelled_by_tokens(translator):
    encoder, decoder, cross = example_views(translator, Example("I go to school", "আমি স্কুলে যাই"))
    assert encoder.queries == encoder.keys == cross.keys == ["I", "go", "to", "school"]
    assert decoder.queries == decoder.keys == cross.queries == ["<EOS>", "আমি", "স্কুলে", "যাই"]
    assert decoder.produced == cross.produced == ["আমি", "স্কুলে", "যাই", "<EOS>"]


def test_example_views_of_the_right_target_are_those_of_a_walk(translator):
    walk = walk_through(translator, "I go to school")
    views = example_views(translator, Example("I go to school", "আমি স্কুলে যাই"))
    own = example_views(translator, Example("I go to school"))
    for walked, forced, unaided in zip(attention_views(walk), views, own, strict=True):
        assert walked.name == forced.name == unaided.name
        assert walked.queries == forced.queries == unaided.queries
        assert np.allclose(walked.weights, forced.weights, atol=1e-6)
        assert np.allclose(walked.weights, unaided.weights, atol=1e-6)


def test_choose_examples_takes_those_of_the_config_or_held_out_pairs():
    texts = {"train": [Pair("a", "A"), Pair("b", "B")], "valid": [Pair("c", "C"), Pair("d", "D")]}
    assert choose_examples(1, texts) == [Example("c", "C")]
    assert choose_examples(0, texts) == []
    assert choose_examples(2, {"train": texts["train"]}) == [Example("a", "A"), Example("b", "B")]
    assert choose_examples(("b", "new"), texts) == [Example("b", "B"), Example("new", "")]
    assert choose_examples(("c", "c"), texts) == [Example("c", "C"), Example("c", "C")]


def test_entropies_are_means_over_the_examples(shown, translator):
    views = [
        example_views(translator, Example(*pair))
        for pair in [("I go to school", "আমি স্কুলে যাই"), ("I go to the field", "আমি মাঠে যাই")]
    ]
    for number, where in enumerate(("encoder", "decoder", "cross")):
        mean = float(views[0][number].entropy + views[1][number].entropy) / 2
        series = shown[f"attention_entropy/{where}/layer-0/head-0"]
        assert list(series) == EVALUATED
        assert series[600] == pytest.approx(mean, rel=1e-6)


def test_walk_events_have_a_step_for_each_token(tiny_bn, translator):
    folders = sorted(path.name for path in (tiny_bn.path / "walk").iterdir())
    assert folders == ["1-I-go-to-school", "2-I-go-to-the-field"]
    shown = series(tiny_bn.path / "walk/1-I-go-to-school/events.out.tfevents")
    walk = walk_through(translator, "I go to school")
    for view in attention_views(walk):
        rows = {1: None} if view.is_encoder else {step: step for step in (1, 2, 3, 4)}
        tag = f"walk/{view.where}/layer-0"
        assert shown[tag] == {step: as_png(attention_picture(view, n)) for step, n in rows.items()}
    assert shown["walk/probability"] == {
        step.number: np.float32(step.probability) for step in walk.steps
    }
    assert "আমি" in shown["walk/candidates"][1].decode()
    lines = shown["walk/through"][4].decode()
    assert all(word in lines for word in ("I go to school", "Step 4", "স্কুলে", "<EOS>"))


def test_views_to_draw_are_the_last_layers_of_a_long_walk(tmp_path, monkeypatch):
    translator = translator_for(tmp_path / "run", "model.num_decoder_layers=2")
    walk = walk_through(translator, "I go home")
    monkeypatch.setattr(tensorboard_module, "MAX_WALK_PICTURES", 5 * len(walk.steps))
    views = ["encoder 0", "decoder 0", "cross 0", "decoder 1", "cross 1"]
    assert [f"{view.where} {view.layer}" for view in views_to_draw(walk)] == views
    monkeypatch.setattr(tensorboard_module, "MAX_WALK_PICTURES", 4)
    monkeypatch.setattr(tensorboard_module, "MAX_WALK_STEPS", 2)
    assert [f"{view.where} {view.layer}" for view in views_to_draw(walk)] == [
        "encoder 0", "decoder 1", "cross 1",
    ]  # fmt: skip
    assert len(walk.steps) > 2
    (tmp_path / "events").write_bytes(b"".join(walk_events(walk)))
    assert list(series(tmp_path / "events")["walk/cross/layer-1"]) == [1, 2]


def test_samples_are_listed_with_their_references(shown, tiny_bn):
    first = shown["samples/valid"][0].decode().splitlines()
    assert first[0] == "| source | reference | free-running | teacher-forced |"
    last = shown["samples/valid"][600].decode().splitlines()
    assert last[2] == "| I go to the field | আমি মাঠে যাই | আমি মাঠে যাই | আমি মাঠে যাই |"
    assert len(last) == 2 + 5
    assert list(shown["samples/train"]) == EVALUATED


def as_written(text: bytes) -> str:
    return "".join(f"{line.removeprefix('    ')}\n" for line in text.decode().splitlines())


def test_config_is_written_as_text(shown, tiny_bn):
    config = (tiny_bn.path / "config.yaml").read_text(encoding="utf-8")
    assert {step: as_written(text) for step, text in shown["config"].items()} == {0: config}


def test_config_is_written_again_when_settings_change(tmp_path):
    trainer_for(tmp_path / "run", "model.max_length=12", callbacks=[TensorBoard()]).fit()
    trainer_for(
        tmp_path / "run", "training.steps=14", "model.max_length=12", callbacks=[TensorBoard()]
    ).fit()
    config = series(tmp_path / "run/events.out.tfevents")["config"]
    assert list(config) == [0, 12]
    assert as_written(config[12]) == (tmp_path / "run/config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text", ["<EOS> | *a* _b_ `c` [d](e) #f", "<script>alert(1)</script>", "a\nb"]
)
def test_markdown_table_escapes_every_sentence(text):
    rendered = markdown.markdown(markdown_table(["heading"], [[text]]), extensions=["tables"])
    assert len(re.findall(r"<(?!/)", rendered)) == 7  # a table of one heading and one cell
    assert f"<td>{' '.join(text.split())}</td>" in html.unescape(rendered)


def test_write_projector_writes_embeddings_with_their_tokens(tiny_bn, translator):
    folder = tiny_bn.path / "projector"
    model, tokenizer = translator.model, translator.tokenizer
    for side, part, names in (
        ("source", model.encoder, tokenizer.source),
        ("target", model.decoder, tokenizer.target),
    ):
        vectors = np.frombuffer((folder / f"{side}.bytes").read_bytes(), dtype="<f4")
        assert np.array_equal(vectors.reshape(len(names), -1), part.embedding.weight.detach())
        lines = (folder / f"{side}.tsv").read_text(encoding="utf-8").splitlines()
        assert lines == ["token\tid", *(f"{token}\t{id}" for id, token in enumerate(names.tokens))]


def test_write_projector_writes_shared_embeddings_once(tmp_path):
    trainer_for(
        tmp_path / "run", "tokenizer.joint=true", "model.tie_embeddings=all",
        callbacks=[TensorBoard()],
    ).fit()  # fmt: skip
    names = sorted(path.name for path in (tmp_path / "run/projector").iterdir())
    assert names == ["shared.bytes", "shared.tsv"]


FEW = ("logging.examples=[Let's go]", "evaluation.every=4", "model.max_length=12")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    trainer_for(run, *FEW, callbacks=[TensorBoard()]).fit()
    return everything_without_clock(run)


class Killed(Exception):
    pass


def fail_at(call: int, function):
    """Return a function that raises Killed in one of its calls."""
    calls = itertools.count(1)

    def failing(*arguments):
        if next(calls) == call:
            raise Killed
        return function(*arguments)

    return failing


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (tensorboard_module, "attention_picture", 1),  # in the evaluation before the first step
        pytest.param(tensorboard_module, "attention_picture", 5, marks=pytest.mark.slow),
        (tensorboard_module, "attention_picture", 8),
        pytest.param(tensorboard_module, "attention_picture", 12, marks=pytest.mark.slow),
        (tensorboard_module, "attention_picture", 14),  # in the walk
        (tensorboard_module, "write_projector", 1),  # after the walk
        (RunFolder, "save_checkpoint", 2),  # the events are synced, the checkpoint is not written
    ],
)
def test_killed_and_resumed_run_writes_the_same_events(
    tmp_path, monkeypatch, uninterrupted, owner, name, call
):
    monkeypatch.setattr(owner, name, fail_at(call, getattr(owner, name)))
    board = TensorBoard()
    with pytest.raises(Killed):
        trainer_for(tmp_path / "run", *FEW, callbacks=[board]).fit()
    board.events.close()
    trainer_for(tmp_path / "run", *FEW, callbacks=[TensorBoard()]).fit()
    series(tmp_path / "run/events.out.tfevents")  # fails if a point is duplicated
    assert everything_without_clock(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize(
    ("attention", "maps"),
    [("dot", {"attention/1 Let's go/cross/layer-0"}), ("none", set())],
)
def test_recurrent_run_has_one_attention_or_none(tmp_path, attention, maps):
    run = tmp_path / "run"
    changes = (
        "model.kind=recurrent",
        "model.positional_encoding=none",
        f"model.attention={attention}",
    )
    trainer_for(run, *FEW, *changes, "training.steps=1", callbacks=[TensorBoard()]).fit()
    shown = series(run / "events.out.tfevents")
    assert {tag for tag in shown if tag.startswith("attention/")} == maps
    assert len([tag for tag in shown if tag.startswith("attention_entropy/")]) == len(maps)
    walk = series(run / "walk" / "1-Let-s-go" / "events.out.tfevents")
    drawn = {"walk/cross/layer-0"} if maps else set()
    assert {"walk/through", "walk/probability", "walk/candidates"} | drawn == set(walk)


def test_event_file_is_reused_when_a_run_begins_again(tmp_path, monkeypatch):
    """A running TensorBoard keeps the file open and would not notice a new one of that name."""
    monkeypatch.setattr(RunFolder, "save_checkpoint", fail_at(1, RunFolder.save_checkpoint))
    board = TensorBoard()
    with pytest.raises(Killed):
        trainer_for(tmp_path / "run", callbacks=[board]).fit()
    board.events.close()
    before = (tmp_path / "run/events.out.tfevents").stat().st_ino
    trainer_for(tmp_path / "run", "model.max_length=12", callbacks=[TensorBoard()]).fit()
    assert (tmp_path / "run/events.out.tfevents").stat().st_ino == before
    assert list(series(tmp_path / "run/events.out.tfevents")["train/loss"]) == list(range(1, 13))


def test_finished_run_writes_the_same_events_when_started_again(tmp_path):
    trainer_for(tmp_path / "run", "model.max_length=12", callbacks=[TensorBoard()]).fit()
    before = everything_without_clock(tmp_path / "run")
    trainer_for(tmp_path / "run", "model.max_length=12", callbacks=[TensorBoard()]).fit()
    assert everything_without_clock(tmp_path / "run") == before


def test_more_steps_append_to_the_events_of_a_finished_run(tmp_path):
    events = tmp_path / "run/events.out.tfevents"
    trainer_for(tmp_path / "run", "model.max_length=12", callbacks=[TensorBoard()]).fit()
    before = events.read_bytes()
    trainer_for(
        tmp_path / "run", "training.steps=14", "model.max_length=12", callbacks=[TensorBoard()]
    ).fit()
    assert events.read_bytes().startswith(before)  # a running TensorBoard continues reading there
    assert list(series(events)["train/loss"]) == list(range(1, 15))


def test_events_can_begin_in_the_middle_of_a_run(tmp_path, capsys):
    trainer_for(tmp_path / "run", "model.max_length=12").fit()
    trainer_for(
        tmp_path / "run", "training.steps=14", "model.max_length=12", callbacks=[TensorBoard()]
    ).fit()
    assert list(series(tmp_path / "run/events.out.tfevents")["train/loss"]) == [13, 14]
    note = "note: TensorBoard shows this run from step 12 on; earlier steps were not written\n"
    assert capsys.readouterr().err == note


def test_event_file_appends_after_its_last_whole_record(tmp_path):
    path = tmp_path / "events.out.tfevents"
    first = version_record() + event_record(1, scalars({"a": 1.0}))
    whole = first + event_record(2, scalars({"a": 2.0}))
    path.write_bytes(whole[:-3])
    events = EventFile(path, len(whole))
    assert events.note == f"{path} is shorter than at the last checkpoint: some events are lost"
    assert path.stat().st_size == len(first)
    events.add(3, scalars({"a": 3.0}))
    events.close()
    assert [point[1:] for point in points(path)] == [(1, 1.0), (3, 3.0)]


def test_training_without_tensorboard_neither_loads_nor_writes_it(tmp_path):
    code = (
        "import runpy, sys\n"
        "sys.argv = ['train.py', '--config', 'tiny.yaml', '--set', 'training.steps=2',\n"
        "            '--set', 'logging.tensorboard=false']\n"
        "try:\n"
        f"    runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "print([name for name in sys.modules if name.split('.')[0] in\n"
        "       ('tensorboard', 'matplotlib', 'PIL', 'fontpkg') or 'utils.tensorboard' in name])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert result.stdout.splitlines()[-1] == "[]"
    assert not list((tmp_path / "runs/tiny").glob("events*"))
    assert "tensorboard" not in result.stdout


@pytest.mark.slow
def test_notes_about_examples_are_printed_once(tmp_path, capsys):
    def notes(name: str, examples: str) -> list[str]:
        trainer_for(
            tmp_path / name,
            f"logging.examples={examples}",
            "model.max_length=12",
            callbacks=[TensorBoard()],
        ).fit()
        return capsys.readouterr().err.splitlines()

    printed = notes("odd", "[I go \U0010fff0\U0010fff1, \U0010fff0 schoool]")
    assert len(printed) == 4
    assert printed[0].startswith("note: no font here has \U0010fff0 (U+10FFF0)")
    assert printed[-1] == "note: logging.examples: unknown word 'schoool': did you mean 'school'?"
    assert notes("escaped", '["a\\tb \\e[31m"]')[0].startswith("note: logging.examples: unknown")
    assert notes("plain", "[I go home]") == notes("default", "2") == []


@pytest.mark.parametrize(
    ("sentence", "part"),
    [
        ("and/or", "and∕or"),
        ("a\tb\n c\x1b", "a b c\\x1b"),
        ("স্কুলে" * 30, "স্কুলে" * 13 + "…"),
    ],
)
def test_tag_part_is_short_and_without_a_slash(sentence, part):
    assert tag_part(sentence) == part


def test_train_prints_the_command_that_shows_every_image(tiny_bn):
    assert "tensorboard --logdir runs --samples_per_plugin images=1000\n" in tiny_bn.result.out


def test_shipped_configs_evaluate_at_most_ten_times():
    for path in (ROOT / "configs").glob("*.yaml"):
        config = load_config(path)
        assert config.training.steps // config.evaluation.every + 1 <= 10, path.name
