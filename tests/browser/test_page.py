"""The page in a browser shows the numbers and sums of the JSON, and can be navigated."""

import json
import math
import re
from decimal import Decimal

import numpy as np
import pytest

from minitransformer.explain.interventions import Experiment
from minitransformer.explain.page import write_page
from minitransformer.explain.rendering import as_json
from minitransformer.explain.walkthrough import walk_through
from minitransformer.translator import Translator
from tests.support.processes import run
from tests.support.small_runs import translator_for
from tests.support.translator_shapes import RECURRENT_SHAPES, SHAPES, translator_of_shape

pytestmark = pytest.mark.slow
SENTENCES = ("I go to school", "My brother goes to school")
DIGITS = 6


@pytest.fixture(scope="module")
def pages(tmp_path_factory, tiny_bn):
    """Write a page with two sentences and two checkpoints, and one for every shape of model."""
    folder = tmp_path_factory.mktemp("pages")
    translator = Translator.load(tiny_bn.path)
    earlier = Translator.load(tiny_bn.path, checkpoint=525)
    walks = {
        name: [walk_through(each, text) for text in SENTENCES]
        for name, each in (("step 525", earlier), ("step 600", translator))
    }
    write_page(folder / "bangla.html", walks, 3)
    expected = {"bangla": as_json(walks["step 600"])}
    for shape in SHAPES | RECURRENT_SHAPES:
        other = translator_of_shape(shape, folder / "runs")
        walk = walk_through(other, "I go home")
        write_page(folder / f"{shape}.html", {"step 1": [walk]}, DIGITS)
        expected[shape] = as_json([walk])
    without_go = walk_through(other, "I go home", experiment=Experiment(hidden=frozenset({2})))
    write_page(folder / "hidden.html", {"step 1": [without_go]}, DIGITS)
    return folder, expected


@pytest.fixture
def open_page(pages, browser):
    """Open a page; any console message or network request fails the test."""
    problems, opened = [], []

    def opener(name: str, address: str = "", width: int = 1280, height: int = 900, **options):
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:"))
                or problems.append(request.url))  # fmt: skip
        page.goto(f"file://{pages[0]}/{name}.html{address}")
        page.locator("main h2").wait_for()
        opened.append(page)
        return page

    yield opener
    for page in opened:
        page.close()
    assert problems == []


def matrix_texts(page, name: str) -> list[list[str]]:
    rows = page.locator(f"[data-matrix='{name}'] tbody tr")
    return rows.evaluate_all("rows => rows.map(row => [...row.querySelectorAll('td')]"
                             ".map(cell => cell.textContent))")  # fmt: skip


def test_browser_steps_by_slider_buttons_and_keys(open_page):
    page = open_page("bangla")
    description = page.locator("#steps output")
    assert "the encoder reads the source" in description.inner_text()
    page.get_by_role("button", name="step →").click()
    assert "step 1 of 4" in description.inner_text()
    assert "“আমি” is produced" in description.inner_text()
    page.locator("main").focus()
    page.keyboard.press("ArrowRight")
    assert "step 2 of 4" in description.inner_text()
    slider = page.get_by_role("slider", name="Decoding step")
    slider.fill("4")
    assert "“<EOS>” is produced" in description.inner_text()
    page.locator("main").focus()
    page.keyboard.press("ArrowLeft")
    assert "step 3 of 4" in description.inner_text()
    page.wait_for_url("**#step=3**")
    assert page.locator("#tokens [aria-current]").inner_text() == "যাই"


def test_browser_links_to_a_step(open_page):
    page = open_page("bangla", "#step=2&at=cross&sentence=2&checkpoint=1")
    assert page.locator("main h2").inner_text() == "Step 2: Cross-attention"
    assert page.locator("h1").inner_text().startswith("My brother goes to school →")
    assert "step 525" in page.locator("#choices").inner_text()
    assert page.locator("#map a[aria-current]").inner_text() == "Cross-attention"
    other = open_page("bangla", page.url[page.url.index("#") :])
    assert other.locator("main").inner_text() == page.locator("main").inner_text()
    invalid = open_page("bangla", "#step=99&at=nowhere&sentence=x&checkpoint=-3&head=7")
    assert invalid.locator("main h2").inner_text().startswith("Step 4")


