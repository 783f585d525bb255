"""An audit in one training run: many canaries, each included by its own fair coin (Steinke, Nasr & Jagielski 2023).

The auditor sees the released model, gives each canary a score, guesses "in" for the highest ones and "out" for the
lowest ones, and abstains from the rest. Against a mechanism that is (epsilon, delta)-private, each guess is right with
a chance of at most exp(epsilon) / (1 + exp(epsilon)), even when all the others are known, up to delta (theorem 5.2).
Enough right guesses refute a small epsilon:

    P[right >= v] <= beta(v) + 2 m delta * max over i of (beta(v - i) - beta(v)) / i,
    beta(v) = P[Binomial(guesses, exp(epsilon) / (1 + exp(epsilon))) >= v]

REPORT ONLY. The bound is valid but weak: it often passes a run whose noise is twice too small. It never gates a
release; `bounds.compare`, with many runs, does. How many guesses are made must be chosen beforehand. The coins must be
thrown for this audit: users who were held out by a coin of another probability do not fit.

>>> outcome = Guesses(canaries=1000, made=1000, right=818)
>>> round(outcome.epsilon(delta=0.0), 2)
1.37
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from rayprivacy.core.errors import ConfigError

_MOST_EPSILON = 64.0  # exp(-64) is far below what any number of guesses can tell from 0


@dataclass(frozen=True)
class Guesses:
    """What a one-run audit counted.

    Attributes:
        canaries: how many coins were thrown, abstentions included.
        made: guesses.
        right: right guesses.
        report_only: marks the figure: it is shown, and never decides anything.

    Raises:
        ConfigError: more guesses than canaries, or more right ones than guesses.
    """

    canaries: int
    made: int
    right: int
    report_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 <= self.right <= self.made <= self.canaries and self.made):
            raise ConfigError(
                f"guesses are {self.right} right of {self.made} on {self.canaries} canaries: give right <= made <= "
                "canaries, and make at least one."
            )

    def p_value(self, epsilon: float, delta: float = 0.0) -> float:
        """A bound on the chance of this number of right guesses against an (epsilon, delta)-private mechanism.

        Raises:
            ConfigError: epsilon is negative, or delta is outside [0, 1).
        """
        if not (epsilon >= 0 and 0 <= delta < 1):
            raise ConfigError(f"the claim is epsilon {epsilon}, delta {delta}: give epsilon >= 0 and 0 <= delta < 1.")
        chance = 1 / (1 + math.exp(-epsilon))
        beta = float(stats.binom.sf(self.right - 1, self.made, chance))
        # The sum of the chances of v - 1, v - 2, ... v - i right guesses is beta(v - i) - beta(v).
        below = np.cumsum(stats.binom.pmf(np.arange(self.right - 1, -1, -1), self.made, chance))
        slope = float((below / np.arange(1, self.right + 1)).max(initial=0.0))
        return min(1.0, beta + 2 * self.canaries * delta * slope)

    def epsilon(self, delta: float = 0.0, confidence: float = 0.95) -> float:
        """A lower bound on epsilon at `delta`, with this confidence; 0 when nothing was shown.

        Raises:
            ConfigError: the confidence or delta are out of range.
        """
        if not 0 < confidence < 1:
            raise ConfigError(f"confidence is {confidence}: give a number between 0 and 1, e.g. 0.95.")
        low, high = 0.0, _MOST_EPSILON
        if self.p_value(low, delta) > 1 - confidence:
            return 0.0
        for _ in range(60):  # the p-value grows with epsilon
            middle = (low + high) / 2
            low, high = (low, middle) if self.p_value(middle, delta) > 1 - confidence else (middle, high)
        return low


def coins(canaries: int, seed: int) -> npt.NDArray[np.bool_]:
    """A fair coin for each canary."""
    thrown: npt.NDArray[Any] = np.random.default_rng(seed).random(canaries) < 0.5
    return thrown
