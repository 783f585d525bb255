"""The papers' own figures, for printing beside ours under the label "as published"; never a claim of this package.

Most are looser than need be (an old conversion), some are too low (noise overstated, stages or trials left out). The
formulas are re-derived from the papers' descriptions; where a paper leaves a choice open, the docstring says what is
assumed. The *classic* conversion is Mironov 2017, Proposition 3: epsilon = min over a of r(a) + log(1/delta) / (a-1).

>>> round(votes_as_published("a paper", 1000, 48.8212, 1e-6).epsilon, 3)
3.615
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.renyi import ORDERS, rdp

_EDPSGD = "eDP-SGD, as published: multiplier z taken as effective"


@dataclass(frozen=True)
class Published:
    """One figure of a paper.

    Attributes:
        epsilon: as the paper would state it.
        label: whose formula, and what it leaves out.
    """

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
    label = (
        "DP-SGD papers, as published: RDP with the classic conversion; their batches were often shuffled, not sampled"
    )
    return Published(_classic([(step, steps)], delta), label)


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
    return (
        Published(
            _classic(sampled, delta),
            "two-stage generation, as published: both stages by RDP with the classic conversion",
        ),
        Published(epsilon_of(mu, delta), "the same noise on shuffled batches, as in its code: no amplification"),
    )


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
