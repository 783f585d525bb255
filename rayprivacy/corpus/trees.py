"""Parse trees written as s-expressions (Lispress), read and printed, and what is counted of them.

    (Yield (Event.start (FindEvent (?= "lunch") (^(Event) EmptyConstraint) :limit 2L)))

A list begins with its *function*, or with a type annotation `^Type` and then its function; what follows is lists,
string and number literals, variables `x0`, `x1`, keywords `:limit` and bare names. Here a tree is an atom (a string as
it is written) or a tuple of trees; `^` is an atom of its own in front of the type.

Whatever is no tree is refused with one error, which quotes nothing: trees are as private as the text they stand for.

>>> tree = parse('(Yield (Event.start (?= "lunch")))')
>>> functions(tree), depth(tree), written(anonymised(tree))
(['Yield', 'Event.start', '?='], 3, '(Yield (Event.start (?= "_")))')
"""

import re
from collections.abc import Iterator
from typing import TypeAlias, Union

Tree: TypeAlias = Union[str, tuple["Tree", ...]]  # noqa: UP007 - it names itself
MOST_LEVELS = 200  # of lists in lists: what is deeper is no tree that anybody wrote
STRING, NUMBER = '"_"', "0"  # stand for literals
_TOKEN = re.compile(r'\s*(?:([()^])|("(?:[^"\\]|\\.)*")|([^\s()^"]+))', re.DOTALL)
_LITERAL = re.compile(r"-?\d+(\.\d+)?L?")
_VARIABLE = re.compile(r"x\d+")


class TreeError(ValueError):
    """Some text is no parse tree; the message quotes nothing of it."""


def parse(text: str) -> Tree:
    """The tree of a text that holds one list and nothing else.

    Raises:
        TreeError: it is no such text.
    """
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
