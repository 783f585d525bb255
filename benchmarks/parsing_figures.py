"""How well a parser reads utterances, after Zhou et al. (2022), as Mireshghallah et al. (ACL 2023) measure it.

- `match`: share of utterances whose tree is the gold one but for literals and names of variables.
- `precision`, `recall`: of the functions of a tree, each as often as it occurs, beside those of the gold tree; the mean
  over utterances. A text that is no tree has no functions, and a precision and a recall of 0.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rayprivacy.structures.trees import Tree, names, parsed

LITERAL, STRING, NUMBER = "_", '"_"', "0"  # stand for literals of JSON, and of trees
_LITERAL = re.compile(r"-?\d+(\.\d+)?L?")
_VARIABLE = re.compile(r"x\d+")


def parsing_figures(
    gold: Sequence[str], read: Sequence[str], constants: frozenset[str] = frozenset()
) -> dict[str, float]:
    """The figures of some trees; all 0 where there is none.

    Args:
        gold: the right trees.
        read: those of a parser, for the same utterances in the same order.
        constants: strings that count as functions in JSON, beside its keys.
    """
    pairs = list(zip(gold, read, strict=True))
    matches = [_same(right, found, constants) for right, found in pairs]
    shares = [_shares(right, found, constants) for right, found in pairs]
    figures = {
        "match": sum(matches),
        "precision": sum(share for share, _ in shares),
        "recall": sum(share for _, share in shares),
    }
    return {name: total / max(1, len(pairs)) for name, total in figures.items()}


def _same(gold: str, read: str, constants: frozenset[str]) -> bool:
    right = without_literals(gold, constants)
    return right is not None and right == without_literals(read, constants)


def _shares(gold: str, read: str, constants: frozenset[str]) -> tuple[float, float]:
    right, found = (Counter(names(text, constants) or ()) for text in (gold, read))
    common = (right & found).total()
    return common / max(1, found.total()), common / max(1, right.total())


def without_literals(text: str, constants: frozenset[str] = frozenset()) -> str | None:
    """The structure with a placeholder for each literal, in one way of writing; None where it cannot be read.

    Two texts have the same one if they are the same structure but for literals, for names of variables in Lispress, and
    for the order of keys in JSON.

    >>> without_literals('{"b": "x", "a": [1, null]}')
    '{"a": ["_", null], "b": "_"}'
    """
    if text.lstrip()[:1] not in ("{", "["):
        tree = parsed(text)
        return None if tree is None else written(anonymised(tree))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return json.dumps(_without_literals(value, constants), sort_keys=True)


def written(tree: Tree) -> str:
    """The text of a tree, with single spaces; the annotation `^` stands before its type without one."""
    if isinstance(tree, str):
        return tree
    parts = (f"{written(part)}{'' if part == '^' else ' '}" for part in tree)
    return f"({''.join(parts).removesuffix(' ')})"


def anonymised(tree: Tree) -> Tree:
    """The tree with a placeholder for each literal, and its variables numbered in the order in which they occur."""
    return _anonymised(tree, {})


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


def _without_literals(value: Any, constants: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without_literals(part, constants) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_literals(part, constants) for part in value]
    return value if value is None or isinstance(value, bool) or value in constants else LITERAL