def test_browser_next_goes_through_all_stages(open_page):
    page = open_page("bangla")
    titles = [page.locator("main h2").inner_text()]
    while page.locator("button.next").is_enabled():
        page.locator("button.next").click()
        titles.append(page.locator("main h2").inner_text())
        assert len(page.locator("main .lead").inner_text()) > 40
    steps = ["Embedding and position", "Masked self-attention", "Add self-attention",
             "Cross-attention", "Add cross-attention", "Dense head"]  # fmt: skip
    assert titles == [
        "Encoder: Embedding and position", "Encoder: Self-attention",
        "Encoder: Add self-attention",
        *(f"Step {number}: {name}" for number in (1, 2, 3, 4) for name in steps),
    ]  # fmt: skip


def test_browser_chooses_sentence_and_checkpoint(open_page, pages):
    page = open_page("bangla", "#step=1&at=cross")
    assert "আমি" in page.locator("h1").inner_text()
    page.get_by_label("Digits after the point").select_option("6")
    before = matrix_texts(page, "weights")
    page.get_by_label("training step").fill("0")
    page.wait_for_url("**checkpoint=1**")
    assert matrix_texts(page, "weights") != before
    page.get_by_label("Sentence").select_option("1")
    assert "আমার ভাই" in page.locator("h1").inner_text()


def test_browser_draws_bangla_with_the_embedded_font(open_page):
    page = open_page("bangla", "#step=2&at=cross")
    assert page.get_by_role("rowheader", name="আমি → স্কুলে").count() == 1
    assert page.evaluate("document.fonts.check('16px page-font', 'স্কুলে')")
    assert page.evaluate("[...document.fonts].map(font => font.status)") == ["loaded"]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("address", ["#step=0&at=embedding", "#step=2&at=cross", "#step=3&at=head"])
@pytest.mark.parametrize("name", ["bangla", "pre-norm", "gru-bidirectional"])
def test_browser_page_fits_its_width(open_page, name, address, width):
    page = open_page(name, address, width=width, height=800)
    cell = page.locator("table.grid tbody td").first
    cell.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#sum").inner_text()


def flat_keys(steps: list[dict], path: str, name: str) -> np.ndarray:
    """Return the last keys or values of an attention in the JSON."""
    values = [stage[name] for step in steps for stage in step["stages"] if stage["path"] == path]
    return np.array([each for each in values if each is not None][-1])


PARTS = {
    "embedding": {"vectors": "vectors", "positions": "positions", "output": "output"},
    "norm": {"before": "before", "after": "after"},
    "residual": {"states": "states", "update": "update", "total": "total"},
    "feed_forward": {"pre_activation": "pre_activation", "hidden": "hidden", "output": "output"},
    "gru": {"state before": "before", "reset r": "reset", "update z": "update",
            "candidate n": "candidate", "state": "state"},
    "lstm": {"state before": "before", "cell before": "cell_before", "input i": "input",
             "forget f": "forget", "candidate g": "candidate", "output o": "output",
             "cell c": "cell", "state": "state"},
    "output_projection": {"[context ; s]": "joined", "output": "output"},
}  # fmt: skip


