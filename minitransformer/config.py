"""A run's config: YAML in and out, `--set section.key=value`, every mistake reported at once."""

import dataclasses
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from minitransformer.contradictions import contradictions
from minitransformer.errors import ConfigError, UsageError
from minitransformer.regular_file import read_regular_file
from minitransformer.schema import Mistake, build_section, describe
from minitransformer.settings import Config
from minitransformer.strict_yaml import MAX_FILE_BYTES, read_yaml, write_yaml

CONFIGS = Path(__file__).parent.parent / "configs"


def find_config(name: str) -> Path:
    """A config by its path, or by its name in configs/."""
    for path in (Path(name), CONFIGS / name, CONFIGS / f"{name}.yaml"):
        if path.exists() and not path.is_dir():
            return path
    shipped = ", ".join(sorted(path.name for path in CONFIGS.glob("*.yaml")))
    raise ConfigError(f"no config '{name}', here or in configs/ (there: {shipped})")


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file and apply `section.key=value` overrides to it."""
    try:
        text = read_regular_file(path, MAX_FILE_BYTES).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    data = read_yaml(text, str(path))
    if data is None:
        raise ConfigError(f"{path}: the config is empty")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a config is a mapping of sections, got {describe(data)}")
    origins = {apply_override(data, override): f"--set {override}" for override in overrides}
    return config_from_data(data, str(path), origins)


def apply_override(data: dict[str, Any], override: str) -> str:
    """Change one value in place, read as the file would read it, and return its dotted key."""
    path, equals, text = override.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key or not sections:
        whole = Config()
        known = [
            f"{section.name}.{each.name}"
            for section in fields(whole)
            for each in fields(getattr(whole, section.name))
        ]
        meant = next(
            (f", such as {name}={text or 'VALUE'}" for name in known if name.endswith(f".{key}")),
            "",
        )
        raise UsageError(f"--set {override}: write it as section.key=value{meant}")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise UsageError(f"--set {override}: '{section}' is not a section")
    data[key] = read_yaml(text, f"--set {override}") if text.strip() else ""
    return ".".join((*sections, key))


def config_from_data(
    data: dict[str, Any], where: str, origins: dict[str, str] | None = None
) -> Config:
    """Build a config, or raise one ConfigError with every mistake and where it was made."""
    mistakes: list[Mistake] = []
    config: Config = build_section(Config, data, "", mistakes)
    wrong = {mistake.key for mistake in mistakes}
    origins = origins or {}
    mistakes += [
        Mistake(next((key for key in keys if key in origins), keys[0]), message)
        for keys, is_wrong, message in contradictions(config)
        if is_wrong and not wrong.intersection(keys)
    ]
    if mistakes:
        places = [origins.get(mistake.key, where) for mistake in mistakes]
        lines = [f"{place}: {each.message}" for place, each in zip(places, mistakes, strict=True)]
        raise ConfigError("\n       ".join(lines))
    return config


def config_to_yaml(config: Config) -> str:
    """The whole config as YAML that load_config reads back to an equal one."""
    return write_yaml(
        {
            section: {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in values.items()
            }
            for section, values in dataclasses.asdict(config).items()
        }
    )


def changed_keys(old: Config, new: Config) -> dict[str, tuple[str, str]]:
    """The dotted keys whose values differ between two configs, each with both values."""
    return changed_between(dataclasses.asdict(old), dataclasses.asdict(new))


def changed_between(old: Any, new: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """The same for plain sections; a key that the old ones do not have is not compared."""
    changed = {}
    for section, values in new.items():
        before = old.get(section) if isinstance(old, dict) else None
        for key, value in values.items():
            if isinstance(before, dict) and key in before and before[key] != value:
                changed[f"{section}.{key}"] = describe(before[key]), describe(value)
    return changed
