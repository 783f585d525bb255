"""Writes docs/recipe.md, every key of the recipes of every method: `python docs/tools/recipe.py`.

What a key means stands in the docstring of its class, below `Attributes:`; what a block is, in that docstring's head.
"""

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from rayprivacy.methods.registry import METHODS, method_named

PAGE = Path(__file__).resolve().parent.parent / "recipe.md"
HEAD = """# Recipe keys

Every key that a recipe may have, with its default and the methods that know it. `method` names the method;
[Quickstart](quickstart.md) shows a whole recipe, and the page of each method the keys to begin with. Keys below a block
that is `null` hold where a recipe has the block, and `[]` stands for each entry of a list. `rayprivacy schema` prints
the same as JSON Schema, for editors.

`python docs/tools/recipe.py` writes this page from the docstrings of recipes: change those.
"""
_ENTRY = re.compile(r"^ {4}(\w[\w, ]*): (.*(?:\n {8}.*)*)", re.MULTILINE)
_SENTENCE = re.compile(r"(?<!e\.g)(?<!i\.e)\. ")


class Key(NamedTuple):
    """A dotted key, its default as JSON, and what it means."""

    name: str
    default: str
    meaning: str


def keys_of(model: type[BaseModel], made: BaseModel | None = None, prefix: str = "") -> Iterator[Key]:
    """The keys of a block and of the blocks in it; defaults are those of the block `made`, where there is one."""
    meanings = _meanings(model)
    for name, field in model.model_fields.items():
        blocks, key = _blocks(field.annotation), prefix + (field.alias or name)
        default = field.get_default(call_default_factory=True) if made is None else getattr(made, name)
        own = default if isinstance(default, BaseModel) else None
        if own is None:
            meaning = meanings.get(name) or (_first(inspect.getdoc(blocks[0])) if blocks else "")
            yield Key(key, _written(default), meaning)
        for block in blocks:
            entry = "[]" * ("tuple" in str(field.annotation))
            yield from keys_of(block, own if type(own) is block else None, f"{key}{entry}.")


def page() -> str:
    """The page: a table for each block, in which a key that is the same in several methods stands once."""
    tables: dict[str, dict[Key, list[str]]] = defaultdict(lambda: defaultdict(list))
    for method in METHODS:
        for key in keys_of(method_named(method).recipe):
            if key.name != "method":
                tables[key.name.partition(".")[0]][key].append(method)
    return "\n".join([HEAD, *(_table(block, rows) for block, rows in sorted(tables.items()))])


def _table(block: str, rows: dict[Key, list[str]]) -> str:
    lines = [f"## {block}", "", "| Key | Default | Meaning | Methods |", "| --- | --- | --- | --- |"]
    order = list(dict.fromkeys(key.name for key in rows))
    for key, methods in sorted(rows.items(), key=lambda row: order.index(row[0].name)):
        known_by = "all" if len(methods) == len(METHODS) else ", ".join(methods)
        lines.append(f"| `{key.name}` | {key.default} | {key.meaning} | {known_by} |")
    return "\n".join(lines) + "\n"


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """The first sentence on each attribute in the docstrings of a class and of those above it."""
    found = {}
    for kind in reversed(model.__mro__):
        attributes = inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("Attributes:\n")[2]
        for names, text in _ENTRY.findall(attributes):
            found |= dict.fromkeys(names.split(", "), _first(text))
    return found


def _first(text: str | None) -> str:
    sentence = _SENTENCE.split(" ".join((text or "").partition("\n\n")[0].split()), maxsplit=1)[0]
    return f"{sentence[:1].upper()}{sentence[1:].removesuffix('.')}.".replace("|", "\\|")


def _blocks(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [block for part in get_args(annotation) for block in _blocks(part)]


def _written(default: Any) -> str:
    return "required" if default is PydanticUndefined else f"`{json.dumps(to_jsonable_python(default))}`"


if __name__ == "__main__":
    PAGE.write_text(page())
