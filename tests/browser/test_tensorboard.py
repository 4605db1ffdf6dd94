"""TensorBoard's HTTP interface and pages show what a trained run has written."""

import contextlib
import html
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minitransformer.explain.tensorboard import EventFile, scalars
from tests.support.events import series

WALK = "tiny-bn/walk/1-I-go-to-school"

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def serving(folder: Path, **options: object) -> Iterator[str]:
    """Start TensorBoard on any free port."""
    command = [Path(sys.executable).parent / "tensorboard", "--logdir", folder, "--port", "0"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            lines = iter(server.stderr.readline, "")
            found = next(filter(None, (re.search(r"http://localhost:\d+", line) for line in lines)))
            yield found[0]
        finally:
            server.terminate()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def address(tiny_bn):
    with serving(tiny_bn.path.parent, samples_per_plugin="images=1000") as address:
        wait_for(lambda: set(fetch(address, "runs")) >= {"tiny-bn", WALK})
        wait_for(lambda: "walk/through" in fetch(address, "plugin/text/tags").get(WALK, []))
        yield address


def fetch(address: str, path: str, **query: object) -> object:
    url = f"{address}/data/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url) as answer:
        content = answer.read()
    return json.loads(content) if "json" in answer.headers["Content-Type"] else content


@pytest.fixture(scope="module")
def written(tiny_bn):
    return series(tiny_bn.path / "events.out.tfevents")


def test_server_scalars_are_those_written(address, tiny_bn, written):
    tags = set(fetch(address, "plugin/scalars/tags")["tiny-bn"])
    assert tags == {tag for tag, values in written.items() if isinstance(values.get(600), float)}
    rows = [json.loads(line) for line in (tiny_bn.path / "metrics.jsonl").read_text().splitlines()]
    for tag in tags:
        served = fetch(address, "plugin/scalars/scalars", run="tiny-bn", tag=tag)
        assert {step: value for _, step, value in served} == pytest.approx(written[tag])
        group, name = tag.split("/", 1)
        split = {"valid": "valid", "train_pairs": "train"}.get(group)
        if split:
            expected = {row["step"]: row[name] for row in rows if row["split"] == split}
            assert {step: value for _, step, value in served} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("run", ["tiny-bn", WALK])
def test_server_images_are_those_written(address, tiny_bn, run):
    written = series(tiny_bn.path.parent / run / "events.out.tfevents")
    tags = fetch(address, "plugin/images/tags")[run]
    assert set(tags) == {tag for tag in written if re.search(r"/layer-\d+$", tag)}
    for tag in tags:
        listed = fetch(address, "plugin/images/images", run=run, tag=tag, sample=0)
        assert [entry["step"] for entry in listed] == list(written[tag])
        for entry in listed:
            query = dict(urllib.parse.parse_qsl(entry["query"]))
            served = fetch(address, "plugin/images/individualImage", **query)
            assert served == written[tag][entry["step"]]


def test_server_has_texts_layout_and_embeddings(address):
    texts = fetch(address, "plugin/text/tags")
    assert set(texts["tiny-bn"]) == {"config", "samples/train", "samples/valid"}
    samples = fetch(address, "plugin/text/text", run="tiny-bn", tag="samples/valid")
    assert [entry["step"] for entry in samples] == list(range(0, 601, 75))
    assert "<td>আমি মাঠে যাই</td>" in html.unescape(samples[-1]["text"])
    steps = fetch(address, "plugin/text/text", run=WALK, tag="walk/candidates")
    assert "<td><EOS></td>" in html.unescape(steps[-1]["text"])
    layout = fetch(address, "plugin/custom_scalars/layout")["category"]
    loss = layout[0]["chart"][0]
    assert (loss["title"], loss["multiline"]["tag"]) == ("loss", ["train/loss", "valid/loss"])
    embeddings = fetch(address, "plugin/projector/info", run="tiny-bn")["embeddings"]
    assert [each["tensorName"] for each in embeddings] == ["source embeddings", "target embeddings"]
    tokens = fetch(address, "plugin/projector/metadata", run="tiny-bn", name="target embeddings")
    assert "\nআমি\t" in tokens.decode()
    vectors = fetch(address, "plugin/projector/tensor", run="tiny-bn", name="target embeddings")
    assert len(vectors) == 4 * 64 * (len(tokens.decode().splitlines()) - 1)


def test_server_has_hyperparameters_and_final_metrics_in_one_run(address, written):
    question = {
        "experimentName": "", "startIndex": 0, "sliceSize": 10, "colParams": [],
        "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_RUNNING", "STATUS_SUCCESS"],
    }  # fmt: skip
    request = urllib.request.Request(
        f"{address}/data/plugin/hparams/session_groups",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        [group] = json.loads(answer.read())["sessionGroups"]
    assert group["name"] == "tiny-bn"
    assert group["hparams"]["model.d_model"] == "64"
    assert group["hparams"]["training.learning_rate"] == 0.01
    final = {each["name"]["tag"]: each["value"] for each in group["metricValues"]}
    assert final["valid/exact_match"] == pytest.approx(written["valid/exact_match"][600])
    assert {"valid/loss", "valid/bleu", "valid/chrf"} <= set(final)


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    yield page
    page.close()


def test_images_tab_shows_every_evaluation_pixel_by_pixel(address, page):
    page.goto(f"{address}/#images")
    card = page.locator("tf-image-loader").filter(has_text="1 I go to school/cross/layer-0").first
    image, step = card.locator("img"), card.locator(".heading-label", has_text="step ").first
    image.wait_for()
    size = image.evaluate("img => img.decode().then(() => [img.naturalWidth, img.clientWidth])")
    assert size == [350, 350]
    shown = {}
    card.locator("#sliderKnob").first.click()
    for _ in range(9):
        shown[step.inner_text().split()[-1]] = image.get_attribute("src")
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(100)
    assert list(shown) == [str(step) for step in range(600, -1, -75)]
    assert len(set(shown.values())) == 9


@pytest.mark.parametrize(
    ("tab", "words"),
    [
        ("timeseries", ["attention_entropy", "train_pairs", "valid", "walk"]),
        ("custom_scalars", ["loss", "perplexity", "whole sentences exact", "BLEU and chrF"]),
        ("text", ["config", "samples", "walk"]),
        ("hparams", ["model.d_model", "tiny-bn", "valid/loss"]),
    ],
)
def test_tabs_show_what_was_written(address, page, tab, words):
    page.goto(f"{address}/#{tab}")
    for word in words:
        page.get_by_text(word, exact=True).first.wait_for(state="attached", timeout=20_000)


def test_projector_has_a_point_for_each_token(address, page, tiny_bn):
    tokens = (tiny_bn.path / "projector/target.tsv").read_text(encoding="utf-8").splitlines()[1:]
    page.goto(f"{address}/#projector")
    projector = page.frame_locator("iframe").frame_locator("iframe")
    projector.get_by_text(f"Points: {len(tokens)}").wait_for(timeout=20_000)


def test_open_server_follows_a_run_that_was_resumed(tmp_path):
    """The server has read past the truncation; rewritten events must not appear twice."""

    def write(events: EventFile, steps: range) -> None:
        for step in steps:
            events.add(step, scalars({"train/loss": step / 2}))
        events.sync()

    path = tmp_path / "run" / "events.out.tfevents"
    path.parent.mkdir()
    events = EventFile(path, 0)
    write(events, range(1, 4))
    saved = events.sync()
    write(events, range(4, 8))
    events.close()
    with serving(tmp_path, reload_interval=1) as address:
        wait_for(lambda: len(losses(address)) == 7)
        events = EventFile(path, saved)
        write(events, range(4, 12))
        events.close()
        wait_for(lambda: len(losses(address)) == 11)
        assert losses(address) == {step: step / 2 for step in range(1, 12)}


def losses(address: str) -> dict[int, float]:
    if "run" not in fetch(address, "plugin/scalars/tags"):
        return {}
    served = fetch(address, "plugin/scalars/scalars", run="run", tag="train/loss")
    assert len({step for _, step, _ in served}) == len(served)
    return {step: value for _, step, value in served}
