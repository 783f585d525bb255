"""What a leaf costs under each composition rule, computed anew: an interval that an honest cost lies in.

Where a closed form is exact the interval is a point. Two allowances widen it upwards, never downwards: a store may
round up the cost of a sampled mechanism (a logarithm of a number near 1, so each library answer carries an absolute
error) and may bound the winner of a selection with fewer auxiliary orders, which is valid and costs more. For a
sampled Gaussian at a whole order a the auditor sums the binomial series in the form

    A - 1 = sum over i >= 2 of C(a, i) q^i (1-q)^(a-i) (exp(i(i-1) / (2 sigma^2)) - 1),   cost = log A / (a - 1)

whose terms are all positive, so nothing cancels however small q is. At other orders it asks dp_accounting, whose
series drops the signs of its terms: never below the truth, and a few per cent above it at low orders.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln, logsumexp

from rayprivacy.ledger.audit.events import Leaf, Leaves
from rayprivacy.ledger.audit.selection import winner

Price = tuple[float, float]  # no less than the first, no more than the second
Pricing = Callable[[Leaf], Price | None]  # None: the rule does not take such a mechanism

_SAMPLED_SLACK = 2e-11  # what a store may add to one sampled cost, divided by order - 1; more at orders above 4096


def price(leaves: Leaves, pricing: Pricing) -> Price | None:
    """The cost of an event: of its leaves, each times its runs; None when one of them has no price."""
    lows, highs = [], []
    for leaf, times in leaves:
        found = pricing(leaf)
        if found is None or not all(0 <= bound < math.inf for bound in found):
            return None
        lows.append(found[0] * times)
        highs.append(found[1] * times)
    total = math.fsum(lows), math.fsum(highs)
    return total if math.isfinite(total[1]) else None


def mu_squared(leaf: Leaf) -> Price | None:
    """1 / sigma^2, for Gaussian noise only."""
    if leaf.kind != "gaussian":
        return None
    return (leaf.sigma**-2.0,) * 2


def rho(leaf: Leaf) -> Price | None:
    """The zCDP rho of Gaussian noise, and of Laplace noise by way of pure epsilon = 1/b."""
    if leaf.kind not in ("gaussian", "laplace"):
        return None
    return (leaf.sigma**-2.0 / 2,) * 2


def metric(leaf: Leaf) -> Price | None:
    """tokens * (epsilon * diameter + keep_cost), for metric local privacy only."""
    if leaf.kind not in ("metric-local", "metric-local-sensitive"):
        return None
    token = leaf.facts["epsilon"] * leaf.facts["diameter"] + leaf.facts.get("keep_cost", 0.0)
    return (leaf.facts["tokens"] * token,) * 2


def renyi(order: float) -> Pricing:
    """The Renyi cost at one order."""
    return lambda leaf: renyi_at(leaf, order)


@lru_cache(maxsize=65536)
def renyi_at(leaf: Leaf, order: float) -> Price | None:
    """The Renyi cost of a leaf at an order; None for what has no Renyi bound."""
    if leaf.kind == "gaussian" or (leaf.kind == "poisson-sampled-gaussian" and leaf.q == 1):
        return (order * leaf.sigma**-2.0 / 2,) * 2
    if leaf.kind == "poisson-sampled-gaussian":
        cost = _sampled(leaf, order)
        return cost, cost + max(_SAMPLED_SLACK, 2.0**-50 * float(gammaln(order + 1)) * (order > 4096)) / (order - 1)
    if leaf.kind == "laplace":
        return (_by_library(leaf, order),) * 2
    if leaf.kind == "repeat-and-select":
        return winner(lambda at: price(leaf.inside, renyi(at)), order, leaf.facts["mean"], leaf.facts["shape"])
    return None


def _sampled(leaf: Leaf, order: float) -> float:
    if not order.is_integer():
        found = _by_library(leaf, order)
        if math.isfinite(found):
            return found
        order = float(math.ceil(order))  # the library's series did not converge: the next order costs no less
    i = np.arange(2.0, order + 1)
    gain = i * (i - 1) * (leaf.sigma**-2.0 / 2)
    ways = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    with np.errstate(all="ignore"):
        growth = np.where(gain > 1, gain + np.log1p(-np.exp(-gain)), np.log(np.expm1(np.minimum(gain, 1.0))))
        excess = logsumexp(ways + i * math.log(leaf.q) + (order - i) * math.log1p(-leaf.q) + growth)
    return float(np.logaddexp(0.0, excess)) / (order - 1)


def _by_library(leaf: Leaf, order: float) -> float:
    accountant = RdpAccountant([order], NeighboringRelation.ADD_OR_REMOVE_ONE)
    with np.errstate(all="ignore"):
        try:
            accountant.compose(leaf.to_library())
        except (ArithmeticError, ValueError):
            return math.inf
    return float(accountant.rdp[0])
