"""Chooses texts among candidates so that their margins (shares by topic, by length, by label) are given ones. Public.

Candidates get weights by raking, also called iterative proportional fitting (Deming and Stephan, 1940): the weights are
scaled to one margin after the other, in turn. No text is taken twice, so that no weight may exceed one text: what is
over is cut off before the next turn, and goes to other candidates. Then texts are drawn by systematic sampling (Madow,
1949), in which each is taken with a probability equal to its weight, and each run of candidates in the order of topic
and length gets its share to within one text.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TURNS = 100
_TINY = 1e-300
Shares = npt.NDArray[np.float64]
Cells = npt.NDArray[np.int64]


def raked(cells: Cells, margins: Sequence[Shares], count: int) -> Shares:
    """Weights [candidates] from 0 to 1 that add up to `count`, whose margins are as near to the given ones as they get.

    A cell without candidates, or with fewer than it asks for, leaves its share to the others.

    Args:
        cells: the cell of each candidate in each margin, [candidates, margins].
        margins: the wanted shares of each margin.
        count: how many texts are to be chosen; all weights are 1 where there are not more candidates.
    """
    if count >= len(cells):
        return np.ones(len(cells))
    weights = np.full(len(cells), count / len(cells))
    for _ in range(TURNS):
        for column, shares in zip(cells.T, margins, strict=True):
            held = np.bincount(column, weights, minlength=len(shares))
            weights = weights * (count * shares / np.maximum(held, _TINY))[column]
        weights = _filled(np.minimum(weights, 1), count)
    return weights


def chosen(weights: Shares, cells: Cells, seed: int) -> Cells:
    """The places of the candidates that are taken, in their order, as many as the weights add up to.

    Args:
        weights: of the candidates, from 0 to 1; they add up to a whole number.
        cells: of each candidate in each margin.
        seed: public.
    """
    draw = np.random.default_rng(seed)
    shuffled = draw.permutation(len(weights))
    order = shuffled[np.lexsort(cells[shuffled].T[::-1])]
    ends = np.cumsum(weights[order])
    ticks = draw.random() + np.arange(round(float(ends[-1])))
    return np.sort(order[np.minimum(np.searchsorted(ends, ticks, side="right"), len(order) - 1)])


def shares_of(cells: Cells, blocks: Sequence[int]) -> list[Shares]:
    """The share of texts in each cell of each margin."""
    counted = zip(cells.T, blocks, strict=True)
    return [np.bincount(column, minlength=size) / max(len(cells), 1) for column, size in counted]


def _filled(weights: Shares, count: int) -> Shares:
    """The weights, all below 1 raised by one factor of what they lack, so that they add up to the count again."""
    room = 1 - weights
    return np.asarray(weights + room * max(count - weights.sum(), 0.0) / max(room.sum(), _TINY))
