"""Epsilon by privacy loss distributions (PLD): tight, numerical, pessimistic; a claim only for a plan fixed in advance.

dp-accounting discretises the privacy loss of each mechanism, rounded against the user of the budget, and convolves. The
step of the grid is a 25th of the usual loss of the mechanism that loses least, which keeps the excess near 1e-3. The
arrays grow with the losses, so little noise means hours and gigabytes. The convolution of many runs is a power of a
Fourier transform, in doubles: it may lose a part of delta that grows with the number of runs, which is set aside where
the excess of the grid does not cover it. Three guards refuse such plans before any work:

- a noise multiplier of at most PLD_SIGMA_FLOOR, after merging unsampled Gaussians into one;
- losses that may exceed _MOST_LOSS, by a Renyi bound at a chance of 1e-15;
- more than _MOST_LINES different mechanisms, or more than _MOST_TIMES runs of one.

Unsampled Gaussians alone need no grid: their curve has a closed form, and a plan whose noise was computed from it must
not cost more than its budget, as it would on a grid when delta is tiny.

>>> from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
>>> step = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
>>> round(pld_epsilon([(step, 1000)], 1e-5), 2)
1.83
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation, UnsupportedEventError
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from scipy.special import logsumexp

from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.renyi import Costs, least_epsilon, rdp
from rayprivacy.core.errors import EventError

PLD_SIGMA_FLOOR = 0.05  # below it the loss distribution takes hours and gigabytes
_MOST_LOSS = 300.0
_MOST_LINES = 100
_MOST_TIMES = 10**6  # the library raises the size of its grid to this power, as an integer
_RARE = 1e-15
_LOST = 2e-16  # of delta for each run; up to 5e-17 were seen, for 10^4 to 10^6 runs against the closed form
_COVERED, _MOST_LOST = 1e-4, 0.5  # parts of delta: less is covered by the grid, more leaves no figure
_MIXTURE_ORDERS = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0)

_Lines = Sequence[tuple[DpEvent, int]]


def pld_epsilon(lines: _Lines, delta: float) -> float:
    """The epsilon of basic mechanisms, each with its count, at delta."""
    lines = [(_prepared(leaf), times) for leaf, times in _merged(lines)]
    if not lines:
        return 0.0
    reach = _checked_reach(lines)
    if {type(leaf) for leaf, _ in lines} == {GaussianDpEvent}:  # merged into one
        return epsilon_of(1 / lines[0][0].noise_multiplier, delta)
    kept = _kept(delta, sum(times for _, times in lines))
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, _grid_step(lines, reach))
    try:
        for leaf, times in lines:
            accountant.compose(SelfComposedDpEvent(leaf, times))
        found = float(accountant.get_epsilon(kept))
    except (UnsupportedEventError, ArithmeticError, ValueError):
        raise EventError("accountant 'pld' cannot compose one of the events: use 'rdp'.") from None
    if not math.isfinite(found):  # the grid drops losses rarer than about 1e-15
        raise EventError(f"accountant 'pld' has no finite epsilon at delta {delta:g}: use 'rdp', or a larger delta.")
    return found


def _kept(delta: float, runs: int) -> float:
    """What is left of delta when rounding has taken its part."""
    lost = runs * _LOST
    if lost > _MOST_LOST * delta:
        raise EventError(
            f"accountant 'pld' cannot tell delta {delta:g} after {runs} runs: use 'rdp', or a larger delta."
        )
    return delta - lost if lost > _COVERED * delta else delta


def _merged(lines: _Lines) -> Sequence[tuple[DpEvent, int]]:
    """Equal mechanisms added up, and all plain Gaussians merged into the one of the same total."""
    counts: dict[Any, int] = {}
    precision = 0.0
    for leaf, times in lines:
        if type(leaf) is GaussianDpEvent:
            precision += times / leaf.noise_multiplier**2
        elif type(leaf) is RepeatAndSelectDpEvent:
            raise EventError("accountant 'pld' cannot compose the choice of the best trial: use 'rdp'.")
        else:
            counts[leaf] = counts.get(leaf, 0) + times
    merged = [(GaussianDpEvent(precision**-0.5 / (1 + 1e-12)), 1)] if precision else []
    return [*merged, *counts.items()]


def _prepared(leaf: DpEvent) -> DpEvent:
    """A mixture without entries that never occur, its probabilities summing to 1 as well as floats can."""
    if type(leaf) is not MixtureOfGaussiansDpEvent:
        return leaf
    kept = [(s, p) for s, p in zip(leaf.sensitivities, leaf.sampling_probs, strict=True) if p > 0]
    whole = math.fsum(p for _, p in kept)
    return MixtureOfGaussiansDpEvent(leaf.standard_deviation, [s for s, _ in kept], [p / whole for _, p in kept])


def _checked_reach(lines: _Lines) -> float:
    if len(lines) > _MOST_LINES:
        raise EventError(f"the plan holds {len(lines)} different mechanisms: 'pld' takes at most {_MOST_LINES}.")
    for leaf, times in lines:
        if times > _MOST_TIMES:
            raise EventError(f"a mechanism runs {float(times):g} times: 'pld' takes at most {_MOST_TIMES:g}.")
        if (sigma := _sigma(leaf)) <= PLD_SIGMA_FLOOR:
            raise EventError(f"an event has noise multiplier {sigma:g}: 'pld' needs more than {PLD_SIGMA_FLOOR}.")
    if not (reach := _reach(lines)) <= _MOST_LOSS:
        raise EventError(f"the privacy loss may reach {reach:.3g}: 'pld' takes plans that stay below {_MOST_LOSS:g}.")
    return reach


def _grid_step(lines: _Lines, reach: float) -> float:
    usual = min(math.sqrt(_second_order(leaf)) for leaf, _ in lines)
    return max(1e-5, reach / 3e6, min(1e-3, usual / 25))


def _sigma(leaf: DpEvent) -> float:
    if type(leaf) is MixtureOfGaussiansDpEvent:
        return float(leaf.standard_deviation / max(leaf.sensitivities))
    return float(leaf.event.noise_multiplier if type(leaf) is PoissonSampledDpEvent else leaf.noise_multiplier)


def _reach(lines: _Lines) -> float:
    """A privacy loss that all mechanisms together exceed with a chance of about 1e-15."""
    mixtures = [(leaf, times) for leaf, times in lines if type(leaf) is MixtureOfGaussiansDpEvent]
    others = [times * np.array(rdp(leaf)) for leaf, times in lines if type(leaf) is not MixtureOfGaussiansDpEvent]
    reach = 0.0
    if mixtures:
        curves = np.sum([times * _mixture_costs(leaf) for leaf, times in mixtures], axis=0)
        reach += float(np.min(curves - math.log(_RARE) / (np.array(_MIXTURE_ORDERS) - 1)))
    if others:
        reach += least_epsilon(np.sum(others, axis=0), _RARE)
    return reach


def _mixture_costs(leaf: DpEvent) -> Costs:
    """Renyi costs of a mixture at a few low orders: by convexity, and at order 2 exactly."""
    sizes, log_p = np.array(leaf.sensitivities) / leaf.standard_deviation, np.log(leaf.sampling_probs)
    bounds = [float(logsumexp(log_p + a * (a - 1) / 2 * sizes**2)) / (a - 1) for a in _MIXTURE_ORDERS]
    second = _second_order(leaf)
    return np.array([min(bound, second) if a <= 2 else bound for a, bound in zip(_MIXTURE_ORDERS, bounds, strict=True)])


def _second_order(leaf: DpEvent) -> float:
    """The Renyi cost of order 2, about the mean square of the privacy loss."""
    if type(leaf) is not MixtureOfGaussiansDpEvent:
        return rdp(leaf, (2.0,))[0]
    sizes, log_p = np.array(leaf.sensitivities) / leaf.standard_deviation, np.log(leaf.sampling_probs)
    return float(logsumexp(log_p[:, None] + log_p[None, :] + np.outer(sizes, sizes)))
