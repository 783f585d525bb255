"""Recipes as YAML files: read one, change single keys of it with `key.path=value`, write one."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json
from rayprivacy.core.written import dump_yaml, line_of, load_yaml, read_text
from rayprivacy.runs.recipe import Recipe

Overrides = Sequence[str] | Mapping[str, Any]
OF_QUESTIONS = "recipe of questions"
_EXAMPLES = {
    "recipe": "one of jobs/",
    "space": "one of tune_spaces/",
    OF_QUESTIONS: "jobs/question_answering/public.yaml",
}
_FIRST_KEY = {"recipe": "method", "space": "recipe", OF_QUESTIONS: "questions"}


def read_mapping(path: Path, kind: str, overrides: Overrides = ()) -> Json:
    """Read a YAML file of keys, a `recipe`, a `space` or a `recipe of questions`, and apply overrides."""
    data = load_yaml(_text(path, kind), f"the {kind} {path}", written=True)
    if not isinstance(data, dict):
        raise ConfigError(f"the {kind} {path} is not a mapping of keys: start it with `{_FIRST_KEY[kind]}:`.")
    return overridden(data, overrides)


@contextmanager
def lines_named(path: Path, kind: str, overrides: Overrides = ()) -> Iterator[None]:
    """Add to a refusal of a key the line where a file gives it; not where an override does."""
    try:
        yield
    except ConfigError as error:
        given = [item if isinstance(overrides, Mapping) else item.partition("=")[0] for item in overrides]
        name = ".".join(map(str, error.at))
        if error.at and not any(f"{name}.".startswith(f"{key}.") for key in given):
            line = line_of(_text(path, kind), error.at)
            error.args = (f"{str(error).rstrip('.')} (line {line} of {path}).",)
        raise


def _text(path: Path, kind: str) -> str:
    return read_text(path, f"the {kind}", f"give a YAML file in UTF-8, e.g. {_EXAMPLES[kind]}")


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
    return key, load_yaml(value, f"the option -o {override!r}", written=True)


def _assign(data: Json, key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        if data.get(part) is None:
            data[part] = {}
        data = data[part]
        if not isinstance(data, dict):
            raise ConfigError(f"the key '{key}' goes into '{part}', which is a value and has no keys.")
    data[last] = value


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML."""
    return dump_yaml(recipe.model_dump(mode="json"))
