"""Recipes as files: one YAML file says what to run; `-o key=value` changes single keys."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter

from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.generator_recipe import GeneratorRecipe
from rayprivacy.methods.recipe import Recipe
from rayprivacy.methods.seqpate_recipe import SeqPateRecipe

_EXAMPLES = {
    "recipe": ("jobs/seqpate/chat.yaml", "method"),
    "space": ("tune_spaces/generator.yaml", "recipe"),
}
METHODS: dict[str, type[Recipe]] = {"seqpate": SeqPateRecipe, "generator": GeneratorRecipe}


def parse_recipe(data: Mapping[str, Any]) -> Recipe:
    """The recipe of the method that `method` names, SeqPATE's without one.

    Raises:
        ConfigError: the method is unknown, or a key or value is wrong.
    """
    method = data.get("method", "seqpate")
    if method not in METHODS:
        raise ConfigError(f"'method' is {method!r}: use one of {', '.join(METHODS)}.")
    return METHODS[method].parse(data)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file and apply `key.path=value` overrides (values are YAML).

    Raises:
        ConfigError: the file, a key or a value is wrong; the message names it and the remedy.
    """
    return parse_recipe(read_mapping(path, "recipe", overrides))


def read_mapping(path: Path, kind: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a YAML file of keys and apply overrides.

    Args:
        path: the file.
        kind: `recipe` or `space`.
        overrides: `key.path=value`, with YAML values.

    Raises:
        ConfigError: there is no such file, or it is no mapping, or an override does not fit.
    """
    example, first = _EXAMPLES[kind]
    if not path.is_file():
        raise ConfigError(f"the {kind} {path} does not exist: give the path of a YAML file, e.g. {example}.")
    data = _yaml(path.read_text(), f"the {kind} {path}")
    if not isinstance(data, dict):
        raise ConfigError(f"the {kind} {path} is not a mapping of keys: start it with `{first}:`.")
    for override in overrides:
        _apply(data, override)
    return data


def _apply(data: dict[str, Any], override: str) -> None:
    name, sign, value = override.partition("=")
    if not sign or not name:
        raise ConfigError(f"the option -o {override!r} is not of the form key=value, e.g. -o privacy.epsilon=8.")
    *path, last = name.split(".")
    for part in path:
        if data.get(part) is None:
            data[part] = {}
        data = data[part]
        if not isinstance(data, dict):
            raise ConfigError(f"the option -o {override!r} goes into '{part}', which is a value and has no keys.")
    data[last] = _yaml(value, f"the option -o {override!r}")


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


def recipe_schema() -> dict[str, Any]:
    """JSON Schema of the recipes of all methods."""
    either = Annotated[SeqPateRecipe | GeneratorRecipe, Field(discriminator="method")]
    return TypeAdapter(either).json_schema()
