"""Votes of a teacher that wants to move the sums: shared by the tests of every kind of ballot and noise."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

CANDIDATES = 8
P_THRESHOLD = 1e-4

Array = np.ndarray[Any, Any]

_signs = (-1.0) ** np.arange(CANDIDATES)
_corner = np.eye(CANDIDATES)
WORST: dict[str, Array] = {
    "certain": _corner[0],
    "certain of another": _corner[-1],
    "nothing": np.zeros(CANDIDATES),
    "uniform": np.full(CANDIDATES, 1 / CANDIDATES),
    "sums to 1 + 9e-7": _corner[0] * (1 + 9e-7),
    "sums to 1 + 2e-6": _corner[0] * (1 + 2e-6),
    "NaN": np.full(CANDIDATES, math.nan),
    "one NaN": np.where(_corner[1] > 0, math.nan, _corner[0]),
    "infinite": np.full(CANDIDATES, math.inf),
    "both infinities": _signs * math.inf,
    "cancels a certain one": -_corner[0],
    "alternating": _signs / CANDIDATES,
    "alternating and growing": _signs * 4.0 ** np.arange(CANDIDATES),
    "one entry slightly negative": _corner[0] - 1e-12 * _corner[1],
    **{f"times {10.0**power:g}": _corner[2] * 10.0**power for power in range(-9, 10)},
    **{f"everywhere {10.0**power:g}": np.full(CANDIDATES, 10.0**power) for power in range(-9, 10)},
}

_anything = hnp.arrays(np.float64, CANDIDATES, elements=st.floats(allow_nan=True, allow_infinity=True))
simplex = hnp.arrays(np.float64, CANDIDATES, elements=st.floats(0, 1)).map(lambda v: v / max(v.sum(), 1e-9))
_one_hot = st.integers(0, CANDIDATES - 1).map(lambda index: np.eye(CANDIDATES)[index])
_barely_too_much = st.floats(0, 2e-6).map(lambda extra: np.eye(CANDIDATES)[0] * (1 + extra))
_worst = st.sampled_from(list(WORST.values()))
votes = st.one_of(_anything, simplex, _one_hot, _barely_too_much, simplex.map(lambda v: v * 1e9), _worst)


def variance_p_value(noise: Array, std: float) -> float:
    """Two-sided chi-square test that Gaussian noise has this standard deviation."""
    chi2, total = stats.chi2(noise.size), float(((noise / std) ** 2).sum())
    return 2 * min(float(chi2.cdf(total)), float(chi2.sf(total)))


def betrays_more(hits: int, false: int, runs: int, sigma: float, q: float = 1.0) -> bool:
    """Whether an attack tells two worlds apart better than Gaussian noise of multiplier sigma, sampled at q, allows.

    Its Clopper-Pearson bounds against hits(false alarms a) <= q * Phi(Phi^-1(a) + 1 / sigma) + (1 - q) * a.
    """
    least_hits = stats.beta.ppf(P_THRESHOLD, hits, runs - hits + 1)
    most_false = stats.beta.isf(P_THRESHOLD, false + 1, runs - false)
    allowed = q * stats.norm.cdf(stats.norm.ppf(most_false) + 1 / sigma) + (1 - q) * most_false
    return bool(least_hits > allowed)