def expected_matrices(walk: dict, step: int, stage: dict, head: int) -> dict[str, np.ndarray]:
    """Return the matrices that the page must show for a stage, by name."""
    if stage["kind"] in PARTS:
        parts = PARTS[stage["kind"]].items()
        if stage.get("positions", 1) is None:
            parts = [("vectors", "vectors")]
        return {name: np.array(stage[field]) for name, field in parts}
    if stage["kind"] == "joined":
        first, second = stage["parts"]
        whole = "[context ; s]" if step else "h"
        parts = {first: "first", second: "second", whole: "output"}
        return {name: np.array(stage[field]) for name, field in parts.items()}
    if stage["kind"] == "head":
        names = {"joined": "[context ; s]", "output_projection": "output"}
        before = walk["steps"][step - 1]["stages"][-2]["kind"]
        order = np.argsort(-np.array(stage["logits"]), kind="stable")
        return {
            names.get(before, "state"): np.array([stage["state"]]),
            "logits": np.array([stage["logits"]])[:, order],
        }
    path, steps = stage["path"], walk["steps"][:step]
    names = stage["names"]
    context = "weights · V" if names["query"] == "Q" else "context"
    found = {names["query"]: np.array(stage["query"])[head],
             context: np.array(stage["context"])[head]}  # fmt: skip
    for name in ("key", "value"):
        found[names[name]] = np.array(stage[name])[head] if step == 0 else (
            flat_keys(steps, path, name)[head]
        )  # fmt: skip
    if step == 0:
        found["weights"] = np.array(stage["weights"])[head]
    if np.array(stage["context"]).size != np.array(stage["output"]).size or len(stage["query"]) > 1:
        found["output"] = np.array(stage["output"])
    return found


@pytest.mark.parametrize("shape", SHAPES | RECURRENT_SHAPES)
def test_browser_numbers_and_sums_are_those_of_the_json(open_page, pages, shape):
    [walk] = pages[1][shape]["walkthroughs"]
    page = open_page(shape)
    heads = max(len(stage.get("query", [0])) for stage in walk["encoder"])
    stages = [(0, stage) for stage in walk["encoder"]]
    stages += [(step["number"], stage) for step in walk["steps"][:2] for stage in step["stages"]]
    compared = num_sums = 0
    for step, stage in stages:
        head = (compared + step) % heads if stage["kind"] == "attention" else 0
        if head:
            page.get_by_role("button", name=f"head {head}", exact=True).click()
        for details in page.locator("details.matrix:not([open]) summary").all():
            details.click()
        if (
            stage["kind"] == "attention" and step
        ):  # the row of this step, below those of earlier ones
            name = stage["names"]["weight"].replace("weight", "weights")
            last = [float(text) for text in matrix_texts(page, name)[-1]]
            assert last == pytest.approx(stage["weights"][head][0], abs=0.51 * 10**-DIGITS)
        for name, wanted in expected_matrices(walk, step, stage, head).items():
            texts = matrix_texts(page, name)
            displayed = np.array([[float(text) for text in row] for row in texts])
            assert displayed.shape == wanted.shape, (stage["path"], name)
            assert np.abs(displayed - wanted).max() <= 0.5000001 * 10**-DIGITS, (
                stage["path"],
                name,
            )
            compared += displayed.size
            for row, column in {(0, 0), (wanted.shape[0] - 1, wanted.shape[1] - 1)}:
                rows = page.locator(f"[data-matrix='{name}'] tbody tr")
                rows.nth(row).locator("td").nth(column).click()
                num_sums += check_sum(page, wanted[row, column])
        page.locator("button.next").click()
    assert compared > (600 if shape in RECURRENT_SHAPES else 1000)
    assert num_sums > (10 if shape in RECURRENT_SHAPES else 30)


def check_sum(page, number: float) -> int:
    """Check the panel's number and that its displayed terms add up; return the number of sums."""
    panel = page.locator("#sum")
    result = panel.locator(".result")
    assert float(result.get_attribute("data-value")) == pytest.approx(number, rel=1e-6, abs=1e-9)
    displayed = result.inner_text().split("=")[-1]
    assert float(displayed) == pytest.approx(number, abs=0.51 * 10**-DIGITS + 1e-8)
    table = panel.locator("table").first
    terms = table.locator("td.term").all_inner_texts()
    if not terms:
        return 0
    total = table.locator("td.term-total").inner_text()
    assert sum(map(Decimal, terms)) == Decimal(total)
    rounding = table.locator("tr", has_text="rounding").locator("td.term").all_inner_texts()
    exact = 2e-7 * sum(abs(float(term)) for term in terms)  # rounding of float32
    assert abs(sum(map(float, rounding))) <= (len(terms) / 2 + 1) * 10**-DIGITS + exact
    shares = result.inner_text().split("=")[0].split("/")
    if activation := ACTIVATION.search(result.inner_text()):
        check_activation(*activation.groups(), total)
    elif len(shares) == 2:  # a softmax's sum is its denominator
        assert shares[1].strip() == total
        assert float(shares[0]) / float(total) == pytest.approx(number, abs=2 * 10**-DIGITS)
    else:
        assert total == displayed.strip()
    return 1


