"""Membership inference: scores that say "this one was in the training data", from losses. Pure functions on arrays.

A high score means member. From weak to strong:

- `plain`: the model's loss, negated (Yeom et al. 2018);
- `calibrated`: by how much the loss is below that of a model that did not see the private data (Watson et al. 2022);
- `likelihood_ratio` (LiRA, Carlini et al. 2022): shadow models, trained like the target on samples that are known, give
  each example its own two Gaussians of losses, with it and without it;
- `offline_ratio`: the same without the Gaussian of "with it", when shadow models saw none of the examples;
- `shadow_attack` (Shokri et al. 2017): a logistic regression on features of losses, learnt where membership is known.

For user-level claims a loss is a user's mean over their texts.
"""

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from rayprivacy.core.errors import ConfigError

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_LEAST_SHADOWS = 2
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
    """LiRA, online: the log-likelihood ratio of an example's loss under "in" and "out".

    Args:
        losses: of the target model, [examples].
        shadow_losses: of each shadow model on each example, [shadows, examples].
        shadow_members: whether the shadow model was trained on the example, [shadows, examples].
        shared_variance: estimate one variance for all examples; better below about 64 shadow models.

    Raises:
        ConfigError: the shapes differ, or an example has fewer than two shadow models with it or without it.
    """
    _check_shapes(losses, shadow_losses, shadow_members)
    inside = _gaussians(shadow_losses, shadow_members, shared_variance)
    outside = _gaussians(shadow_losses, ~shadow_members, shared_variance)
    return np.asarray(stats.norm.logpdf(losses, *inside) - stats.norm.logpdf(losses, *outside))


def offline_ratio(losses: Array, shadow_losses: Array, shadow_members: Mask, *, shared_variance: bool = False) -> Array:
    """LiRA, offline: how improbably low a loss is for a model without the example, as a negated log-probability.

    Args:
        losses: of the target model, [examples].
        shadow_losses: of each shadow model on each example, [shadows, examples].
        shadow_members: whether the shadow model was trained on the example; those are left out.
        shared_variance: as for `likelihood_ratio`.

    Raises:
        ConfigError: the shapes differ, or an example has fewer than two shadow models without it.
    """
    _check_shapes(losses, shadow_losses, shadow_members)
    return np.asarray(-stats.norm.logcdf(losses, *_gaussians(shadow_losses, ~shadow_members, shared_variance)))


def shadow_attack(shadow_features: Array, shadow_members: Mask, features: Array, ridge: float = 1e-3) -> Array:
    """The log-odds of membership, by a logistic regression learnt on shadow models.

    Args:
        shadow_features: [rows, features] of examples whose membership in their shadow model is known.
        shadow_members: that membership, [rows].
        features: the same features of the target model, [examples, features].
        ridge: strength of the L2 penalty on standardised features.

    Raises:
        ConfigError: the shapes differ, or all shadow rows are members, or none is.
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
    if number.min() < _LEAST_SHADOWS:
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
