"""Hyper-parameter selection: a secret random number of independent trials, of which only the best leaves.

Source: Papernot & Steinke, "Hyperparameter tuning with Renyi differential privacy", 2022 (arXiv 2110.03620).

Training once per setting and publishing the winner costs as much as publishing every trial (`pay_for_all`), unless the
number of trials K is itself random, secret and independent of the data. Then the winner alone costs little more than
one trial (`select_event`). Conditions: the trials are independent runs of one mechanism that draws its setting at
random from a public list, none is pruned, and nothing about any but the winner leaves, K included. Two families:

- truncated negative binomial on 1, 2, ... (Definition 1 of the paper), for a stopping chance gamma in (0, 1) and a
  shape; geometric for shape 1, logarithmic for shape 0:
      P[K = k] = (1 - gamma)^k / (gamma^-shape - 1) * product over l < k of (l + shape) / (l + 1)
- Poisson on 0, 1, 2, ... ("shape" infinity): K may be 0, and then there is no winner and a public default is used.

>>> round(gamma_of(10.0, 1.0), 6)
0.1
>>> [trials_from_uniform(u, 10.0, 1.0) for u in (0.05, 0.5, 0.95)]
[1, 7, 29]
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal, get_args

from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.events import validate
from rayprivacy.core.errors import ConfigError

TrialDistribution = Literal["poisson", "geometric", "logarithmic", "negative-binomial"]
_FIXED = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}
_MOST_L = 60.0  # gamma = exp(-60) has a mean far above the 1e9 that an event may hold


def select_event(
    event: DpEvent, mean: float, distribution: TrialDistribution, shape: float | None = None
) -> RepeatAndSelectDpEvent:
    """The event of publishing the winner of a secret number of trials, each of which costs `event`.

    `mean` is the expected number of trials, above 1; `shape` is for "negative-binomial" alone, and at least 0.
    """
    if distribution not in get_args(TrialDistribution):
        raise ConfigError(f"distribution is {distribution!r}: use one of {', '.join(get_args(TrialDistribution))}.")
    if (distribution in _FIXED) == (shape is not None):
        raise ConfigError(f"shape is {shape} for {distribution!r}: give it for 'negative-binomial' and only there.")
    selected = RepeatAndSelectDpEvent(event, mean, _FIXED.get(distribution, shape))
    validate(selected)
    return selected


def pay_for_all(event: DpEvent, trials: int) -> DpEvent:
    """The event of a number of trials of which everything may be published, with any scheduler."""
    every = SelfComposedDpEvent(event, trials)
    validate(every)
    return every


def gamma_of(mean: float, shape: float) -> float:
    """The stopping chance gamma at which the truncated negative binomial has this mean.

    With L = log(1/gamma) the mean is shape * (e^L - 1) / (1 - e^(-shape L)), increasing in L; solved by bisection.
    """
    _check(mean, shape)
    if shape == 1:
        return 1 / mean
    low, high = 0.0, _MOST_L
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _mean(middle, shape) < mean else (low, middle)
    return math.exp(-high)


def trial_probabilities(mean: float, shape: float) -> Iterator[tuple[int, float]]:
    """Each number of trials with its probability, without end; a shape of infinity is the Poisson distribution."""
    if shape == math.inf:
        _check(mean, 0.0)
        k, log_p = 0, -mean
        while True:
            yield k, math.exp(log_p)
            k += 1
            log_p += math.log(mean) - math.log(k)
    gamma = gamma_of(mean, shape)
    step = math.log1p(-gamma)
    k, log_p = 1, _log_first(gamma, shape)
    while True:
        yield k, math.exp(log_p)
        log_p += step + math.log((k + shape) / (k + 1))
        k += 1


def trials_from_uniform(u: Fraction | float, mean: float, shape: float) -> int:
    """The number of trials at quantile u: the least k with P[K <= k] > u.

    Takes time proportional to the answer, so the mean is at most 1e5, more than anyone would train. The rounding of the
    sum is below 1e-9, which is the chance that the answer is one off.
    """
    if not 0 <= u < 1:
        raise ConfigError("u is outside [0, 1): draw it uniformly from there.")
    if mean > 1e5:
        raise ConfigError(f"mean is {mean:g}: give at most 1e5 expected trials.")
    below = 0.0
    for k, p in trial_probabilities(mean, shape):
        below += p
        if below > float(u) or (k > mean and p < 1e-18):
            return k
    raise AssertionError("unreachable: trial_probabilities has no end")


def _mean(L: float, shape: float) -> float:
    if L == 0:
        return 1.0
    return math.expm1(L) / (-math.expm1(-shape * L) / shape if shape > 0 else L)


def _log_first(gamma: float, shape: float) -> float:
    """log P[K = 1]."""
    L = -math.log(gamma)
    if shape == 0:
        return math.log1p(-gamma) - math.log(L)
    grown = shape * L
    denominator = math.log(math.expm1(grown)) if grown < 700 else grown
    return math.log1p(-gamma) + math.log(shape) - denominator


def _check(mean: float, shape: float) -> None:
    if not 1 < mean <= 1e9:
        raise ConfigError(f"mean is {mean}: give an expected number of trials above 1, at most 1e9.")
    if not 0 <= shape <= 1e6:
        raise ConfigError(f"shape is {shape}: give a number from 0 to 1e6.")
