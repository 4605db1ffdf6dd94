"""In a user's own sheet slips are found by cell, rounding is accepted, errors have a position."""

import copy

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from minitransformer.errors import UserError
from minitransformer.worked.documents import html_page, latex_document, sheet_json, sheet_markdown
from minitransformer.worked.engine import check_sheet
from minitransformer.worked.reader import read_sheet
from minitransformer.worked.report import sheet_text
from tests.support.own_sheets import FULL_SHEET, HOMEWORK

PRINTED = {
    "Q": ("[[1, 2], [0, 1], [1, 3]]", (3, 2)),
    "K": ("[[0, 1], [1, 1], [1, 2]]", (3, 2)),
    "V": ("[[2, 0], [1, 3], [3, 3]]", (3, 2)),
    "E": ("[[2, 3, 5], [1, 1, 2], [3, 4, 7]]", (3, 3)),
    "S": ("[[1.41, 2.12, 3.54], [0.71, 0.71, 1.41], [2.12, 2.83, 4.95]]", (3, 3)),
    "A": ("[[0.09, 0.18, 0.73], [0.25, 0.25, 0.50], [0.05, 0.10, 0.85]]", (3, 3)),
    "Y": ("[[2.55, 2.73], [2.25, 2.25], [2.75, 2.85]]", (3, 2)),
}


def worked(text: str):
    return check_sheet(read_sheet(text, "mine.yaml", "mine"))


def test_own_sheet_rounding_is_not_a_slip():
    result = worked(HOMEWORK)
    assert result.is_explained
    assert result.counts()["rounded"] > 0
    assert "first slip" not in sheet_text(result)


def with_a_wrong_cell(step: str, row: int, column: int) -> str:
    old, (_, columns) = PRINTED[step]
    cells = old.replace("[", "").replace("]", "").split(", ")
    index = (row - 1) * columns + column - 1
    cells[index] = "9" + cells[index]
    rows = [", ".join(cells[start : start + columns]) for start in range(0, len(cells), columns)]
    assert HOMEWORK.count(f"printed: {old}") == 1
    return HOMEWORK.replace(
        f"printed: {old}", f"printed: [{', '.join(f'[{row}]' for row in rows)}]"
    )


@pytest.mark.parametrize(
    ("step", "row", "column"),
    [
        (step, row, column)
        for step, (_, (rows, columns)) in PRINTED.items()
        for row in range(1, rows + 1)
        for column in range(1, columns + 1)
    ],
)
def test_own_sheet_wrong_cell_is_found(step, row, column):
    result = worked(with_a_wrong_cell(step, row, column))
    assert not result.is_explained
    assert result.counts()["unexplained"] == 1
    assert f"first slip: step {step}, cell [{row},{column}]: printed 9" in sheet_text(result)


def test_own_sheet_slip_is_told_from_what_follows_from_it():
    # 2·2 + 1·1 written as 6 instead of 5, and used in all later steps.
    text = HOMEWORK.replace("[[2, 3, 5],", "[[2, 3, 6],")
    text = text.replace("[[1.41, 2.12, 3.54],", "[[1.41, 2.12, 4.24],")
    text = text.replace("[[0.09, 0.18, 0.73],", "[[0.05, 0.10, 0.85],")
    text = text.replace("[[2.55, 2.73],", "[[2.75, 2.85],")
    result = worked(text)
    hows = {
        each.step.full_name(cell): verdict.text
        for each in result.steps
        for cell, verdict in each.verdicts.items()
        if verdict.category in ("unexplained", "errata_propagated")
    }
    assert hows == {
        "E[1,3]": "unexplained",
        "S[1,3]": "follows E[1,3] nearest",
        "A[1,1]": "follows E[1,3] nearest",
        "A[1,2]": "follows E[1,3] nearest",
        "A[1,3]": "follows E[1,3] nearest",
        "Y[1,1]": "follows E[1,3] nearest",
        "Y[1,2]": "follows E[1,3] nearest",
    }
    shown = sheet_text(result)
    assert "first slip: step E, cell [1,3]: printed 6, right 5" in shown
    assert "merely follow from it: S[1,3], A[1,1], A[1,2], A[1,3], Y[1,1], Y[1,2]" in shown


