"""Strategies of correlated noise: coefficients of a banded Toeplitz matrix C, chosen for small errors of prefix sums.

Source: Choquette-Choo et al. (NeurIPS 2023), "(Amplified) Banded Matrix Factorization", arXiv 2306.08153.

DP-SGD's weights after step t are made of the sum of all gradients up to t. With noise C^-1 z in place of z, the noise
of later steps takes back some of that of earlier ones, and what is left in these sums is smaller. One user touches
column t of C for each step t that it takes part in, so noise of scale sigma needs every column to be at most 1 long.

C has c_0 on its diagonal, c_1 below it, ..., c_(b-1), and zeros further down. The coefficients minimise the mean
squared noise of all T prefix sums. With s the prefix sums of the coefficients of 1 / c(x), that is, at fixed length,

    sum over k of (T - k) s_k^2

They depend on b and T alone: public, and the same on every machine, since they are rounded much more coarsely than
machines differ. Each is a multiple of 2^-20 and rounded down, so that float32 holds it exactly, all columns are at most
1 long without any rounding, and the last b - 1, which end with the matrix, are shorter.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.signal import lfilter

Array = npt.NDArray[np.float64]
_GRID = 2.0**20
_DECIMALS = 3  # of the coefficients with c_0 = 1: coarser than machines differ, and far too fine to matter
_NO_STRATEGY = 1e300


@lru_cache(maxsize=64)
def prefix_strategy(bands: int, steps: int) -> tuple[float, ...]:
    """The coefficients c_0, ..., c_(b-1) for T steps; of length at most 1.

    >>> prefix_strategy(1, 100)
    (1.0,)
    >>> [round(each, 2) for each in prefix_strategy(4, 200)]
    [0.65, 0.49, 0.44, 0.38]
    """
    if bands == 1:
        return (1.0,)
    found = minimize(
        _loss, _square_root(bands)[1:], (steps,), "L-BFGS-B", jac=True, bounds=[(0, 1)] * (bands - 1), tol=1e-12
    )
    shape = [1.0, *np.round(found.x, _DECIMALS).tolist()]
    length = math.sqrt(math.fsum(each * each for each in shape))
    return tuple(math.floor(each / length * _GRID) / _GRID for each in shape)


def step_factors(strategy: tuple[float, ...], steps: int) -> list[float]:
    """For each step the standard deviation of its noise, (C^-1 z)_t, for standard normal z: the rows' lengths.

    >>> step_factors((1.0,), 3)
    [1.0, 1.0, 1.0]
    """
    return [float(each) for each in np.sqrt(np.cumsum(np.square(_inverse(np.array(strategy), steps))))]


def prefix_error(strategy: tuple[float, ...], steps: int) -> float:
    """Root mean square, over all T prefix sums, of their noise for standard normal z.

    >>> prefix_error(prefix_strategy(8, 200), 200) < 0.45 * prefix_error((1.0,), 200)
    True
    """
    sums = np.cumsum(_inverse(np.array(strategy), steps))
    return math.sqrt(float((np.arange(steps, 0, -1) * sums**2).sum()) / steps)


def _square_root(bands: int) -> Array:
    """The first coefficients of (1 - x)^(-1/2), which would be the best without a limit on bands."""
    odd = 2 * np.arange(1, bands) - 1
    return np.cumprod(np.concatenate([[1.0], odd / (odd + 1)]))


def _inverse(coefficients: Array, steps: int) -> Array:
    """The first T coefficients of 1 / c(x): the first column of C^-1."""
    return np.asarray(lfilter([1.0], coefficients, np.eye(1, steps)[0]))


def _loss(later: Array, steps: int) -> tuple[float, Array]:
    """Logarithm of the squared error times the squared length of c, and its gradient; c_0 is 1."""
    coefficients, weights = np.concatenate([[1.0], later]), np.arange(steps, 0, -1)
    with np.errstate(all="ignore"):  # the search may try coefficients whose inverse grows without limit
        sums = np.cumsum(_inverse(coefficients, steps))
        error, length = float((weights * sums**2).sum()), float((coefficients**2).sum())
        # Each c_j moves the prefix sums by -x^j s(x) / c(x).
        moved, weighted = np.asarray(lfilter([1.0], coefficients, sums)), weights * sums
        slopes = [-2 * float(weighted[j:] @ moved[: steps - j]) for j in range(1, len(coefficients))]
    gradient = np.array(slopes) / error + 2 * later / length
    if not (math.isfinite(error) and np.isfinite(gradient).all()):
        return _NO_STRATEGY, np.zeros_like(later)
    return math.log(error * length), gradient
