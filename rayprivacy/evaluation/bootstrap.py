"""Intervals by resampling USERS: texts of one user resemble each other, so they are not so many independent texts.

Resampling texts would treat a thousand texts of ten users as a thousand observations, and give intervals that are far
too narrow (a test shows it). The percentile bootstrap of a cluster sample draws users with replacement, each with all
their texts (Field and Welsh, 2007). It serves figures that are means of one number per text: then a replicate needs the
sums per user only, and a thousand of them are one product of matrices.

Figures that compare two whole distributions (MAUVE, Frechet distance, total variation, F1, shared words, distinct
n-grams) carry no interval: resampling repeats texts, and repeated texts change such a figure whatever the users are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

REPLICATES = 1000
LEVEL = 0.95
_BLOCK = 100


@dataclass(frozen=True)
class Figure:
    """A measured value.

    Attributes:
        value: the value.
        low: lower end of its 95% interval over users; None if it carries none.
        high: upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


def mean_figure(
    values: npt.ArrayLike, users: npt.NDArray[np.int64], seed: int, weights: npt.ArrayLike | None = None
) -> Figure:
    """The (weighted) mean of one number per text, with its percentile interval over users.

    Args:
        values: one number per text.
        users: the number of each text's user.
        seed: public seed of the resampling.
        weights: of each text; 1 if absent. Give numerators as values / weights.

    Returns:
        The figure; without an interval where there are fewer than two users.
    """
    weight = np.ones(len(users)) if weights is None else np.asarray(weights, float)
    totals = np.asarray(values, float) * weight
    codes = np.unique(users, return_inverse=True)[1]
    value = float(totals.sum() / weight.sum())
    above, below = (np.bincount(codes, each).astype(float) for each in (totals, weight))
    if len(above) < 2:
        return Figure(value)
    low, high = np.quantile(_replicates(above, below, seed), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Figure(value, float(low), float(high))


def _replicates(above: npt.NDArray[np.float64], below: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    users = len(above)
    draw = np.random.default_rng([seed, users])
    ratios = []
    for _ in range(REPLICATES // _BLOCK):  # in blocks, so that the counts of 5,000 users stay small
        counts = draw.multinomial(users, np.full(users, 1 / users), _BLOCK)
        ratios.append((counts @ above) / np.maximum(counts @ below, np.finfo(float).tiny))
    return np.concatenate(ratios)
