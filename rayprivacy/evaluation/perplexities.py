"""Perplexities of several models on the same text of some users, with intervals over users."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rayprivacy.evaluation.figures import Figure, mean_figure
from rayprivacy.evaluation.language import perplexity

BASE = "base"
Numbers = npt.NDArray[np.float64]


def perplexity_figures(
    nll: Mapping[str, Numbers], tokens: Numbers, users: npt.NDArray[np.int64], seed: int = 0
) -> dict[str, Any]:
    """Perplexity of each model, and of each over that of the base, with 95% intervals where there are two users.

    `nll` holds by model the negative log-likelihood of each piece of text in nats, summed over its `tokens`, [pieces].
    Both models of a ratio in `over_base` are resampled together.
    """
    found: dict[str, Any] = {"perplexity": {}, "perplexity_interval": {}, "over_base": {}}
    for name, sums in nll.items():
        found["perplexity"][name] = perplexity(float(sums.sum()), int(tokens.sum()))
        if interval := _interval(mean_figure(sums / tokens, users, seed, tokens)):
            found["perplexity_interval"][name] = interval
        if name != BASE and BASE in nll:
            figure = mean_figure((sums - nll[BASE]) / tokens, users, seed, tokens)
            found["over_base"][name] = {"ratio": math.exp(figure.value), "interval": _interval(figure)}
    return found


def _interval(mean: Figure) -> list[float] | None:
    if mean.low is None or mean.high is None:
        return None
    return [math.exp(mean.low), math.exp(mean.high)]
