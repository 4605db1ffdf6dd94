"""Every printed number of the hand-worked sheets is compared with our own computation."""

import dataclasses
from collections import Counter

import pytest
import torch

from minitransformer.checkpoint import read_tensors
from minitransformer.training.resume import WEIGHTS
from minitransformer.worked.engine import CATEGORIES, Calculation, check_sheet
from minitransformer.worked.reader import SHEETS, SHIPPED, load_shipped
from minitransformer.worked.sheet import read_number
from minitransformer.worked.sheet_model import sheet_weights, trace_sheet

COUNTED = [name for name in SHIPPED if name != "lets-go-as-printed"]


@pytest.fixture(scope="module")
def results():
    return {name: check_sheet(load_shipped(name)) for name in SHIPPED}


def total(results, *, reprints=False):
    counts = sum((results[name].counts(reprints=reprints) for name in COUNTED), Counter())
    return [counts[category] for category in CATEGORIES]


def test_first_prints_have_the_stated_counts_of_verdicts(results):
    # agrees, rounded, slips, what follows from them, scan damage, not checkable, unexplained
    assert total(results) == [286, 265, 33, 29, 18, 7, 0]
    assert sum(total(results)) == 638


def test_reprints_have_the_stated_counts_of_verdicts(results):
    assert total(results, reprints=True) == [203, 86, 18, 12, 11, 0, 0]


def test_shipped_sheets_have_no_errors(results):
    assert [checked.errors for checked in results.values()] == [[]] * len(SHIPPED)
    assert all(checked.is_explained for checked in results.values())
    assert {path.stem for path in SHEETS.glob("*.yaml")} == set(SHIPPED)


def test_shipped_sheets_name_25_slips_and_their_right_values(results):
    slips = [slip for name in COUNTED for slip in results[name].sheet.slips]
    assert {int(slip.number) for slip in slips} == set(range(1, 26))
    # check_sheet verifies that each `right` is our own value, rounded.
    rights = {slip.number: slip.right for slip in slips}
    assert rights["1"] == ("12",)
    assert rights["15"] == ("0",)
    assert rights["10"] == ("-1.76", "2.77")
    assert rights["22"] == ("0.441", "0.272", "0.201")


def test_hidden_weights_explain_24_values(results):
    hows = [
        verdict.text
        for name in COUNTED
        for each in results[name].steps
        if not each.step.is_reprint
        for verdict in each.verdicts.values()
    ]
    assert sum(how.startswith("hidden") for how in hows) == 24


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "school"])
def test_each_shipped_value_claims_a_verdict(name):
    for step in load_shipped(name).steps:
        if step.printed or step.text:
            assert step.claimed, step.name
            assert all(step.claimed.values())


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "school"])
def test_changed_digit_changes_the_verdict(name):
    sheet = load_shipped(name)
    calculation = Calculation(sheet)
    for step in sheet.steps:
        if step.compute is None:
            continue
        values = calculation.values_of(step)
        verdicts = calculation.check(step, values)
        copied = calculation.copied_cells(step) if step.is_reprint else {}
        for cell, each in verdicts.items():
            if each.category == "not_checkable":
                continue
            for text in other_digits(each.printed.text):
                number = read_number(text, -each.printed.unit.as_tuple().exponent)
                if number is None or number.value == each.printed.value:  # 1e-998; 0 and -0
                    continue
                other = calculation.check_cell(step, cell, number, values, copied.get(cell))
                assert other.text != each.text, (
                    f"{step.full_name(cell)}: {each.printed.text} and {text}"
                )
        calculation.add(step, values, verdicts)


def other_digits(text: str) -> list[str]:
    """Return every text with one digit raised or lowered by one."""
    return [
        f"{text[:index]}{(int(digit) + change) % 10}{text[index + 1 :]}"
        for index, digit in enumerate(text)
        if digit.isdigit()
        for change in (1, -1)
    ]


