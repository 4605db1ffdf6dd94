"""YAML as people mean it: plain data, no surprises, every problem named with its line."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from minitransformer.errors import ConfigError

LARGEST_DOCUMENT = 1_000_000  # characters; a config is a page, not a corpus
MAX_FILE_BYTES = 4 * LARGEST_DOCUMENT  # of UTF-8


class StrictLoader(yaml.SafeLoader):
    """A loader with YAML 1.2's scalars, no duplicate keys, no anchors and no tags."""

    # SafeLoader's own table reads `no` as False, `1e-4` as a word and `12:30` as 750.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not allowed", problem_mark=event.start_mark
            )
        if getattr(event, "tag", None):
            raise yaml.MarkedYAMLError(
                problem=f"tags such as {event.tag} are not allowed", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is not a word", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key}' stands twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


for tag, pattern, first in [
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+.0123456789"),
]:
    StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), list(first)
    )


class TextLoader(StrictLoader):
    """A loader that leaves every scalar the text that was written: 0.50 stays 0.50."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


class StrictDumper(yaml.SafeDumper):
    """A dumper that quotes exactly what StrictLoader would otherwise misread."""

    yaml_implicit_resolvers = StrictLoader.yaml_implicit_resolvers


def write_yaml(data: Any) -> str:
    """Plain data as YAML that read_yaml reads back unchanged."""
    return yaml.dump(data, Dumper=StrictDumper, sort_keys=False, allow_unicode=True)


def read_yaml(text: str, where: str, loader: type[StrictLoader] = StrictLoader) -> Any:
    """Read one YAML document as plain data; `where` names it in error messages."""
    if len(text) > LARGEST_DOCUMENT:
        raise ConfigError(f"{where}: {len(text):,} characters is too long")
    try:
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}:" if mark else ""
        raise ConfigError(f"{where}:{line} {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not readable as YAML: {str(error).splitlines()[0]}") from None
