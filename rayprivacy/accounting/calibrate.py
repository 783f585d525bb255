"""The least noise that a budget allows, in closed form for Gaussian queries and by a search for anything else.

>>> sigma = sigma_for(100, Budget(4.887, 1e-6))
>>> round(sigma, 2)
10.0
>>> least_sigma(lambda sigma: 8 / sigma, 2.0)
4.0

A search may look first where a guess says. By a central limit theorem (Bu et al., 2020, "Deep Learning with Gaussian
Differential Privacy") many sampled Gaussian steps are about one Gaussian mechanism of
mu^2 = sum of q^2 (exp(1 / sigma^2) - 1). **Never a claim**: it may be below the truth (1.618 where that is 1.828),
which is why no accountant here uses it.

>>> round(guessed_epsilon([(0.01, 1.0, 1000)], 1e-5), 3)
1.618
"""

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import TypeAlias

from scipy.optimize import brentq

from rayprivacy.accounting.events import MAX_COUNT
from rayprivacy.accounting.gaussian import epsilon_of, mu_of
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget

_ROUND_UP = 1 + 1e-9  # far above the rounding of the ledger's sum, so that exactly these queries are admitted
_LEAST_SIGMA = 1e-3
_MOST_SIGMA = 1e9
_TOLERANCE = 1e-4
_HARDLY = 1e-3  # how much further than a guess says, so that the other side is met
_MOST_NARROWING = 8
_MOST_SQUARE = 1e200
_MOST = 600.0  # of 1 / sigma^2, whose exponential would not fit a float
_FAR = 4.0  # how many times more or less than epsilon: beyond, it does not matter how far a cost is off


def sigma_for(queries: int, budget: Budget) -> float:
    """Smallest noise std / L2 sensitivity at which `queries` Gaussian events fit the budget together, rounded up."""
    check_queries(queries)
    return math.sqrt(queries) / mu_of(budget) * _ROUND_UP


def check_queries(queries: int) -> None:
    """Require a number of queries that an event can hold."""
    if type(queries) is not int or not 1 <= queries <= MAX_COUNT:
        raise ConfigError(f"queries is {queries!r}: give a whole number of at least 1.")


Cost: TypeAlias = Callable[[float], float]  # an epsilon, from sigma
_Error: TypeAlias = tuple[float, float]  # logarithms of noise, and of cost / guess there


def least_sigma(cost: Cost, epsilon: float, start: float = 1.0, guess: Cost | None = None) -> float:
    """About the smallest noise at which a cost that falls with the noise is at most epsilon, rounded up to 5 digits.

    The cost of the answer itself has been computed and is at most epsilon; the answer is within 2e-4 of the least. It
    is a search by halves from `start`, of some 18 costs. A guess, which takes no time and falls with the noise, leaves
    six to ten of them to compute, mostly; it does not decide the answer, which is the same where costs fall without
    exception. No answer from 1e-3 to 1e9 is an error.
    """
    _check_epsilon(epsilon)
    enough = _Enough(cost, epsilon)
    if guess is not None:
        _narrow(enough, guess)
    high = _bracket(enough, min(max(start, _LEAST_SIGMA), _MOST_SIGMA))
    if not _LEAST_SIGMA <= high <= _MOST_SIGMA:
        raise _no_noise_meets(epsilon)
    answer = _digits_up(_bisect(enough, high / 4, high))
    while enough.cost(answer) > epsilon:
        answer = _digits_up(answer * (1 + _TOLERANCE))
    return answer


class _Enough:
    """Whether a noise is enough; a cost that is known is not computed again."""

    def __init__(self, cost: Cost, epsilon: float):
        self.cost = lru_cache(maxsize=None)(cost)
        self.epsilon = epsilon
        self.least, self.most = 0.0, math.inf  # the largest noise known not to be enough, and the least that is

    def __call__(self, sigma: float) -> bool:
        if self.least < sigma < self.most:
            enough = self.cost(sigma) <= self.epsilon
            self.least, self.most = (self.least, sigma) if enough else (sigma, self.most)
        return sigma >= self.most


def _narrow(enough: _Enough, guess: Cost) -> None:
    """Ask for costs near the place where they meet epsilon, until it is known on both sides.

    From the place of the guess to that of the guess times its error there, and a little further, then Brent's method.
    """

    def excess(place: float) -> float:
        enough(math.exp(place))
        ratio = enough.cost(math.exp(place)) / enough.epsilon
        return math.log(min(max(ratio, 1 / _FAR), _FAR))

    begin = math.log(min(_meeting(guess, enough.epsilon, None), _MOST_SIGMA))
    error = excess(begin)
    corrected = _corrected(guess, [_error(enough.epsilon * math.exp(error), guess, math.exp(begin))])
    step = 1.1 * (math.log(_meeting(corrected, enough.epsilon, None)) - begin) + math.copysign(_HARDLY, error)
    ends = (math.log(_LEAST_SIGMA) - 1, math.log(_MOST_SIGMA) + 1)
    place = begin
    while place not in ends:
        place = min(max(begin + step, ends[0]), ends[1])
        if excess(place) * error <= 0:
            found = math.exp(brentq(excess, begin, place, xtol=_TOLERANCE / 2, maxiter=_MOST_NARROWING, disp=False))
            enough(found * (1 - _TOLERANCE / 4))
            enough(found * (1 + _TOLERANCE / 4))
            return
        step *= 2


