"""The papers' own figures, for printing beside ours under the label "as published"; and units of other units.

A published figure is never a claim of this package. Most are looser than need be (an old conversion), some are too low
(noise overstated, stages or trials left out). The formulas are re-derived from the papers' descriptions; where a paper
leaves a choice open, the docstring says what is assumed. The *classic* conversion is Mironov 2017, Proposition 3:
epsilon = min over a of r(a) + log(1/delta) / (a-1).

>>> round(votes_as_published("a paper", 1000, 48.8212, 1e-6).epsilon, 3)
3.615

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
from collections.abc import Mapping, Sequence
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

from rayprivacy.accounting.events import MAX_COUNT, MAX_PARTS, show, validate
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.renyi import ORDERS, rdp
from rayprivacy.core.errors import ConfigError

_EDPSGD = "eDP-SGD, as published: multiplier z taken as effective"


@dataclass(frozen=True)
class Published:
    """One figure, as the paper would state it; the label says whose formula it is, and what it leaves out."""

    epsilon: float
    label: str


def votes_as_published(paper: str, queries: int, sigma: float, delta: float) -> Published:
    """Gaussian votes (Tian et al., NeurIPS 2022): Renyi cost of the sum, L2 sensitivity sqrt(2), classic conversion.

    With rho = queries / (2 sigma^2) the best order gives rho + 2 sqrt(rho log(1/delta)); assumed to be optimised over
    real orders.
    """
    rho = queries / (2 * sigma * sigma)
    epsilon = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return Published(epsilon, f"{paper}, as published: RDP with the classic conversion")


def dpsgd(step: DpEvent, steps: int, delta: float) -> Published:
    """DP-SGD papers and older Opacus: Renyi cost of Poisson-sampled steps, classic conversion.

    Assumed: batches were shuffled in truth, as in most published code, so the figure holds for a sampler that was not
    used.
    """
    label = "DP-SGD papers, as published: RDP with the classic conversion"
    return Published(_classic([(step, steps)], delta), f"{label}; their batches were often shuffled, not sampled")


def two_stage(stages: Sequence[tuple[DpEvent, int]], delta: float) -> tuple[Published, ...]:
    """Two-stage generation: each stage alone, though both see the same users; assumed the classic conversion."""
    return tuple(
        Published(_classic([stage], delta), f"two-stage generation, as published: stage {number} alone")
        for number, stage in enumerate(stages, 1)
    )


def two_stage_together(stages: Sequence[tuple[float, float, int]], delta: float) -> tuple[Published, Published]:
    """Two-stage generation (Mireshghallah et al., ACL 2023, appendix C.2): both stages by RDP, and what they cost.

    The paper counts its batches as Poisson samples. Its code shuffles: a unit then takes part in a share q of the steps
    of a stage, for certain, and the second figure counts these as Gaussians without amplification, which is exact.
    """
    sampled = [(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps) for q, sigma, steps in stages]
    mu = math.sqrt(math.fsum(math.ceil(q * steps) / sigma**2 for q, sigma, steps in stages))
    label = "two-stage generation, as published: both stages by RDP with the classic conversion"
    shuffled = Published(epsilon_of(mu, delta), "the same noise on shuffled batches, as in its code: no amplification")
    return Published(_classic(sampled, delta), label), shuffled


def edpsgd(claimed: Sequence[tuple[DpEvent, int]], delta: float) -> Published:
    """eDP-SGD: the multipliers z_t as printed, without the factor 2 of a clipped mean or the split over workers."""
    return Published(_classic(claimed, delta), f"{_EDPSGD}, classic conversion")


def edpsgd_by_zcdp(rho: float, delta: float) -> Published:
    """eDP-SGD (Dupuy et al., ICASSP 2022), the same by zCDP, which the paper names (after Yu et al., 2019).

    That counts an epoch of shuffled batches as one release; rho is the sum of 1 / (2 z_t^2) over epochs. Which
    conversion the paper took, it does not say.
    """
    epsilon = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return Published(epsilon, f"{_EDPSGD}, zCDP with each epoch as one release")


def santext(epsilon: float) -> Published:
    """SanText (Yue et al. 2021): the parameter per token and unit of distance."""
    return Published(epsilon, "SanText (2021), as published: epsilon per token and unit of distance only")


def select(one_trial: float) -> Published:
    """Papers that tune: the epsilon of the winning run, the other trials left out."""
    return Published(one_trial, "as usually published: the winning run alone, tuning ignored")


def _classic(lines: Sequence[tuple[DpEvent, int]], delta: float) -> float:
    totals = [math.fsum(costs) for costs in zip(*([n * r for r in rdp(leaf)] for leaf, n in lines), strict=True)]
    return min(cost + math.log(1 / delta) / (order - 1) for cost, order in zip(totals, ORDERS, strict=True))


@dataclass(frozen=True)
class PhraseReport:
    """The epsilon of phrases: of one in the most shards that the public bound allows, of the worst, and on average.

    `at_bound` is the only public figure. All others are counted in private text and must not leave unless charged,
    hence not `releasable`; `histogram` has pairs (shards, number of phrases that occur in that number of shards).
    """

    at_bound: float
    worst: float
    average: float
    histogram: tuple[tuple[int, int], ...]
    releasable: bool = False


def record_sampling_event(q: float, sigma: float, records_per_user: int, steps: int) -> DpEvent:
    """The user-level event of steps that sample records one by one, when a user owns up to `records_per_user` of them.

    That bound is public and enforced; q is the probability of each record at each step, and sigma noise std / clipping
    norm of one record.
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

    Source: Tian et al., NeurIPS 2022, who report the average and the worst phrase. `bound` is public and enforced, and
    `sigma_at_bound` is noise std / L2 sensitivity of a phrase in that number of shards, per query. How often a phrase
    occurs is never quoted.
    """
    for name, count in (("queries", queries), ("bound", bound)):
        if type(count) is not int or not 1 <= count <= MAX_COUNT:
            raise ConfigError(f"{name} is {show(count)}: give a whole number of at least 1.")
    if not 0 < sigma_at_bound < math.inf:
        raise ConfigError(f"sigma_at_bound is {sigma_at_bound}: give a positive finite number.")
    shards = Counter(shards_per_phrase.values())
    if not shards or any(type(n) is not int or not 0 <= n <= bound for n in shards):
        raise ConfigError(f"shards_per_phrase has no phrase, or one outside 0 to bound {bound}: enforce it first.")
    mu_of_one = math.sqrt(queries) / (sigma_at_bound * bound)
    costs = {n: epsilon_of(n * mu_of_one, delta) for n in shards}
    average = math.fsum(costs[n] * phrases for n, phrases in shards.items()) / shards.total()
    at_bound = epsilon_of(bound * mu_of_one, delta)
    return PhraseReport(at_bound, costs[max(shards)], average, tuple(sorted(shards.items())))
