"""Membership inference from losses: scores that say "this one was in the training data", and how well they may do so.

A high score means member. From weak to strong:

- `plain`: the model's loss, negated (Yeom et al. 2018);
- `calibrated`: by how much the loss is below that of a model that did not see the private data (Watson et al. 2022);
- `likelihood_ratio` (LiRA, Carlini et al. 2022): shadow models, trained like the target on samples that are known, give
  each example its own two Gaussians of losses, with it and without it;
- `offline_ratio`: the same without the Gaussian of "with it", when shadow models saw none of the examples;
- `shadow_attack` (Shokri et al. 2017): a logistic regression on features of losses, learnt where membership is known.

For user-level claims a loss is a user's mean over their texts.

Few members found with certainty are a worse leak than many found a little better than by chance, so the rate of hits is
read at small rates of false alarms (Carlini et al. 2022), with Clopper-Pearson intervals. Beside each stands the
greatest rate that the claimed (epsilon, delta) admits, at the highest rate of false alarms that the others leave room
for: of 130 others none may be above a threshold that one in a hundred is above.

>>> members, others = np.array([3.0, 2.0, 1.0]), np.array([2.5, 0.5, 0.0])
>>> round(auc(members, others), 3)
0.778
>>> operating_points(members, others, rates=(0.34,))[0].hits
3
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from rayprivacy.auditing.bounds import Counts, Profile, clopper_pearson
from rayprivacy.core.errors import ConfigError

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

RATES = (0.001, 0.01, 0.1)
_LEAST_STD = 1e-6


def plain(losses: Array) -> Array:
    """The loss itself: members are less surprising."""
    return -losses


def calibrated(losses: Array, reference: Array) -> Array:
    """The loss of a reference model, e.g. the public base, less that of the model: an example's difficulty cancels."""
    return reference - losses


def likelihood_ratio(
    losses: Array, shadow_losses: Array, shadow_members: Mask, *, shared_variance: bool = False
) -> Array:
    """LiRA, online: the log-likelihood ratio of an example's loss, [examples], under "in" and "out". Shadow arrays are
    [shadows, examples], two of either kind at least. One `shared_variance` is better below about 64.
    """
    _check_shapes(losses, shadow_losses, shadow_members)
    inside = _gaussians(shadow_losses, shadow_members, shared_variance)
    outside = _gaussians(shadow_losses, ~shadow_members, shared_variance)
    return np.asarray(stats.norm.logpdf(losses, *inside) - stats.norm.logpdf(losses, *outside))


def offline_ratio(losses: Array, shadow_losses: Array, shadow_members: Mask, *, shared_variance: bool = False) -> Array:
    """LiRA, offline: the negated log-probability of such a low loss for a model without the example, as above."""
    _check_shapes(losses, shadow_losses, shadow_members)
    return np.asarray(-stats.norm.logcdf(losses, *_gaussians(shadow_losses, ~shadow_members, shared_variance)))


def shadow_attack(shadow_features: Array, shadow_members: Mask, features: Array, ridge: float = 1e-3) -> Array:
    """The log-odds of membership, by a logistic regression on features, [rows, features], whose membership is known in
    their shadow model; `ridge` is the L2 penalty on standardised features.
    """
    if shadow_features.shape != (len(shadow_members), features.shape[1]):
        raise ConfigError(
            f"shadow_features has shape {shadow_features.shape}: give {len(shadow_members)} rows of"
            f" {features.shape[1]} features."
        )
    if shadow_members.all() or not shadow_members.any():
        raise ConfigError("shadow_members is the same for all rows: give members and others.")
    mean, std = shadow_features.mean(0), np.maximum(shadow_features.std(0), _LEAST_STD)
    design = np.column_stack([np.ones(len(shadow_features)), (shadow_features - mean) / std])
    signs = np.where(shadow_members, 1.0, -1.0)

    def objective(weights: Array) -> tuple[float, Array]:
        margins = signs * (design @ weights)
        pull = -signs / (1 + np.exp(np.clip(margins, -500, 500)))
        loss = np.logaddexp(0, -margins).mean() + ridge / 2 * (weights[1:] ** 2).sum()
        return float(loss), design.T @ pull / len(signs) + ridge * np.append(0.0, weights[1:])

    fitted = optimize.minimize(objective, np.zeros(design.shape[1]), jac=True, method="L-BFGS-B").x
    return np.asarray(fitted[0] + (features - mean) / std @ fitted[1:])


