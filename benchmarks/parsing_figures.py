"""How well a parser reads utterances, after Zhou et al. (2022), as Mireshghallah et al. (ACL 2023) measure it.

- `match`: share of utterances whose tree is the gold one but for literals and names of variables.
- `precision`, `recall`: of the functions of a tree, each as often as it occurs, beside those of the gold tree; the mean
  over utterances. A text that is no tree has no functions, and a precision and a recall of 0.
"""

from collections import Counter
from collections.abc import Sequence

from rayprivacy.structures.trees import names, without_literals


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
