"""Structures as text, parse trees and JSON: the names that occur in them.

    (Yield (Event.start (FindEvent (?= "lunch") (^(Event) EmptyConstraint) :limit 2L)))      Lispress
    {"intent": "PlayMusic", "slots": {"artist": "westbam"}}                                  JSON

The first character tells one from the other. The names of a parse tree are its functions: a list begins with its
*function*, or with a type annotation `^Type` and then its function; what follows is lists, string and number literals,
variables `x0`, `x1`, keywords `:limit` and bare names. The names of JSON are its keys, and the strings that its public
schema lists as constants, since they say what a request is about; other text and numbers are literals.

A tree is an atom (a string as it is written) or a tuple of trees; `^` is an atom of its own in front of the type. What
is no tree is refused with one error, which quotes nothing: trees are as private as the text they stand for.

>>> names('{"intent": "PlayMusic", "slots": {"artist": "westbam"}}', frozenset({"PlayMusic"}))
['intent', 'PlayMusic', 'slots', 'artist']
>>> tree = parse('(Yield (Event.start (?= "lunch")))')
>>> functions(tree)
['Yield', 'Event.start', '?=']
"""

import json
import re
from collections.abc import Iterator
from typing import Any, TypeAlias, Union

Tree: TypeAlias = Union[str, tuple["Tree", ...]]  # noqa: UP007 - it names itself
MOST_LEVELS = 200  # of lists in lists: what is deeper is no tree that anybody wrote
_TOKEN = re.compile(r'\s*(?:([()^])|("(?:[^"\\]|\\.)*")|([^\s()^"]+))', re.DOTALL)
_VARIABLE = re.compile(r"x\d+")


class TreeError(ValueError):
    """Some text is no parse tree; the message quotes nothing of it."""


def names(text: str, constants: frozenset[str] = frozenset()) -> list[str] | None:
    """The names of a structure in the order in which they are written; None where the text is none that can be read."""
    if not _is_json(text):
        tree = parsed(text)
        return None if tree is None else functions(tree)
    value = _loaded(text)
    return None if value is None else list(_names(value, constants))


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


def parse(text: str) -> Tree:
    """The tree of a text that holds one list and nothing else; a TreeError otherwise."""
    levels: list[list[Tree]] = [[]]
    for token in _tokens(text):
        if token == "(":  # noqa: S105 - no password
            levels.append([])
            if len(levels) > MOST_LEVELS:
                raise TreeError(f"a tree is deeper than {MOST_LEVELS} levels")
        elif token == ")":  # noqa: S105
            if len(levels) == 1 or not levels[-1]:
                raise TreeError("a list is empty, or closed without being opened")
            done = tuple(levels.pop())
            levels[-1].append(done)
        else:
            levels[-1].append(token)
    if len(levels) > 1 or len(levels[0]) != 1 or isinstance(levels[0][0], str):
        raise TreeError("the text is not exactly one list")
    return levels[0][0]


def parsed(text: str) -> Tree | None:
    """The tree of a text, or None where it is none."""
    try:
        return parse(text)
    except TreeError:
        return None


def functions(tree: Tree) -> list[str]:
    """The functions of all lists, in the order in which they are written, each as often as it occurs."""
    return [head for each in _lists(tree) if (head := _head(each)) and not _VARIABLE.fullmatch(head)]


def _tokens(text: str) -> Iterator[str]:
    text, at = text.strip(), 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise TreeError("a string is not closed")
        at = found.end()
        yield found[found.lastindex or 0]


def _lists(tree: Tree) -> Iterator[tuple[Tree, ...]]:
    """All lists but those of types, from the outside in."""
    if isinstance(tree, str):
        return
    yield tree
    for before, part in zip(("", *tree), tree, strict=False):
        if before != "^":
            yield from _lists(part)


def _head(parts: tuple[Tree, ...]) -> str | None:
    """The function of a list: its first part, behind an annotation if there is one."""
    place = 2 if parts[0] == "^" else 0
    head = parts[place] if len(parts) > place else None
    return head if isinstance(head, str) and not head.startswith(":") else None


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
