"""Admission: a charge enters only while the account's cap holds whatever the charges were chosen by.

Releases are adaptive: the next mechanism depends on earlier answers. For Gaussian events the *GDP filter* is valid
under full adaptivity and costs nothing: admit while the sum of 1 / sigma_eff^2 over every charge not cancelled stays
within mu*^2, where mu* is the largest mu whose curve fits (epsilon*, delta*). The account's claim is its cap; what has
been "spent so far" is a diagnostic.

The sum is correctly rounded (math.fsum), and a relative TOLERANCE of 1e-12 absorbs the rounding of 1 / sigma^2 alone;
in epsilon it is worth less than 1e-11 of the cap.

>>> limit = cap(Budget(3.0, 1e-6))
>>> fits(limit, [0.5 * limit], 0.5 * limit), fits(limit, [0.5 * limit], 0.51 * limit)
(True, False)
"""

import math
from collections.abc import Iterable
from functools import lru_cache

from rayprivacy.accounting.gaussian import epsilon_of, mu_of
from rayprivacy.core.errors import BudgetRefusedError
from rayprivacy.core.units import Budget

TOLERANCE = 1e-12


@lru_cache(maxsize=64)
def cap(budget: Budget) -> float:
    """mu*^2 of a budget."""
    mu = mu_of(budget)
    return mu * mu


def fits(cap_mu_squared: float, used: Iterable[float], request: float) -> bool:
    """Whether the request stays within the cap on top of what is used; NaN and infinities never do."""
    return math.fsum([*used, request]) <= cap_mu_squared * (1 + TOLERANCE)


def remaining_epsilon(budget: Budget, used: Iterable[float]) -> float:
    """The largest epsilon, at the account's delta, that one more release may ask for."""
    left = max(0.0, cap(budget) - math.fsum(used))
    return min(budget.epsilon, epsilon_of(math.sqrt(left), budget.delta))


def admit(name: str, budget: Budget, used: list[float], request: float) -> None:
    """Do nothing when the request fits.

    Raises:
        BudgetRefusedError: it does not; the message names the requested and the remaining epsilon.
    """
    if fits(cap(budget), used, request):
        return
    asked, left = epsilon_of(math.sqrt(request), budget.delta), remaining_epsilon(budget, used)
    raise BudgetRefusedError(
        f"the release asks for epsilon {asked:.6g} and account '{name}' has {left:.6g} of {budget.epsilon:.6g} left"
        f" at delta {budget.delta:.3g}: lower privacy.epsilon to that, or stop here."
    )