def least_sigma_near(cost: Cost, epsilon: float, guess: Cost, rough: Cost | None = None) -> float:
    """As `least_sigma`, for costs that take seconds each: three of them or so, led by a guess that costs nothing.

    The costs so far say by what power of the noise the guess is wrong, hence where its correction meets epsilon next
    (secants on a logarithmic scale). A candidate outside of what they leave open is replaced by the middle. A cost may
    be infinite where there is none; a `rough` one is nearer to it than the guess, and quicker. The cost of the answer
    is at most epsilon and at least epsilon * (1 - 1e-3).

    >>> asked = []
    >>> least_sigma_near(lambda sigma: asked.append(sigma) or 8.1 / sigma**1.1, 2.0, lambda sigma: 8 / sigma)
    3.5681
    >>> len(asked)
    3
    """
    _check_epsilon(epsilon)
    near = None
    if rough is not None:
        near = at = least_sigma_near(rough, epsilon, guess)
        guess = _corrected(guess, [_error(rough(sigma), guess, sigma) for sigma in (at * 1.1, at)])
    low, high, known = _LEAST_SIGMA / 2, math.inf, list[_Error]()
    while high > low * (1 + _TOLERANCE):  # invariant: high is enough, and low is not or is out of range
        sigma = _digits_up(_meeting(_corrected(guess, known), epsilon * (1 - 5 * _TOLERANCE), near))
        if not low < sigma < high:
            sigma = _digits_up(math.sqrt(low * high) if high < math.inf else 2 * low)
        if sigma >= high:
            break
        if sigma > _MOST_SIGMA:
            raise _no_noise_meets(epsilon)
        found, near = cost(sigma), sigma
        if epsilon * (1 - 10 * _TOLERANCE) <= found <= epsilon:
            return sigma
        low, high = (low, sigma) if found <= epsilon else (sigma, high)
        if 0 < found < math.inf:
            known.append(_error(found, guess, sigma))
    return high


def _check_epsilon(epsilon: float) -> None:
    if not 0 < epsilon < math.inf:
        raise ConfigError(f"epsilon is {epsilon}: give a positive finite number.")


def _no_noise_meets(epsilon: float) -> ConfigError:
    return ConfigError(f"epsilon is {epsilon:g}, which no noise multiplier from 1e-3 to 1e9 meets: check the options.")


def _error(cost: float, guess: Cost, sigma: float) -> _Error:
    return math.log(sigma), math.log(cost) - math.log(max(guess(sigma), 1e-300))


def _corrected(guess: Cost, known: Sequence[_Error]) -> Cost:
    """The guess times the power of the noise that agrees with the last two costs that are known and lie apart."""
    if not known:
        return guess
    at, ratio = known[-1]
    apart = [(x, y) for x, y in known if abs(x - at) > 5e-3]  # nearer ones differ by the rounding of costs
    power = (ratio - apart[-1][1]) / (at - apart[-1][0]) if apart else 0.0
    return lambda sigma: guess(sigma) * math.exp(max(-300.0, min(300.0, ratio + power * (math.log(sigma) - at))))


def _meeting(guess: Cost, target: float, near: float | None) -> float:
    """Where a guess meets the target, from above; within a factor of 4 of a noise that is near."""
    low, high = (near / 4, near * 4) if near else (_LEAST_SIGMA, 2 * _MOST_SIGMA)
    while high > low * (1 + 1e-7):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if guess(middle) <= target else (middle, high)
    return high


def _bracket(enough: Callable[[float], bool], start: float) -> float:
    """A sigma that is enough while a quarter of it is not; or one at the least of the range, or outside of it."""
    high = start
    if enough(high):
        while high > _LEAST_SIGMA and enough(high / 4):  # invariant: high is enough
            high /= 4
        return high
    high *= 4
    while high <= _MOST_SIGMA and not enough(high):  # invariant: high / 4 is not enough
        high *= 4
    return high


def _bisect(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least sigma between two that is enough, to within a factor of 1 + 1e-4 and from above."""
    while high > low * (1 + _TOLERANCE):  # invariant: high is enough, and low is not or is out of range
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _digits_up(value: float) -> float:
    """The value rounded up to five significant digits."""
    unit = Decimal(1).scaleb(Decimal(value).adjusted() - 4)
    return float(Decimal(value).quantize(unit, rounding=ROUND_CEILING))


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