def test_rounding_rule_holds_for_a_whole_sheet():
    truncated = HOMEWORK.replace("2.83, 4.95", "2.82, 4.94").replace("3.54", "3.53")
    assert not worked(truncated).is_explained
    only_scores = "rounding: truncated\n" + truncated[: truncated.index("  - name: A")]
    only_scores = only_scores.replace("0.71, 0.71", "0.70, 0.70")
    assert worked(only_scores).is_explained
    assert not worked(only_scores.replace("2.82", "2.83")).is_explained


def rounded_rows(values: torch.Tensor, decimals: int) -> tuple[str, torch.Tensor]:
    texts = [[f"{value:.{decimals}f}" for value in row] for row in values.tolist()]
    numbers = torch.tensor([[float(text) for text in row] for row in texts], dtype=torch.float64)
    return "[" + ", ".join(f"[{', '.join(row)}]" for row in texts) + "]", numbers


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_any_rounded_calculation_is_explained(seed, decimals, size, from_rounded):
    """Ties are included, and later steps use either rounded or exact numbers."""
    torch.manual_seed(seed)
    x = torch.randint(-9, 10, (size, 3)).double() / 4
    w = torch.randint(-9, 10, (3, 3)).double() / 4
    lines = []
    values = {"X": x, "W": w}
    for name, formula, compute in (
        ("Q", "times(X, W)", lambda: values["X"] @ values["W"]),
        ("E", "dot_scores(Q, X)", lambda: values["Q"] @ values["X"].T),
        ("A", "softmax(E)", lambda: values["E"].softmax(-1)),
        ("Y", "times(A, X)", lambda: values["A"] @ values["X"]),
    ):
        exact = compute()
        text, numbers = rounded_rows(exact, decimals)
        values[name] = numbers if from_rounded else exact
        lines.append(f"  - {{name: {name}, compute: '{formula}', printed: {text}}}")
    sheet = f"given: {{X: {x.tolist()}, W: {w.tolist()}}}\nsteps:\n" + "\n".join(lines)
    assert worked(sheet).is_explained


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("times(X, W_Q)", "times(W_Q, X)"), "step 'Q': times(W_Q, X): 2×2 and 3×2 cannot be"),
        (("dot_scores(Q, K)", "dot_scores(Q, E)"), "step 'E': dot_scores(Q, E): no matrix 'E'"),
        (("softmax(S)", "softmax(SS)"), "step 'A': softmax(SS): no matrix 'SS'"),
        (("softmax(S)", "sofmax(S)"), "no operation 'sofmax': did you mean 'softmax'?"),
        (("softmax(S)", "softmax(S"), "step 6 'A': compute: 'softmax(S': not a formula"),
        (("softmax(S)", "S * 2"), "'S * 2' is written with an operation: times(A, B)"),
        (("softmax(S)", "softmax(S, 3)"), "step 'A': softmax(S, 3): write it as softmax(S)"),
        (("  W_K: [[0, 1], [1, 1]]\n", ""), "step 'K': times(X, W_K): no matrix 'W_K'"),
        (("[[0, 1], [1, 1]]", "[[0, one], [1, 1]]"), "given W_K [1,2]: expected a number"),
        (("[2, 3, 5]", "[2, three, 5]"), "step 4 'E': printed [1,2]: expected a number"),
        (("[2, 3, 5]", "[2, 3]"), "rows must be of equal length; they have 2, 3, 3 numbers"),
        (("[[2, 3, 5], ", "["), "step 'E': printed is 2×3, dot_scores(Q, K) is 3×3"),
        (("name: E", "name: Q"), "duplicate name 'Q'"),
        (("name: E", "name: E 1"), "step 4 'E 1': a name is letters, digits and _"),
        (("name: E", "nam: E"), "step 4: unknown key 'nam': did you mean 'name'?"),
        (("title: Homework", "rounding: up"), "rounding: choose nearest, truncated, any; got 'up'"),
        (("steps:", "stepz:"), "unknown key 'stepz': did you mean 'steps'?"),
        (("    compute: times(X, W_Q)\n", ""), "step 1 'Q': has neither compute nor text"),
        (("X: [[1, 0]", "X: [[1e999, 0]"), "given X [1,1]: expected a number such as"),
        (("softmax(S)", "__import__('os')"), "there is no operation '__import__'"),
        (("softmax(S)", "X.T"), "'X.T' is neither a call, a name nor a number"),
        (("softmax(S)", "root(" * 300), "is too long"),
        (("softmax(S)", "row(S, 0)"), "row of 3×3: expected a whole number from 1 to 3, got 0"),
        (("softmax(S)", "row(S, one)"), "no matrix 'one'"),
        (("softmax(S)", "output_shape('mlp', 'fc9')"), "'mlp' has no layer 'fc9' (available: "),
        (("softmax(S)", "softmax(S, masked=true)"), "write True, with a capital"),
        (("softmax(S)", "masked(row(S, 1))"), "scores of all tokens are square; these are 1×3"),
        (("softmax(S)", "sinusoid(1.5, 4)"), "position: expected a whole number from 0"),
        (("softmax(S)", "sinusoid(1, 3)"), "width: expected an even number, got 3"),
        (("softmax(S)", "scaled(S, -4)"), "must be a positive number"),
        (("softmax(S)", "widths('mlp')"), "'mlp' is not recurrent"),
        (("softmax(S)", "product(S, X)"), "3×3 times, number by number, 3×2: the sizes differ"),
        (("softmax(S)", "plus('a', 'b')"), "'a' is a text, not a matrix"),
        (("softmax(S)", "dot_scores(K, Q, Q)"), "write it as dot_scores(Q, K)"),
        (("[[2, 0], [1, 3], [3, 3]]", "[[2, 1, 3], [0, 3, 3]]"), "it seems to be transposed"),
        (("title: Homework", "repeats: let-go"), "there is no sheet 'let-go': did you mean 'lets"),
        (("title: Homework", "given: 5"), "duplicate key 'given'"),
    ],
)  # fmt: skip
def test_sheet_error_names_its_position(change, expected):
    assert change[0] in HOMEWORK
    with pytest.raises(UserError) as caught:
        worked(HOMEWORK.replace(*change, 1))
    message = str(caught.value)
    assert expected in message
    assert message.startswith("mine.yaml:")
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        "", "5", "[]", "steps: 3", "steps: []", "steps: [3]", "steps: [{}]", "steps: [{a: b}]",
        "given: []\nsteps: [{name: Q, compute: Q}]", "a: &b 1", "\x00",
        "slips: 3\nsteps: [{text: x}]", "steps: [{text: x}]\nslips: [{step: y}]",
        "steps: [{text: x, scan: 3}]", "steps: [{text: x, decimals: -1}]",
        "steps: [{text: x, also: {a: b}}]", "steps: [{text: x}]\nmodel: {weights: {}}",
        "steps: [{text: x}]\nmodel: {weights: {a: b}, source: {a: b}, target: {a: b}, start: a}",
        "steps: [{text: x}]\nrun: {config: x}",
        "steps: [{text: x, uncheckable: {cells: [[1, 1]]}}]",
        "given: {X: [[1]]}\nsteps: [{name: Q, compute: X, traced: a.b, printed: 1}]",
        "given: {X: [[1]]}\nsteps: [{name: Q, compute: X, printed: {a: b}}]",
        "given: {X: [[1]]}\nsteps: [{name: Q, compute: X, printed: 1, verdict: {a: b}}]",
        "given: {X: [[1]]}\nsteps: [{name: Q, compute: X, printed: 1, verdict: [[a, b]]}]",
        "given: {X: [[1]]}\nsteps: [{name: Q, compute: [X], printed: 1}]",
        "given: {X: [[1]]}\nsteps: [{name: Q, compute: 'identity(100000000)'}]",
    ],
)  # fmt: skip
def test_malformed_sheet_is_refused_in_one_line(text):
    with pytest.raises(UserError) as caught:
        worked(text)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def hows(text: str) -> dict[str, str]:
    """Return the verdict on every wrong number."""
    return {
        each.step.full_name(cell): verdict.text
        for each in worked(text).steps
        for cell, verdict in each.verdicts.items()
        if verdict.category not in ("agrees", "rounded", "ocr", "not_checkable")
    }


