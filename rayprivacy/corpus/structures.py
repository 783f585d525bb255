"""The names that occur in a structure, whatever it is written in: the functions of a parse tree, or the keys of JSON.

    (Yield (Find (Today)))                                       Lispress: its functions (see `trees`)
    {"intent": "PlayMusic", "slots": {"artist": "westbam"}}      JSON: its keys, and the values that its schema lists

The first character tells one from the other. Of JSON, a string that the public schema lists as a constant is a name as
well, since it says what a request is about. What else is text or a number is a literal.

>>> names('{"intent": "PlayMusic", "slots": {"artist": "westbam"}}', frozenset({"PlayMusic"}))
['intent', 'PlayMusic', 'slots', 'artist']
"""

import json
from collections.abc import Iterator
from typing import Any

from rayprivacy.corpus import trees

LITERAL = "_"


def names(text: str, constants: frozenset[str] = frozenset()) -> list[str] | None:
    """The names of a structure in the order in which they are written; None where the text is none that can be read."""
    if not _is_json(text):
        tree = trees.parsed(text)
        return None if tree is None else trees.functions(tree)
    value = _loaded(text)
    return None if value is None else list(_names(value, constants))


def without_literals(text: str, constants: frozenset[str] = frozenset()) -> str | None:
    """The structure with a placeholder for each literal, in one way of writing; None where it cannot be read.

    Two texts have the same one if they are the same structure but for literals, for names of variables in Lispress, and
    for the order of keys in JSON.

    >>> without_literals('{"b": "x", "a": [1, null]}')
    '{"a": ["_", null], "b": "_"}'
    """
    if not _is_json(text):
        tree = trees.parsed(text)
        return None if tree is None else trees.written(trees.anonymised(tree))
    value = _loaded(text)
    return None if value is None else json.dumps(_without_literals(value, constants), sort_keys=True)


def constants_of(schema: Any) -> frozenset[str]:
    """The strings that a JSON Schema lists under `const` or `enum`, at any depth."""
    if isinstance(schema, list):
        return frozenset().union(*map(constants_of, schema))
    if not isinstance(schema, dict):
        return frozenset()
    listed = [schema["const"]] if "const" in schema else []
    enum = schema.get("enum")
    listed += enum if isinstance(enum, list) else []
    own = frozenset(value for value in listed if isinstance(value, str))
    return own.union(*map(constants_of, schema.values()))


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _names(value: Any, constants: frozenset[str]) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _names(part, constants)
    elif isinstance(value, list):
        for part in value:
            yield from _names(part, constants)
    elif isinstance(value, str) and value in constants:
        yield value


def _without_literals(value: Any, constants: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without_literals(part, constants) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_literals(part, constants) for part in value]
    return value if value is None or isinstance(value, bool) or value in constants else LITERAL