ACTIVATION = re.compile(r"(σ|tanh)\((\S+)\) = (\S+)")
OUTPUT_OF_CELL = re.compile(r"(\S+) × tanh\((\S+)\)")
CLICK_ALL = """() => [...document.querySelectorAll(".grid td[tabindex]:not(.masked)")].map(cell => {
  cell.click();
  const panel = document.getElementById("sum");
  const text = (selector) => panel.querySelector(selector)?.textContent ?? "";
  const texts = (box, selector) =>
    [...box.querySelectorAll(selector)].map((each) => each.textContent);
  return {cell: cell.textContent, result: text(".result"),
          formula: text(".result + p:not(.quiet)"),
          tables: [...panel.querySelectorAll("table")].map((table) => ({
            names: texts(table, "th"), terms: texts(table, ".term"),
            total: texts(table, ".term-total")[0], products: texts(table, "td:nth-child(2)")}))};
})"""


def check_activation(name: str, argument: str, displayed: str, total: str) -> None:
    """Check that σ or tanh of the displayed sum is the displayed number."""
    assert argument == total
    function = math.tanh if name == "tanh" else lambda number: 1 / (1 + math.exp(-number))
    assert float(displayed) == pytest.approx(
        function(float(argument)), abs=0.51 * 10**-DIGITS + 2e-7
    )


def check_panel(panel: dict) -> str:
    """Check that the panel gives the number of its cell; return the form of the explanation."""
    for table in panel["tables"]:
        terms = dict(zip(table["names"], map(Decimal, table["terms"]), strict=False))
        assert sum(map(Decimal, table["terms"])) == Decimal(table["total"]), panel
        exact = 2e-7 * sum(abs(float(term)) for term in terms.values())
        assert abs(terms.get("rounding", 0)) <= (len(terms) / 2 + 1) * 10**-DIGITS + exact, panel
    number, result = float(panel["cell"]), panel["result"]
    if activation := ACTIVATION.search(result):
        assert activation[3] == panel["cell"]
        check_activation(*activation.groups(), panel["tables"][0]["total"])
        if len(panel["tables"]) == 2:  # r × u, and u
            last = [text for text in panel["tables"][0]["products"] if text][-1]
            assert last.split(" × ")[1] == panel["tables"][1]["total"]
        return activation[1]
    if panel["tables"] and "/" in result:
        own, whole = (float(part) for part in result.split("=")[0].split("/"))
        assert own / whole == pytest.approx(number, abs=2 * 10**-DIGITS)
        return "share"
    if panel["tables"]:
        assert panel["tables"][0]["total"] == panel["cell"]
        return "sum"
    if product := OUTPUT_OF_CELL.fullmatch(panel["formula"]):
        expected = float(product[1]) * math.tanh(float(product[2]))
        assert number == pytest.approx(expected, abs=0.51 * 10**-DIGITS + 2e-7)
        return "o × tanh(c)"
    assert float(panel["formula"]) == pytest.approx(number, abs=0.51 * 10**-DIGITS)
    return "elsewhere"


@pytest.mark.parametrize("shape", [*RECURRENT_SHAPES, "hidden"])
def test_browser_explains_every_number_of_a_recurrent_model(open_page, shape):
    page = open_page(shape)
    forms, num_cells = set(), 0
    while "Step 3" not in page.locator("main h2").inner_text():
        for panel in page.evaluate(CLICK_ALL):
            forms.add(check_panel(panel))
            num_cells += 1
        page.locator("button.next").click()
    assert num_cells > 600
    expected = {"σ", "tanh", "sum", "elsewhere"}
    expected |= {"share"} if shape in ("gru", "gru-bidirectional", "lstm") else set()
    assert forms == expected | ({"o × tanh(c)"} if "lstm" in shape else set())