def steps(*lines: str, given: str = "a: [1, 2, 4]", rounding: str = "nearest") -> str:
    listed = "\n".join(f"  - {{{line}}}" for line in lines)
    return f"rounding: {rounding}\ngiven: {{{given}}}\nsteps:\n{listed}\n"


@pytest.mark.parametrize(
    ("sheet", "wrong"),
    [
        (  # an unprinted step between a slip and what follows from it
            steps(
                "name: Q, compute: 'times(X, W)', printed: [[1, 1], [0, 3]]",
                "name: E, compute: 'dot_scores(Q, X)'",
                "name: A, compute: 'softmax(scaled(E, 2))', printed: [[0.33, 0.67], [0.01, 0.99]]",
                given="X: [[1, 0], [0, 2]], W: [[1, 1], [0, 1]]",
            ),
            {"Q[2,2]": "unexplained", "A[2,1]": "follows Q[2,2] nearest",
             "A[2,2]": "follows Q[2,2] nearest"},
        ),
        (  # a second slip in what follows from the first, whose result is used later
            steps("name: F, compute: a, printed: [1, 3, 4]",
                  "name: G, compute: 'product(F, 10)', printed: [10, 40, 40]",
                  "name: H, compute: 'product(G, 10)', printed: [100, 300, 400]"),
            {"F[2]": "unexplained", "G[2]": "unexplained",
             "H[2]": "follows F[2] corrected nearest"},
        ),
        (  # a slip that is not used later: nothing follows
            steps("name: F, compute: a, printed: [1, 3, 4]",
                  "name: G, compute: 'product(F, 10)', printed: [10, 20, 40]"),
            {"F[2]": "unexplained"},
        ),
        (  # the same with truncation: the right number is 2.6, not 2.7
            steps("name: Q, compute: a, printed: 9.6",
                  "name: Y, compute: 'product(Q, 100)', printed: 260",
                  given="a: 2.67", rounding="truncated"),
            {"Q[1]": "unexplained"},
        ),
        (  # later steps use the slip, and intermediate results are not rounded
            steps("name: s, compute: 'scaled(a, 2)', printed: [0.71, 1.41, 2.38]",
                  "name: p, compute: 'softmax(s)', printed: [0.12, 0.24, 0.64]",
                  "name: c, compute: 'times(p, h)', printed: [13.95, 21.56]",
                  given="a: [1, 2, 4], h: [[10, 0], [0, 10], [20, 30]]"),
            {"s[3]": "unexplained", "p[1]": "follows s[3] nearest",
             "p[2]": "follows s[3] nearest", "p[3]": "follows s[3] nearest",
             "c[1]": "follows s[3] carried nearest", "c[2]": "follows s[3] carried nearest"},
        ),
        (  # two slips that only together explain a printed number
            steps("name: F, compute: a, printed: [1.2, 2.2, 4]",
                  "name: G, compute: 'total(F)', printed: 7.4"),
            {"F[1]": "unexplained", "F[2]": "unexplained",
             "G[1]": "follows F[1]+F[2] nearest"},
        ),
        (  # a reprinted slip is not a second one
            steps("name: F, compute: a, printed: [1, 3, 4]",
                  "name: H, compute: F, printed: [1, 3, 4], reprint: true"),
            {"F[2]": "unexplained", "H[2]": "follows F[2] nearest"},
        ),
        (  # among numbers with decimals, 0 and 1 are not accepted as rounded
            steps("name: F, compute: 'softmax(a)', printed: [0.04, 0, 1]"),
            {"F[2]": "unexplained", "F[3]": "unexplained"},
        ),
        (  # unless the step has decimals: 0
            steps("name: F, compute: 'softmax(a)', printed: [0.04, 0, 1], decimals: 0"), {},
        ),
        (  # an empty cell is not a slip
            steps("name: F, compute: a, printed: [1, '?', 4]",
                  "name: G, compute: 'product(F, 10)', printed: [10, 20, 40]"), {},
        ),
        (  # a slip is followed through an empty cell as through an unprinted step
            steps("name: F, compute: 'times(x, W)', printed: [4, 6]",
                  "name: G, compute: 'times(F, W)', printed: [14, '?']",
                  "name: H, compute: 'plus(G, x)', printed: [15, 18]",
                  given="x: [1, 2], W: [[2, 1], [1, 2]]"),
            {"F[2]": "unexplained", "G[1]": "follows F[2] nearest",
             "H[1]": "follows F[2] nearest", "H[2]": "follows F[2] nearest"},
        ),
        (steps("name: F, compute: 'product(a, 10000000000)', printed: [10000000005, 2e10, 4e10]"),
         {"F[1]": "unexplained"}),
        (  # a slip that the sheet declares
            steps("name: F, compute: a, printed: [1, 3, 4]",
                  "name: G, compute: 'product(F, 10)', printed: [10, 30, 40]")
            + "slips: [{number: 7, step: F, cells: [2], wrote: 3, right: 2, as: 'entry(a, 1, 2)'}]",
            {"F[2]": "unexplained", "G[2]": "follows F[2] nearest"},
        ),
        (
            steps("name: F, compute: a, printed: [1, 3, 4]",
                  "name: G, compute: 'product(F, 10)', printed: [10, 30, 40]")
            + "slips: [{number: 7, step: F, cells: [2], wrote: 3, right: 2, as: 'root(9)'}]",
            {"F[2]": "slip 7", "G[2]": "follows 7 nearest"},
        ),
        (  # cells declared as scan damage or uncheckable
            steps("name: F, compute: a, printed: [1, 2, 4], scan: [{cell: 2, shows: Z}]",
                  "name: G, compute: 'product(F, 2)', printed: [2, 9, 8], uncheckable: {cells: 2}"),
            {},
        ),
    ],
)  # fmt: skip
def test_sheet_gets_the_verdict_of_each_kind(sheet, wrong):
    assert hows(sheet) == wrong


