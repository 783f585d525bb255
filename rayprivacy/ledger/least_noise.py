"""The least noise with which queries fit a budget under the rule that an account of this budget would have."""

import math
from collections.abc import Callable

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent

from rayprivacy.accounting import calibrate
from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.gaussian import rho_cap
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.rules import parameters_for, rule_for


def gaussian_noise(queries: int, budget: Budget, composition: str, beside: DpEvent | None = None) -> float:
    """Smallest noise std / L2 sensitivity of `queries` Gaussian events, rounded up; `beside` is charged besides.

    >>> gaussian_noise(100, Budget(4.887, 1e-6), "gdp") < gaussian_noise(100, Budget(4.887, 1e-6), "zcdp")
    True
    """
    exact = calibrate.sigma_for(queries, budget)
    if beside is None and composition in ("gdp", "pld"):
        return exact
    return least_noise(lambda sigma: _together(GaussianDpEvent(sigma), queries, beside), budget, composition, exact)


def laplace_noise(queries: int, budget: Budget, composition: str, beside: DpEvent | None = None) -> float:
    """Smallest Laplace scale / L1 sensitivity of `queries` Laplace events, rounded up; about a second for 'pld'.

    >>> round(laplace_noise(300, Budget(3.0, 1e-6), "zcdp"), 1), round(laplace_noise(300, Budget(3.0, 1e-6), "pld"), 1)
    (28.5, 26.4)
    """
    calibrate.check_queries(queries)
    if composition not in ("zcdp", "rdp", "pld"):
        raise ConfigError(
            f"noise is 'laplace' and privacy.composition {composition!r}, which takes none:"
            " choose privacy.composition zcdp, rdp or pld."
        )
    # Enough by pure composition, and by rho-zCDP: other figures are lower, but not by much.
    enough = min(queries / budget.epsilon, math.sqrt(queries / (2 * rho_cap(budget))))
    return least_noise(lambda sigma: _together(LaplaceDpEvent(sigma), queries, beside), budget, composition, enough)


def _together(query: DpEvent, queries: int, beside: DpEvent | None) -> DpEvent:
    asked = SelfComposedDpEvent(query, queries)
    return ComposedDpEvent([beside, asked]) if beside else asked


def least_noise(
    event_of: Callable[[float], DpEvent],
    budget: Budget,
    composition: str,
    start: float = 1.0,
    guess: Callable[[float], float] | None = None,
    costly: bool = False,
) -> float:
    """Smallest noise multiplier at which one event fits an account opened for it, rounded up to five digits.

    The search begins at `start`. A `guess`, which says quickly about what epsilon a multiplier has, saves most of the
    exact costs. Where each of these takes seconds (`costly`), an answer that costs 1e-3 less than the budget will do.
    """
    cost = _planned_cost if composition == "pld" else _filter_cost

    def of(sigma: float) -> float:
        return cost(event_of(sigma), budget, composition)

    if guess and costly:
        return calibrate.least_sigma_near(of, budget.epsilon, guess)
    return calibrate.least_sigma(of, budget.epsilon, start, guess)


def is_enough(event: DpEvent, budget: Budget, composition: str) -> bool:
    """Whether one event fits an account opened for it."""
    return (_planned_cost if composition == "pld" else _filter_cost)(event, budget, composition) <= budget.epsilon


def _planned_cost(event: DpEvent, budget: Budget, composition: str) -> float:
    try:
        return epsilon([event], budget.delta, "pld")
    except EventError:
        return math.inf  # so little noise that its losses do not fit the grid


def _filter_cost(event: DpEvent, budget: Budget, composition: str) -> float:
    try:
        rule = rule_for(composition, budget, parameters_for(composition, budget, plan=[event]))
    except ConfigError:
        return math.inf  # so little noise that the best order leaves nothing of the cap
    used = rule.cost(event, (0,) * rule.size)
    found = rule.epsilon(used)
    return found if rule.admits(used) else max(found, math.nextafter(budget.epsilon, math.inf))