def test_browser_names_the_initial_state_of_the_decoder(open_page, pages):
    [walk] = pages[1]["gru-bidirectional"]["walkthroughs"]
    states = {stage["path"]: stage.get("state") for stage in walk["encoder"]}
    page = open_page("gru-bidirectional", "#step=1&at=rnn.1")
    cells = page.locator("[data-matrix='state before'] tbody td")
    for column, direction, word, last in (
        (3, "forward_rnn", "home", -1),
        (11, "backward_rnn", "I", 0),
    ):
        cells.nth(column).click()
        explanation = page.locator("#sum").inner_text()
        assert f"number 3 of the encoder's state after “{word}”" in explanation
        number = states[f"encoder.layers.1.{direction}"][last][3]
        assert float(cells.nth(column).inner_text()) == pytest.approx(number, abs=10**-DIGITS)
    note = page.locator("#map .quiet").inner_text()
    assert note == "in each layer, the decoder starts from the final states of both directions"
    assert page.locator("#map svg path.tip").count() == 3  # both layers, and the attention
    page.get_by_role("button", name="step →").click()
    cells.nth(3).click()
    assert "The state after “<EOS>”, from step 1." in page.locator("#sum").inner_text()
    assert page.locator("#map svg path.tip").count() == 1


def test_browser_next_goes_through_a_recurrent_model(open_page):
    page = open_page("lstm")
    titles = [page.locator("main h2").inner_text()]
    while "Step 2" not in titles[-1]:
        page.locator("button.next").click()
        titles.append(page.locator("main h2").inner_text())
        assert len(page.locator("main .lead").inner_text()) > 40
    steps = ["Embedding", "LSTM, layer 0", "LSTM, layer 1", "Attention", "[context ; s]",
             "Output projection", "Dense head"]  # fmt: skip
    assert titles == [
        "Encoder: Embedding", "Encoder: LSTM, left to right, layer 0",
        "Encoder: LSTM, left to right, layer 1",
        *(f"Step 1: {name}" for name in steps), "Step 2: Embedding",
    ]  # fmt: skip
    linked = open_page("lstm", "#step=2&at=cross")
    assert linked.locator("main h2").inner_text() == "Step 2: Attention"


def test_browser_shows_no_attention_without_one(open_page):
    page = open_page("gru-none", "#step=2&at=head")
    assert "ttention" not in page.locator("body").inner_text()
    page.locator("#tokens a.token").last.click()
    page.locator("main h2", has_text="GRU").wait_for()
    hidden = open_page("hidden", "#step=0&at=rnn")
    hidden.locator("[data-matrix='reset r'] td.masked").first.click()
    assert "it is not read" in hidden.locator("#sum").inner_text()
    rows = matrix_texts(hidden, "state")
    assert rows[1] == rows[0] != rows[2]