def test_summary_lists_slips_and_truncation():
    two = steps(
        "name: F, compute: a, printed: [1, 3, 5]",
        "name: G, compute: 'product(F, 10)', printed: [10, 30, 50]",
    )
    shown = sheet_text(worked(two))
    assert shown.endswith(
        "6 values: 2 agree, 2 wrong because of an earlier slip, 2 slips\n"
        "first slip: step F, cell [2]: printed 3, right 2\n"
        "merely follow from it: G[2]\nother slips: F[3]\nmerely follow from those: G[3]"
    )
    cut = steps("name: S, compute: 'scaled(a, 2)', printed: [0.70, 1.41, 2.82]")
    assert "these numbers are truncated, not rounded: put rounding: truncated into the sheet" in (
        sheet_text(worked(cut))
    )


def test_statement_without_check_never_agrees():
    result = worked("steps: [{name: s, text: The moon is cheese}]")
    assert result.steps[0].statement == "not checkable"
    claimed = worked("steps: [{name: s, text: The moon is cheese, verdict: agrees}]")
    assert claimed.errors == ["s: the sheet claims 'agrees', the verdict is 'not checkable'"]
    checked = worked("given: {a: 1}\nsteps: [{name: s, text: one is two, check: 'same(a, 2)'}]")
    assert checked.steps[0].statement == "unexplained"


@pytest.mark.slow
def test_sheet_with_a_wrong_type_anywhere_is_refused_in_one_line():
    """Replace every value of a sheet that has all keys by every other kind of value."""
    full = yaml.load(FULL_SHEET, Loader=yaml.BaseLoader)
    assert worked(FULL_SHEET).is_explained
    tried = 0
    for path in paths(full):
        for wrong in ("", "x", [], [["1"]], {"x": "y"}):
            changed = copy.deepcopy(full)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = wrong
            text = yaml.dump(changed)
            try:
                result = worked(text)
                for render in (sheet_text, sheet_json, sheet_markdown):
                    render(result)
                latex_document([result])
                html_page([result])
            except UserError as error:
                message = str(error)
                assert "\n" not in message
                assert message.startswith("mine.yaml"), message
            tried += 1
    assert tried > 350


def paths(data, path=()):
    """Yield the path of everything inside nested lists and mappings."""
    if path:
        yield path
    keys = range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ()
    for key in keys:
        yield from paths(data[key], (*path, key))
