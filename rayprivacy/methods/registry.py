"""The registered methods by name, and recipes as files of whatever method.

Ours stand in `METHODS`, one line each. Other packages register theirs by the entry point group `rayprivacy.methods`:

    [project.entry-points."rayprivacy.methods"]
    mine = "my_package.my_method:METHOD"

A name that is registered twice is refused: which of the two made a release would depend on what is installed.
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Union

from pydantic import Field, TypeAdapter

from rayprivacy.core.errors import ConfigError
from rayprivacy.runs.files import Overrides, lines_named, read_mapping
from rayprivacy.runs.method import Method
from rayprivacy.runs.recipe import Recipe

GROUP = "rayprivacy.methods"
METHODS = {
    "seqpate": "rayprivacy.methods.seqpate.recipe:METHOD",
    "generator": "rayprivacy.methods.generator.recipe:METHOD",
    "santext": "rayprivacy.methods.santext.recipe:METHOD",
    "two_stage": "rayprivacy.methods.two_stage.recipe:METHOD",
    "domain_private": "rayprivacy.methods.domain_private.recipe:METHOD",
    "edp_sgd": "rayprivacy.methods.edp_sgd.recipe:METHOD",
    "question_answering": "rayprivacy.methods.question_answering.recipe:METHOD",
    "knowledge": "rayprivacy.methods.knowledge.recipe:METHOD",
    "profile": "rayprivacy.methods.profile.recipe:METHOD",
}


def method_names() -> list[str]:
    """The names of all registered methods, ours first."""
    return list(dict.fromkeys([*METHODS, *(point.name for point in entry_points(group=GROUP))]))


@lru_cache
def method_named(name: str) -> Method:
    """A method by its name."""
    elsewhere = (point.value for point in entry_points(group=GROUP) if point.name == name)
    places = [*([METHODS[name]] if name in METHODS else []), *elsewhere]
    if not places:
        raise ConfigError(f"'method' is {name!r}: use one of {', '.join(method_names())}.")
    if len(set(places)) > 1:
        raise ConfigError(f"'method' is {name!r}, which is registered twice ({', '.join(places)}): uninstall one.")
    module, _, attribute = places[0].partition(":")
    found = getattr(import_module(module), attribute or "METHOD", None)
    if not isinstance(found, Method) or found.name != name:
        raise ConfigError(f"'method' is {name!r}, and {places[0]} is no rayprivacy.runs.method.Method of that name.")
    return found


def method_of(recipe: Recipe) -> Method:
    """The method of a recipe."""
    return method_named(recipe.method)


def parse_recipe(data: Mapping[str, Any]) -> Recipe:
    """The recipe of the method that `method` names."""
    return recipe_type(data).parse(data)


def recipe_type(data: Mapping[str, Any]) -> type[Recipe]:
    """The class of the recipes of the method that a mapping names."""
    name = data.get("method")
    if name is None:
        raise ConfigError(f"'method' is missing from the recipe: add it, one of {', '.join(method_names())}.")
    return method_named(str(name)).recipe


def load_recipe(path: Path, overrides: Overrides = ()) -> Recipe:
    """Read a recipe file and change single keys of it.

    Args:
        path: a YAML file.
        overrides: `key.path=value` strings with YAML values, or a mapping of dotted keys to values.

    Raises:
        ConfigError: the file, a key or a value is wrong; the message names it and the remedy.
    """
    data = read_mapping(path, "recipe", overrides)
    with lines_named(path, "recipe", overrides):
        return parse_recipe(data)


def recipe_schema() -> dict[str, Any]:
    """JSON Schema of the recipes of all methods."""
    kinds = tuple(method_named(name).recipe for name in method_names())
    either: Any = Annotated[Union[kinds], Field(discriminator="method")]  # noqa: UP007 - a tuple made at run time
    return TypeAdapter(either).json_schema()
