"""Recipes as YAML files: read one, change single keys of it with `key.path=value`, write one."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json
from rayprivacy.runs.recipe import Recipe

Overrides = Sequence[str] | Mapping[str, Any]
_EXAMPLES = {"recipe": "one of jobs/", "space": "one of tune_spaces/"}
_FIRST_KEY = {"recipe": "method", "space": "recipe"}


def read_mapping(path: Path, kind: str, overrides: Overrides = ()) -> Json:
    """Read a YAML file of keys, a `recipe` or a `space`, and apply overrides."""
    try:
        there = path.is_file()
    except OSError:  # a name that is too long, or a folder that may not be read
        there = False
    if not there:
        raise ConfigError(f"the {kind} {path} does not exist: give the path of a YAML file, e.g. {_EXAMPLES[kind]}.")
    data = _yaml(path.read_text(), f"the {kind} {path}")
    if not isinstance(data, dict):
        raise ConfigError(f"the {kind} {path} is not a mapping of keys: start it with `{_FIRST_KEY[kind]}:`.")
    return overridden(data, overrides)


def overridden(data: Mapping[str, Any], overrides: Overrides) -> Json:
    """A mapping of keys with single ones changed; the given one stays as it is.

    >>> overridden({"privacy": {"epsilon": 3.0}}, ["privacy.epsilon=8", "seed=1"])
    {'privacy': {'epsilon': 8}, 'seed': 1}
    >>> overridden({}, {"privacy.epsilon": 8.0})
    {'privacy': {'epsilon': 8.0}}
    """
    changed: Json = copy.deepcopy(dict(data))
    for key, value in overrides.items() if isinstance(overrides, Mapping) else map(_key_and_value, overrides):
        _assign(changed, key, value)
    return changed


def _key_and_value(override: str) -> tuple[str, Any]:
    key, sign, value = override.partition("=")
    if not sign or not key:
        raise ConfigError(f"the option -o {override!r} is not of the form key=value, e.g. -o privacy.epsilon=8.")
    return key, _yaml(value, f"the option -o {override!r}")


def _assign(data: Json, key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        if data.get(part) is None:
            data[part] = {}
        data = data[part]
        if not isinstance(data, dict):
            raise ConfigError(f"the key '{key}' goes into '{part}', which is a value and has no keys.")
    data[last] = value


def _yaml(text: str, name: str) -> Any:
    try:
        return _numbers(yaml.safe_load(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name} is not valid YAML{where}: check quotes, colons and indentation.") from None


def _numbers(value: Any) -> Any:
    """YAML 1.1 reads `1e-6` as text (it wants `1.0e-6`); everybody means the number."""
    if isinstance(value, dict):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, str) and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
