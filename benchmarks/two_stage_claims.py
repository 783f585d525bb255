"""What tables 1 and 4 of Mireshghallah et al. (ACL 2023) say of SMCalFlow, and what rows of ours must show.

Figures are words, MAUVE, distance and recall of functions; the paper's stand beside ours and are no goal, because it
compares ten times as many texts. Claims are about means over seeds, and each is made where its rows are there.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

FIGURES = ("words", "mauve", "function_distance", "function_recall")
_INF = math.inf
PAPER = {
    ("1-stage", _INF): (0.087, 0.334, 0.258, 0.487),
    ("2-stage", _INF): (0.236, 0.632, 0.085, 0.797),
    ("2-stage, shuffled", _INF): (0.049, 0.560, 0.354, 0.391),
    ("1-stage", 16.0): (0.092, 0.258, 0.167, 0.499),
    ("2-stage", 16.0): (0.213, 0.524, 0.057, 0.708),
    ("1-stage", 8.0): (0.093, 0.198, 0.183, 0.487),
    ("2-stage", 8.0): (0.210, 0.533, 0.055, 0.707),
    ("1-stage", 3.0): (0.086, 0.138, 0.185, 0.485),
    ("2-stage", 3.0): (0.205, 0.530, 0.054, 0.693),
    ("2-stage, shuffled", 3.0): (0.032, 0.401, 0.453, 0.232),
}
Row = Mapping[str, Any]
Means = Mapping[tuple[str, float], Mapping[str, float]]


def paper_of(arm: str, epsilon: float) -> dict[str, float] | None:
    """The paper's figures of an arm, if it has them."""
    found = PAPER.get((arm.removesuffix(", as published"), epsilon))
    return dict(zip(FIGURES, found, strict=True)) if found else None


def means_of(rows: Sequence[Row]) -> dict[tuple[str, float], dict[str, float]]:
    """The mean of each figure over the seeds of an arm at an epsilon; a figure that a row lacks is left out."""
    grouped = defaultdict(list)
    for row in rows:
        if row["epsilon"] is not None:
            grouped[row["arm"], float(row["epsilon"])].append(row)
    names = (*FIGURES, "top_25")
    return {
        key: {name: mean(row[name] for row in own) for name in names if all(name in row for row in own)}
        for key, own in grouped.items()
    }


def claims(rows: Sequence[Row]) -> dict[str, bool]:
    """What holds and what does not, by a sentence each."""
    means, found = means_of(rows), {}
    for said, epsilons, arms, name, holds in _CLAIMS:
        for epsilon in epsilons:
            figures = [means.get((arm, epsilon), {}).get(name) for arm in arms]
            if None not in figures:
                found[f"{said} at {epsilon:g}"] = holds(*figures)
    return found


def _more(one: float, other: float) -> bool:
    return one > other


def _less(one: float, other: float) -> bool:
    return one < other


_TWO, _ALL, _LOOSE = ("2-stage", "1-stage"), (_INF, 8.0, 3.0), (_INF, 8.0)
_SHUFFLED, _SPLIT = ("2-stage, shuffled", "1-stage"), ("2-stage", "2-stage, 80-20")
_CLAIMS: tuple[tuple[str, tuple[float, ...], tuple[str, ...], str, Callable[..., bool]], ...] = (
    ("2-stage has 0.05 more functions than 1-stage", _ALL, _TWO, "function_recall", lambda two, one: two - one >= 0.05),
    ("2-stage is nearer in functions than 1-stage", _ALL, _TWO, "function_distance", _less),
    ("2-stage has more words than 1-stage", _LOOSE, _TWO, "words", _more),
    ("2-stage has more MAUVE than 1-stage", _LOOSE, _TWO, "mauve", _more),
    (
        "1.5-stage is between them in functions",
        _ALL,
        ("1-stage", "1.5-stage", "2-stage"),
        "function_recall",
        lambda one, half, two: one <= half <= two,
    ),
    ("shuffled trees have fewer functions than 1-stage", (_INF,), _SHUFFLED, "function_recall", _less),
    ("shuffled trees have fewer words than 1-stage", (_INF,), _SHUFFLED, "words", _less),
    ("20-80 has more functions than 80-20", (8.0,), _SPLIT, "function_recall", _more),
    ("20-80 has more MAUVE than 80-20", (8.0,), _SPLIT, "mauve", _more),
    ("2-stage has as many of the top 25 as 1-stage", (8.0, 3.0), _TWO, "top_25", lambda two, one: two >= one),
)
