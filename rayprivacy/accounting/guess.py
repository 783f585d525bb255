"""A guess at the epsilon of sampled Gaussian steps, in no time: where a search for noise may look first.

By a central limit theorem (Bu et al., 2020, "Deep Learning with Gaussian Differential Privacy") many sampled steps are
about one Gaussian mechanism of mu^2 = sum of q^2 (exp(1 / sigma^2) - 1). **Never a claim**: it may be below the truth
(1.618 where that is 1.828), which is why no accountant here uses it.

>>> round(guessed_epsilon([(0.01, 1.0, 1000)], 1e-5), 3)
1.618
"""

import math
from collections.abc import Sequence

from rayprivacy.accounting.gaussian import epsilon_of

_MOST_SQUARE = 1e200
_MOST = 600.0  # of 1 / sigma^2, whose exponential would not fit a float


def guessed_epsilon(lines: Sequence[tuple[float, float, int]], delta: float) -> float:
    """About what steps cost, each kind given as (sampling rate, noise multiplier, steps); falls as the noise grows."""
    squares = math.fsum(times * _square(q, 1 / sigma**2) for q, sigma, times in lines)
    return epsilon_of(math.sqrt(min(squares, _MOST_SQUARE)), delta)


def equal_noise(levels: Sequence[tuple[float, int]]) -> float:
    """The one noise multiplier at which sampled steps are guessed to cost what those of all (multiplier, steps) do."""
    steps = sum(times for _, times in levels)
    mean = math.fsum(times * math.expm1(min(sigma**-2, _MOST)) for sigma, times in levels) / steps
    return 1 / math.sqrt(math.log1p(mean))


def _square(q: float, loss: float) -> float:
    """mu^2 of one step."""
    if q == 1:
        return loss
    return min(_MOST_SQUARE, q * q * math.expm1(min(loss, _MOST)) * max(1.0, loss / _MOST))