def _gaussians(losses: Array, chosen: Mask, shared: bool) -> tuple[Array, Array]:
    """Mean and standard deviation of the chosen losses of each example."""
    number = chosen.sum(0)
    if number.min() < 2:
        raise ConfigError(f"an example has {number.min()} shadow models of one kind: train shadows until each has two.")
    mean = np.where(chosen, losses, 0.0).sum(0) / number
    squares = np.where(chosen, (losses - mean) ** 2, 0.0).sum(0)
    variance = squares.sum() / (number - 1).sum() if shared else squares / (number - 1)
    return mean, np.broadcast_to(np.maximum(np.sqrt(variance), _LEAST_STD), mean.shape)


def _check_shapes(losses: Array, shadow_losses: Array, shadow_members: Mask) -> None:
    if shadow_losses.shape != shadow_members.shape or shadow_losses.shape[1:] != losses.shape:
        raise ConfigError(
            f"shadow_losses has shape {shadow_losses.shape} and shadow_members {shadow_members.shape}: give both as"
            f" [shadow models, {len(losses)} examples]."
        )


@dataclass(frozen=True)
class Point:
    """One threshold: how many members and others are above it; `rate` is the greatest allowed of false alarms."""

    rate: float
    hits: int
    members: int
    false_alarms: int
    others: int

    @property
    def hit_rate(self) -> float:
        """The share of members above the threshold."""
        return self.hits / self.members

    @property
    def interval(self) -> tuple[float, float]:
        """The Clopper-Pearson interval of the rate of hits, at 95 percent, for a threshold that is given."""
        return clopper_pearson(self.hits, self.members)

    @property
    def counts(self) -> Counts:
        """The same as counts in two worlds."""
        return Counts(self.hits, self.members, self.false_alarms, self.others)

    @property
    def most_false_alarms(self) -> float:
        """The upper end of the Clopper-Pearson interval of the rate of false alarms, at 95 percent."""
        return clopper_pearson(self.false_alarms, self.others)[1]

    def admitted(self, claim: Profile) -> float:
        """The greatest rate of hits that a claim admits, at the upper end of the false alarms that were measured."""
        return claim.most_hits(max(self.rate, self.most_false_alarms))


def auc(members: Array, others: Array) -> float:
    """The chance that a member's score is above another's, equal scores counting half."""
    _check(members, others)
    placed = stats.rankdata(np.concatenate([members, others]))[: len(members)]
    return float((placed.sum() / len(members) - (len(members) + 1) / 2) / len(others))


def auc_interval(members: Array, others: Array, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of Hanley & McNeil (1982) around the AUC, cut to [0, 1]; approximate, and for large samples."""
    area = auc(members, others)
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    m, n = len(members), len(others)
    variance = (area * (1 - area) + (m - 1) * (first - area**2) + (n - 1) * (second - area**2)) / (m * n)
    reach = float(stats.norm.isf((1 - confidence) / 2)) * max(0.0, variance) ** 0.5
    return max(0.0, area - reach), min(1.0, area + reach)


def curve(members: Array, others: Array) -> tuple[Array, Array]:
    """The ROC curve: rates of false alarms and of hits at every threshold, from (0, 0) to (1, 1)."""
    _check(members, others)
    thresholds = np.unique(np.concatenate([members, others]))[::-1]
    rates = [np.searchsorted(np.sort(-scores), -thresholds, side="right") / len(scores) for scores in (others, members)]
    return np.append(0.0, rates[0]), np.append(0.0, rates[1])


def operating_points(members: Array, others: Array, rates: Sequence[float] = RATES) -> list[Point]:
    """Hits at the lowest threshold that keeps false alarms within each rate, and allows none below 1 / rate others."""
    _check(members, others)
    descending = np.sort(others)[::-1]
    found = []
    for rate in rates:
        if not 0 < rate < 1:
            raise ConfigError(f"a rate of false alarms is {rate}: give a number between 0 and 1, e.g. 0.01.")
        allowed = int(rate * len(others) + 1e-9)
        threshold = descending[allowed]  # scores above it: at most `allowed` of the others
        hits, false = int((members > threshold).sum()), int((others > threshold).sum())
        found.append(Point(rate, hits, len(members), false, len(others)))
    return found


def _check(members: Array, others: Array) -> None:
    if not (len(members) and len(others)):
        raise ConfigError(f"there are {len(members)} members and {len(others)} others: give some of both.")
