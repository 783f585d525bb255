"""Conversions from one privacy unit to another: users with several records, phrases in several shards.

An account protects one unit. A mechanism that samples records instead of users must be charged for all records that one
user owns:

- a user with up to k records, each sampled with probability q, contributes Binomial(k, q) of them to a step: a mixture
  of Gaussians (Choquette-Choo et al. 2023, arXiv 2310.15526), far costlier than one record;
- a phrase that occurs in n shards changes n teachers. With a public, enforced bound on n the noise covers the worst
  phrase, and each rarer phrase is protected better (`phrase_report`).

>>> record_sampling_event(0.01, 1.0, 1, 1000).event
PoissonSampledDpEvent(sampling_probability=0.01, event=GaussianDpEvent(noise_multiplier=1.0))
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from scipy.special import gammaln, xlog1py, xlogy

from rayprivacy.accounting.events import validate
from rayprivacy.accounting.fields import MAX_COUNT, MAX_PARTS, show
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.core.errors import ConfigError


@dataclass(frozen=True)
class PhraseReport:
    """What phrases cost by the number of shards they occur in.

    Attributes:
        at_bound: epsilon of a phrase in the most shards that the public bound allows; the only public figure.
        worst: epsilon of the phrase that occurs in most shards.
        average: mean epsilon over the phrases.
        histogram: pairs (shards, number of phrases that occur in that number of shards).
        releasable: False: all figures but `at_bound` are counted in private text and must not leave unless charged.
    """

    at_bound: float
    worst: float
    average: float
    histogram: tuple[tuple[int, int], ...]
    releasable: bool = False


def record_sampling_event(q: float, sigma: float, records_per_user: int, steps: int) -> DpEvent:
    """The user-level event of steps that sample records one by one, when a user owns up to `records_per_user` of them.

    Args:
        q: probability of each record at each step.
        sigma: noise std / clipping norm of one record.
        records_per_user: public, enforced bound, at most 999.
        steps: number of steps.

    Raises:
        ConfigError: records_per_user is not a whole number from 1 to 999.
        EventError: q, sigma or steps is out of range.
    """
    if type(records_per_user) is not int or not 1 <= records_per_user < MAX_PARTS:
        raise ConfigError(f"records_per_user is {show(records_per_user)}: give a whole number from 1 to 999.")
    one = SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps)
    validate(one)
    if records_per_user == 1:
        return one
    owned = np.arange(records_per_user + 1)
    log_ways = gammaln(records_per_user + 1) - gammaln(owned + 1) - gammaln(records_per_user - owned + 1)
    weights = np.exp(log_ways + xlogy(owned, q) + xlog1py(records_per_user - owned, -q))
    shares = tuple((weights / math.fsum(weights)).tolist())
    return SelfComposedDpEvent(MixtureOfGaussiansDpEvent(float(sigma), tuple(map(float, owned)), shares), steps)


def training_event(q: float, sigma: float, records_per_user: int, steps: int) -> DpEvent:
    """The user-level event of DP-SGD: see `record_sampling_event`; with q = 1 every record is in each step.

    Then a user with k records changes each sum by up to k clipping norms: a Gaussian with sigma / k.
    """
    if q == 1:
        return SelfComposedDpEvent(GaussianDpEvent(sigma / records_per_user), steps)
    return record_sampling_event(q, sigma, records_per_user, steps)


def phrase_report(
    shards_per_phrase: Mapping[str, int] | Mapping[int, int],
    bound: int,
    queries: int,
    sigma_at_bound: float,
    delta: float,
) -> PhraseReport:
    """The epsilon of each phrase under noise that was calibrated for phrases in `bound` shards.

    Source: Tian et al., NeurIPS 2022, who report the average and the worst phrase.

    Args:
        shards_per_phrase: for each phrase, in how many shards it occurs.
        bound: public, enforced bound on that number.
        queries: Gaussian queries answered.
        sigma_at_bound: noise std / L2 sensitivity of a phrase in `bound` shards, per query.
        delta: of the figures.

    Raises:
        ConfigError: no phrase, a number that is out of range, or a phrase in more shards than the bound, which is
            never quoted.
    """
    if type(queries) is not int or not 1 <= queries <= MAX_COUNT:
        raise ConfigError(f"queries is {show(queries)}: give a whole number of at least 1.")
    if not 0 < sigma_at_bound < math.inf:
        raise ConfigError(f"sigma_at_bound is {sigma_at_bound}: give a positive finite number.")
    if type(bound) is not int or not 1 <= bound <= MAX_COUNT:
        raise ConfigError(f"bound is {show(bound)}: give a whole number of at least 1.")
    shards = Counter(shards_per_phrase.values())
    if not shards or any(type(n) is not int or not 0 <= n <= bound for n in shards):
        raise ConfigError(
            f"shards_per_phrase has no phrase, or one outside 0 to bound {bound}: enforce the bound first."
        )
    mu_of_one = math.sqrt(queries) / (sigma_at_bound * bound)
    costs = {n: epsilon_of(n * mu_of_one, delta) for n in shards}
    average = math.fsum(costs[n] * phrases for n, phrases in shards.items()) / shards.total()
    histogram = tuple(sorted(shards.items()))
    return PhraseReport(epsilon_of(bound * mu_of_one, delta), costs[max(shards)], average, histogram)