def test_browser_selects_cells_with_the_keyboard(open_page):
    page = open_page("bangla", "#step=2&at=cross")
    page.locator("[data-matrix='weights'] td[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    chosen = page.locator("td[aria-selected='true']")
    assert chosen.locator("xpath=preceding-sibling::td").count() == 3
    assert chosen.locator("xpath=../preceding-sibling::tr[td]").count() == 1
    assert float(chosen.inner_text()) > 0.9  # আমি is followed by স্কুলে
    assert "Weight of “school” for “আমি”" in page.locator("#sum").inner_text()
    page.keyboard.press("ArrowRight")  # at the last column, neither the cell nor the step changes
    assert "step 2 of 4" in page.locator("#steps output").inner_text()


def test_browser_scrolls_cells_out_from_under_the_panel(open_page):
    wide = open_page("bangla", "#step=1&at=cross", width=1200, height=500)
    cut_off = wide.locator("[data-matrix='Q'] .scroll")
    cut_off.scroll_into_view_if_needed()
    before = wide.evaluate("scrollY")
    box = cut_off.bounding_box()
    wide.mouse.click(box["x"] + box["width"] - 8, box["y"] + box["height"] - 12)
    assert wide.locator("td[aria-selected='true']").count() == 1
    assert wide.evaluate("scrollY") == before
    phone = open_page("bangla", "#step=1&at=cross", width=390, height=700)
    cell = phone.locator("[data-matrix='K'] tbody tr").last.locator("td").first
    cell.click()
    box, panel = cell.bounding_box(), phone.locator("#sum").bounding_box()
    assert box["y"] + box["height"] <= panel["y"]


def test_browser_chooses_head_scores_and_digits_and_saves_a_picture(open_page, pages):
    page = open_page("pre-norm", "#step=0&at=self")
    assert page.get_by_role("button", name="head 0").get_attribute("aria-pressed") == "true"
    first = matrix_texts(page, "weights")
    page.get_by_role("button", name="head 1").click()
    page.wait_for_url("**head=1**")
    assert matrix_texts(page, "weights") != first
    page.get_by_role("button", name="all").click()
    assert page.locator(".many figure").count() == 4
    page.get_by_role("button", name="head 0", exact=True).click()
    page.get_by_role("button", name="raw scores").click()
    [stage] = [each for each in pages[1]["pre-norm"]["walkthroughs"][0]["encoder"]
               if each["path"] == "encoder.layers.0.self_attention"]  # fmt: skip
    displayed = np.array(matrix_texts(page, "raw scores"), dtype=float)
    assert np.abs(displayed - np.array(stage["scores"])[0]).max() < 10**-DIGITS
    page.get_by_label("Digits after the point").select_option("2")
    assert len(matrix_texts(page, "raw scores")[0][0].split(".")[1]) == 2
    with page.expect_download() as download:
        page.get_by_role("button", name="save SVG of raw scores").click()
    picture = download.value.path().read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert ">home</text>" in picture


def test_browser_keeps_the_focus(open_page):
    page = open_page("pre-norm", "#step=1&at=self")

    def focused() -> str:
        return page.evaluate("document.activeElement.textContent")

    page.get_by_role("button", name="head 1", exact=True).press("Enter")
    assert focused() == "head 1"
    page.get_by_role("button", name="raw scores", exact=True).press("Space")
    assert focused() == "raw scores"
    page.locator("#map a.cross").first.press("Enter")
    page.locator("main h2", has_text="Step 1: Cross-attention, layer 0").wait_for()
    assert focused() == "Cross-attention"
    page.get_by_role("button", name="← step").press("Enter")  # to the encoder, which is the first
    assert page.evaluate("document.activeElement.type") == "range"
    page.get_by_role("button", name="step →").press("Enter")
    assert focused() == "step →"
    page.locator("button.next").press("Enter")  # the heading of the next stage gets the focus
    assert focused() == "Step 1: Add cross-attention, layer 0"
    assert page.locator("main h2").bounding_box()["y"] > page.locator(".top").bounding_box()["y"]


def test_browser_works_without_history(pages, browser):
    """Browsers limit the number of new addresses; the selection must not depend on them."""
    page = browser.new_page()
    page.goto(f"file://{pages[0]}/bangla.html#step=0&at=self")
    page.evaluate("""() => {
      history.pushState = history.replaceState = () => { throw new DOMException("too many"); };
      for (let press = 0; press < 301; press++) navigate({step: press % 2 ? 2 : 3}, {slides: true});
    }""")
    assert "step 3 of 4" in page.locator("#steps output").inner_text()
    page.locator("button.next").click()
    assert page.locator("main h2").inner_text() == "Step 3: Add self-attention"
    page.close()


def test_browser_goes_back_to_the_stage_before(open_page):
    page = open_page("bangla", "#step=1&at=self")
    page.locator("button.next").click()
    page.wait_for_url("**at=self.0.add**")
    page.go_back()
    page.locator("main h2", has_text="Masked self-attention").wait_for()


def test_browser_returns_to_a_stage_that_one_step_lacks(open_page):
    page = open_page("bangla", "#step=1&at=cross")
    for key, title in (
        ("ArrowLeft", "Encoder: Embedding and position"),
        ("ArrowRight", "Step 1: Cross-attention"),
    ):
        page.locator("main").focus()
        page.keyboard.press(key)
        assert page.locator("main h2").inner_text() == title


def test_browser_explains_candidates(open_page):
    page = open_page("bangla", "#step=2&at=head")
    for part, text in (
        ("probabilities", "softmax of all logits"),
        ("logits", "times its row of the head"),
    ):
        page.locator(f".bars [data-part={part}]").nth(1).click()
        assert text in page.locator("#sum").inner_text()
        terms = page.locator("#sum td.term").all_inner_texts()
        assert sum(map(Decimal, terms)) == Decimal(page.locator("#sum td.term-total").inner_text())


def test_browser_shows_one_word_right_to_left_and_without_javascript(tiny_bn, tmp_path, browser):
    walk = walk_through(Translator.load(tiny_bn.path), "school")
    write_page(tmp_path / "one.html", {"step 600": [walk]}, 3)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"file://{tmp_path}/one.html#step=1&at=head")
    page.locator("td.masked").first.click()
    assert (
        page.locator("#sum").inner_text() == "Without this word nothing would be left to translate."
    )
    page.goto(f"file://{tmp_path}/one.html#step=1&at=cross")
    words = page.evaluate("""() => {
      document.body.append(wordElement(["שלום", "עולם"]));
      const parts = document.body.lastChild.querySelectorAll("bdi");
      return [...parts].map((each) => each.getBoundingClientRect().left);
    }""")
    assert words[0] < words[1]  # the arrow points from the first to the second
    page.emulate_media(media="print")
    assert (
        page.locator(".tokens div").last.evaluate("box => box.scrollHeight - box.clientHeight") <= 0
    )
    page.close()
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"file://{tmp_path}/one.html")
    assert page.locator("noscript pre").is_visible()
    assert not page.locator("#sum").is_visible()
    page.close()


