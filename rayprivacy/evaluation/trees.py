"""How synthetic utterances and their parse trees agree with real ones, after Mireshghallah et al. (ACL 2023).

- `word_recall` (W. Overlap): share of the real texts' words, split at spaces, that occur in synthetic text.
- `function_recall` (F. Overlap): share of the real trees' functions that occur in synthetic trees.
- `function_distance` (Dist.): chi-square distance of the two distributions of functions over all nodes,
  1/2 sum (p - q)^2 / (p + q), from 0 to 1. The paper gives no formula: `function_distance_unhalved` is the other usual
  one.
- `top_10`, `top_25`, ...: share of the k most frequent real functions that are among the k most frequent synthetic
  ones; of equal counts, the first by name.

Of a structure in JSON, the keys count as functions, and so do strings that its schema lists (`structures.trees`).
All of them grow, or fall, with the number of texts: compare equal numbers, and beside real text against real text.

>>> tree_figures(["(A (B))"], ["(A (C))"])["function_recall"]
0.5
"""

from collections import Counter
from collections.abc import Sequence

from rayprivacy.evaluation.figures import Better, Figure, FigureRow, paired
from rayprivacy.evaluation.texts import DrawnTexts, Texts
from rayprivacy.structures.trees import names

_TOP = (10, 25, 50, 100)
BETTER: dict[str, Better] = {
    "tree_share": "near",
    "word_recall": "higher",
    "function_recall": "higher",
    "function_distance": "lower",
    **dict.fromkeys((f"top_{k}" for k in _TOP), "higher"),
}


def tree_rows(drawn: DrawnTexts) -> list[FigureRow]:
    """The figures of synthetic texts and of other real ones against the same real texts, where all have trees."""
    if drawn.real.trees is None or drawn.synthetic.trees is None:
        return []
    target = drawn.real.take(drawn.target)

    def of(texts: Texts) -> dict[str, Figure | float]:
        trees = _trees(texts)
        share = sum(names(tree) is not None for tree in trees) / max(len(trees), 1)
        found = tree_figures(_trees(target), trees)
        return {"tree_share": share, "word_recall": word_recall(target.texts, texts.texts), **found}

    other = None if drawn.reference is None else of(drawn.real.take(drawn.reference))
    return paired("trees", BETTER, of(drawn.synthetic.take(drawn.compared)), other)


def _trees(texts: Texts) -> list[str]:
    return [tree or "" for tree in texts.trees or ()]


def word_recall(real: Sequence[str], synthetic: Sequence[str]) -> float:
    """The share of the words of real texts that occur in synthetic texts; 0 without real words."""
    words = {word for text in real for word in text.split()}
    return _share(words, {word for text in synthetic for word in text.split()})


def tree_figures(
    real: Sequence[str], synthetic: Sequence[str], constants: frozenset[str] = frozenset()
) -> dict[str, float]:
    """Figures of functions, from trees as text; what is no tree has none. In JSON, `constants` count beside keys."""
    return function_figures(_counts(real, constants), _counts(synthetic, constants))


def function_figures(real: Counter[str], synthetic: Counter[str]) -> dict[str, float]:
    """The same, from how often functions occur."""
    distance = chi_square(real, synthetic)
    figures = {
        "function_recall": _share(set(real), set(synthetic)),
        "function_distance": distance / 2,
        "function_distance_unhalved": distance,
    }
    return figures | {f"top_{k}": _share(set(_top(real, k)), set(_top(synthetic, k))) for k in _TOP}


def function_shares(
    real: Sequence[str], synthetic: Sequence[str], most: int, constants: frozenset[str] = frozenset()
) -> list[tuple[float, float]]:
    """The shares that the most frequent real functions have of all nodes, in real and in synthetic trees.

    >>> function_shares(["(A (B))", "(A (C))"], ["(A (A (A (B))))"], 2)
    [(0.5, 0.75), (0.25, 0.25)]
    """
    counts = _counts(real, constants), _counts(synthetic, constants)
    sizes = [max(1, each.total()) for each in counts]
    return [(counts[0][name] / sizes[0], counts[1][name] / sizes[1]) for name in _top(counts[0], most)]


def chi_square(real: Counter[str], synthetic: Counter[str]) -> float:
    """sum (p - q)^2 / (p + q) of two distributions, from 0 to 2; 2 where one of them is empty."""
    sizes = real.total(), synthetic.total()
    if not all(sizes):
        return 2.0
    shares = [(real[name] / sizes[0], synthetic[name] / sizes[1]) for name in real | synthetic]
    return sum((p - q) ** 2 / (p + q) for p, q in shares)


def _counts(trees: Sequence[str], constants: frozenset[str]) -> Counter[str]:
    return Counter(name for text in trees for name in names(text, constants) or ())


def _top(counts: Counter[str], k: int) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))[:k]


def _share(of: set[str], found: set[str]) -> float:
    return len(of & found) / len(of) if of else 0.0
