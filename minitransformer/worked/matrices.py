"""Matrices as formulas use them: float64, a vector is one of one row, sizes checked before use."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Value = Tensor | float | int | str  # a matrix, or what is written into a formula
LARGEST = 10_000  # rows or columns of what a formula makes


def matrix(value: Any) -> Tensor:
    """A number, a list or a vector as a float64 matrix."""
    if isinstance(value, str):
        raise ValueError(f"'{value}' is a text, not a matrix")
    tensor = torch.as_tensor(value, dtype=torch.float64)
    return tensor.reshape(1, -1) if tensor.dim() < 2 else tensor


def expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise ValueError(complaint)


def size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


def whole(value: Value, what: str, low: int = 1, high: int = LARGEST) -> int:
    """A whole number, written into a formula or given as a matrix of one."""
    number = matrix(value)
    is_whole = number.numel() == 1 and float(number) == round(float(number))
    is_whole = is_whole and low <= float(number) <= high
    shown = f"{float(number):g}" if number.numel() == 1 else size(number)
    expect(is_whole, f"{what}: expected a whole number from {low} to {high:,}, got {shown}")
    return int(number)


def alike(first: Value, second: Value, word: str) -> tuple[Tensor, Tensor]:
    """Two matrices of one size, or a matrix and a number."""
    left, right = matrix(first), matrix(second)
    fits = left.shape == right.shape or 1 in (left.numel(), right.numel())
    expect(fits, f"{size(left)} {word} {size(right)}: the sizes differ")
    return left, right


def times(left: Value, right: Value) -> Tensor:
    left, right = matrix(left), matrix(right)
    fits = left.shape[1] == right.shape[0]
    expect(fits, f"{size(left)} times {size(right)} cannot be multiplied")
    return left @ right


def plus(*terms: Value) -> Tensor:
    expect(len(terms) > 0, "there is nothing to add")
    matrices = [matrix(term) for term in terms]
    for term in matrices[1:]:
        fits = term.shape == matrices[0].shape
        expect(fits, f"{size(matrices[0])} plus {size(term)} cannot be added")
    return torch.stack(matrices).sum(dim=0)


def difference(first: Value, second: Value) -> Tensor:
    left, right = alike(first, second, "minus")
    return left - right


def product(first: Value, second: Value) -> Tensor:
    left, right = alike(first, second, "times, number by number,")
    return left * right


def row(values: Value, number: Value) -> Tensor:
    values = matrix(values)
    place = whole(number, f"row of {size(values)}", high=len(values))
    return values[place - 1 : place]


def column(values: Value, number: Value) -> Tensor:
    values = matrix(values)
    place = whole(number, f"column of {size(values)}", high=values.shape[1])
    return values[:, place - 1].reshape(1, -1)


def entry(values: Value, at_row: Value, at_column: Value) -> Tensor:
    return column(row(values, at_row), at_column)


def first_rows(values: Value, number: Value) -> Tensor:
    values = matrix(values)
    return values[: whole(number, f"rows of {size(values)}", high=len(values))]


def pick(values: Value, numbers: Value) -> Tensor:
    """Rows by their numbers, counted from 0 as ids are."""
    values = matrix(values)
    return values[[int(number) for number in matrix(numbers)[0]]]


def stack(*rows: Value) -> Tensor:
    matrices = [matrix(each) for each in rows]
    expect(len({each.shape[1] for each in matrices}) == 1, "the rows to stack differ in length")
    return torch.cat(matrices)


def join(*parts: Value) -> Tensor:
    matrices = [matrix(each) for each in parts]
    expect(len({len(each) for each in matrices}) == 1, "the parts to join differ in height")
    return torch.cat(matrices, dim=1)


def max_pool(values: Value, window: Value) -> Tensor:
    values = matrix(values)
    side = whole(window, "window", high=min(values.shape))
    return functional.max_pool2d(values[None], side)[0]


def same(first: Value, second: Value) -> Tensor:
    """1 if two matrices are equal, else 0: for what a sheet says in words."""
    left, right = matrix(first), matrix(second)
    equal = left.shape == right.shape and torch.allclose(left, right, rtol=1e-9, atol=1e-12)
    return matrix(float(equal))


def at_most(values: Value, bound: Value) -> Tensor:
    """1 if no number is larger than the bound, whatever its sign, else 0."""
    return matrix(float((matrix(values).abs() <= matrix(bound)).all()))