def test_browser_copies_csv(open_page, pages):
    page = open_page("bangla", "#step=1&at=cross")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy CSV of weights", exact=True).click()
    page.locator("button", has_text="copied").wait_for()
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0] == '"","I","go","to","school"'
    name, *numbers = lines[1].split(",")
    assert name == '"<EOS> → আমি"'
    [stage] = [each for each in pages[1]["bangla"]["walkthroughs"][0]["steps"][0]["stages"]
               if each["path"] == "decoder.layers.0.cross_attention"]  # fmt: skip
    assert [float(number) for number in numbers] == pytest.approx(stage["weights"][0][0], rel=1e-6)


def test_browser_page_of_a_large_model_has_no_matrices(browser, tmp_path):
    translator = translator_for(
        tmp_path / "run", "model.d_model=128", "model.num_heads=4", "model.num_encoder_layers=4",
        "model.num_decoder_layers=4", "model.d_ff=256", "model.norm=pre", "data.limit=0",
        "model.output_projection=true", "model.max_length=40",
    )  # fmt: skip
    walk = walk_through(translator, " ".join(["My brother has a red car"] * 7))
    write_page(tmp_path / "large.html", {"step 1": [walk]}, 3)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"file://{tmp_path}/large.html#step=30&at=cross.3")
    page.locator("table.grid.dense").wait_for()
    for name, text in (("Q", "more than 100,000 parameters"), ("weights · V", "weights times V")):
        page.locator(f"[data-matrix='{name}'] td[tabindex]").first.click()
        assert text in page.locator("#sum").inner_text()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", ["#step=0&at=self", "#step=2&at=cross", "#step=3&at=head"])
def test_browser_page_is_accessible(open_page, axe, address, scheme):
    page = open_page("bangla", address, color_scheme=scheme, bypass_csp=True)
    page.locator("table.grid tbody td").first.click()
    assert serious(page, axe) == []


def test_browser_worked_pages_are_accessible_and_fit_a_phone(tmp_path, browser, axe):
    assert run("worked", "list", "--to", "all.html", folder=tmp_path).code == 0
    page = browser.new_page(viewport={"width": 390, "height": 800}, bypass_csp=True)
    page.goto(f"file://{tmp_path}/all.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious(page, axe) == []
    page.close()


def serious(page, axe: str) -> list[str]:
    page.add_script_tag(content=axe)
    found = page.evaluate("axe.run().then(results => JSON.stringify(results.violations))")
    return [
        f"{each['id']}: {node['html'][:120]}"
        for each in json.loads(found)
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]