def changed(sheet, step_name, **changes):
    """Return a sheet with one step changed."""
    steps = tuple(
        dataclasses.replace(step, **changes) if step.name == step_name else step
        for step in sheet.steps
    )
    return dataclasses.replace(sheet, steps=steps)


def test_wrong_claim_is_an_error():
    sheet = load_shipped("softmax-11.7")
    assert sheet.steps[0].claimed == {(0, 0): "truncated"}
    checked = check_sheet(changed(sheet, "weight", claimed={(0, 0): "nearest"}))
    assert checked.errors == ["weight[1]: the sheet claims 'nearest', the verdict is 'truncated'"]
    assert not checked.is_explained


def test_wrong_slip_is_an_error():
    sheet = load_shipped("self-attention-3x4")
    slip = sheet.slips[0]
    wrong = dataclasses.replace(sheet, slips=(dataclasses.replace(slip, right=("13",)),))
    assert "slip 1: E[2,3]: right is 12, not 13" in check_sheet(wrong).errors
    elsewhere = dataclasses.replace(
        sheet, slips=(*sheet.slips, dataclasses.replace(slip, number="99", cells=((0, 0),)))
    )
    assert "slip 99: the verdict on E[1,1] is 'agrees'" in check_sheet(elsewhere).errors


def test_slip_explains_its_number_only():
    sheet = load_shipped("self-attention-3x4")
    grid = [list(row) for row in next(step for step in sheet.steps if step.name == "E").printed]
    grid[1][2] = read_number("17")
    checked = check_sheet(changed(sheet, "E", printed=tuple(map(tuple, grid))))
    assert checked.counts()["unexplained"] > 0


def test_also_formula_mismatch_is_an_error():
    sheet = load_shipped("mha-2")
    step = next(step for step in sheet.steps if step.name == "Y")
    assert [formula.text[:11] for formula in step.also] == ["our_layer(X", "torch_layer"]
    other = dataclasses.replace(step.compute, text="A", tree=step.also[0].tree.args[0])
    checked = check_sheet(changed(sheet, "Y", also=(other,)))
    assert any("gives other numbers" in error for error in checked.errors)


def test_lets_go_model_computes_printed_vectors():
    right, printed = (trace_sheet(load_shipped(name)) for name in ("lets-go", "lets-go-as-printed"))
    # The printed (3) and (5) are [5.9, 0.5] and [1.4, 6.7], from rounded numbers.
    assert right["decoder.output"][0].tolist() == [
        pytest.approx([5.838141518331468, 0.4311380750610705], abs=1e-12),
        pytest.approx([1.462455659564459, 8.424656763140954], abs=1e-12),
    ]
    assert printed["decoder.output"][0].tolist() == [
        pytest.approx([5.838141518331468, 0.4311380750610705], abs=1e-12),
        pytest.approx([1.5450454001549403, 6.7382563250755405], abs=1e-12),
    ]


@pytest.mark.parametrize("name", sorted(path.stem for path in WEIGHTS.glob("*")))
def test_shipped_weights_equal_those_of_their_sheet(name):
    weights = read_tensors(WEIGHTS / f"{name}.safetensors")
    expected = {key: each.float() for key, each in sheet_weights(load_shipped(name)).items()}
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def test_lets_go_weights_are_the_printed_ones():
    weights = read_tensors(WEIGHTS / "lets-go.safetensors")
    assert weights["encoder.layers.0.self_attention.query.weight"].tolist() == [
        pytest.approx([1.1, -2.8]), pytest.approx([0.6, 2.4]),
    ]  # fmt: skip
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())


def test_positional_sheet_computes_both_readings_of_its_question(results):
    values = {each.step.name: each.values["exact"].item() for each in results["positional-4d"].steps
              if each.step.name in ("PE33", "PE33_boxed")}  # fmt: skip
    assert values == {
        "PE33": pytest.approx(0.9995500337489875, abs=1e-15),  # cos 0.03
        "PE33_boxed": pytest.approx(0.9999955000033750, abs=1e-15),  # cos 0.003
    }
