"""Structures as text, parse trees and JSON: the names that occur in them, and what is left without their literals.

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
>>> functions(tree), depth(tree), written(anonymised(tree))
(['Yield', 'Event.start', '?='], 3, '(Yield (Event.start (?= "_")))')
"""

import json
import re
from collections.abc import Iterator
from typing import Any, TypeAlias, Union

Tree: TypeAlias = Union[str, tuple["Tree", ...]]  # noqa: UP007 - it names itself
MOST_LEVELS = 200  # of lists in lists: what is deeper is no tree that anybody wrote
LITERAL, STRING, NUMBER = "_", '"_"', "0"  # stand for literals of JSON, and of trees
_TOKEN = re.compile(r'\s*(?:([()^])|("(?:[^"\\]|\\.)*")|([^\s()^"]+))', re.DOTALL)
_LITERAL = re.compile(r"-?\d+(\.\d+)?L?")
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


def without_literals(text: str, constants: frozenset[str] = frozenset()) -> str | None:
    """The structure with a placeholder for each literal, in one way of writing; None where it cannot be read.

    Two texts have the same one if they are the same structure but for literals, for names of variables in Lispress, and
    for the order of keys in JSON.

    >>> without_literals('{"b": "x", "a": [1, null]}')
    '{"a": ["_", null], "b": "_"}'
    """
    if not _is_json(text):
        tree = parsed(text)
        return None if tree is None else written(anonymised(tree))
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


def written(tree: Tree) -> str:
    """The text of a tree, with single spaces; the annotation `^` stands before its type without one."""
    if isinstance(tree, str):
        return tree
    parts = (f"{written(part)}{'' if part == '^' else ' '}" for part in tree)
    return f"({''.join(parts).removesuffix(' ')})"


def functions(tree: Tree) -> list[str]:
    """The functions of all lists, in the order in which they are written, each as often as it occurs."""
    return [head for each in _lists(tree) if (head := _head(each)) and not _VARIABLE.fullmatch(head)]


def depth(tree: Tree) -> int:
    """How many lists are within each other at most; 0 for an atom."""
    return 0 if isinstance(tree, str) else 1 + max(map(depth, tree))


def anonymised(tree: Tree) -> Tree:
    """The tree with a placeholder for each literal, and its variables numbered in the order in which they occur."""
    return _anonymised(tree, {})


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


def _anonymised(tree: Tree, names: dict[str, str]) -> Tree:
    if not isinstance(tree, str):
        return tuple(_anonymised(part, names) for part in tree)
    if tree.startswith('"'):
        return STRING
    if _LITERAL.fullmatch(tree):
        return NUMBER
    if _VARIABLE.fullmatch(tree):
        return names.setdefault(tree, f"x{len(names)}")
    return tree


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
