"""Frozen dataclasses from plain data: types and ranges checked, every mistake with its path."""

import contextlib
import re
import types
import typing
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal

from minitransformer.errors import did_you_mean


@dataclass(frozen=True)
class Range:
    """The numbers a setting may take."""

    low: float
    high: float
    below: bool = False  # True: `high` itself is not allowed

    def __contains__(self, value: float) -> bool:
        return self.low <= value and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        high = f"{self.high:,}" if isinstance(self.high, int) else f"{self.high:g}"
        return f"from {self.low:g} {'to below' if self.below else 'to'} {high}"


class Mistake(typing.NamedTuple):
    """What is wrong, and the dotted key that it is wrong with."""

    key: str
    message: str


def build_section(cls: Any, data: Any, path: str, mistakes: list[Mistake]) -> Any:
    """Build a dataclass from a mapping, adding every mistake in it to `mistakes`."""
    if not isinstance(data, dict):
        message = f"{path or 'the config'}: expected a section, got {describe(data)}"
        mistakes.append(Mistake(path, message))
        return cls()
    hints = typing.get_type_hints(cls, include_extras=True)
    values = {}
    for key, value in data.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in hints:
            inside = [
                f"{section}.{key}"
                for section, hint in hints.items()
                if is_dataclass(hint) and key in typing.get_type_hints(hint)
            ]
            meant = did_you_mean(str(key), hints) or did_you_mean(str(key), inside)
            message = f"unknown key '{dotted}'{meant}"
            mistakes.append(Mistake(dotted, message))
        elif is_dataclass(hints[key]):
            values[key] = build_section(hints[key], value, dotted, mistakes)
        else:
            try:
                values[key] = convert(value, hints[key])
            except ValueError as error:
                mistakes.append(Mistake(dotted, f"{dotted}: {error}"))
    return cls(**values)


def convert(value: Any, hint: Any) -> Any:
    """Return a value as the type its setting asks for, or say what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        converted = convert(value, arguments[0])
        if converted not in arguments[1]:
            raise ValueError(f"must be {arguments[1]}, got {describe(value)}")
        return converted
    if origin is Literal:
        if value not in arguments:
            allowed = ", ".join(str(choice) for choice in arguments)
            meant = did_you_mean(str(value), map(str, arguments))
            raise ValueError(f"must be one of {allowed}; got {describe(value)}{meant}")
        return value
    if origin in (types.UnionType, typing.Union):
        for choice in arguments:
            if isinstance(value, list | tuple) == (typing.get_origin(choice) is tuple):
                with contextlib.suppress(ValueError):
                    return convert(value, choice)
        lists = [each for each in arguments if typing.get_origin(each) is tuple]
        singles = [each for each in arguments if typing.get_origin(each) is not tuple]
        if lists and isinstance(value, list | tuple):
            return convert(value, lists[0])  # its complaint stands for all of them
        try:
            return convert(value, singles[0])
        except ValueError as error:
            more = "; or give a list such as [a, b]" if lists else ""
            raise ValueError(f"{error}{more}") from None
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list such as [a, b], got {describe(value)}")
        return tuple(convert(item, arguments[0]) for item in value)
    if hint is float and type(value) is int:
        return float(min(max(value, -(10**300)), 10**300))  # beyond any range, but a float
    if type(value) is not hint:
        expected = {
            int: "a whole number", float: "a number", bool: "true or false", str: "a word",
            types.NoneType: "nothing",
        }[hint]  # fmt: skip
        raise ValueError(f"expected {expected}, got {describe(value)}")
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ValueError("must not contain a NUL character or half a surrogate pair")
    return value


def describe(value: Any) -> str:
    """A value as a person would write it, cut short if it is long."""
    names = {dict: "a section", types.NoneType: "nothing"}
    if type(value) in names:
        return names[type(value)]
    if isinstance(value, list | tuple):
        text = f"[{', '.join(map(str, value))}]"
    else:
        text = repr(value) if isinstance(value, str) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}..."
