"""Redaction schedules: which steps of a training read redacted text, decided by public coins before the run.

Source: Domain Private Transformers (2023), figure 3; where the authors' code differs, this is what the paper prints.
Step t of T reads redacted text, and takes no noise, with probability p(t); else it reads full text, and is noisy and
charged.

    schedule      p(t)                                  noisy steps of T = 200 and 400, expected
    step          1 for t < T/2, then 0 (JFT)           100      200
    linear        1 - t/T                               99.5     199.5
    expconvex     exp(-t)                               198.4    398.4
    expconcave    1 - exp(15 (t - T) / T)               12.8     26.2
    none          0: every step is noisy                200      400

JFT ("just fine-tune twice", Shi et al., 2022) is the paper's step.

The paper tosses a coin in each step and calibrates the noise for all T steps. Here ALL coins come from a public seed of
the recipe, before anything is read, so that the noisy steps are known: they alone are composed, and calibrated.

>>> [round(expected_noisy(name, 200), 1) for name in ("step", "linear", "expconvex", "expconcave")]
[100.0, 99.5, 198.4, 12.8]
>>> sum(draw("expconcave", 200, seed=0)), sum(draw("step", 200, seed=0))
(191, 100)
"""

import hashlib
import math
from collections.abc import Callable
from typing import Literal, TypeAlias

Name: TypeAlias = Literal["step", "linear", "expconvex", "expconcave", "none"]
_CHANCES: dict[str, Callable[[int, int], float]] = {
    "step": lambda t, steps: float(2 * t < steps),
    "linear": lambda t, steps: 1 - t / steps,
    "expconvex": lambda t, _: math.exp(-t),
    "expconcave": lambda t, steps: 1 - math.exp(15.0 * (t - steps) / steps),
    "none": lambda *_: 0.0,
}


def chances(name: Name, steps: int) -> list[float]:
    """p(t) for t = 0, ..., T - 1: how likely a step reads redacted text."""
    return [_CHANCES[name](t, steps) for t in range(steps)]


def expected_noisy(name: Name, steps: int) -> float:
    """How many noisy steps a schedule has in expectation."""
    return sum(1 - chance for chance in chances(name, steps))


def draw(name: Name, steps: int, seed: int) -> tuple[bool, ...]:
    """For each step whether it reads redacted text; the same on every machine and in every version.

    The coin of step t is SHA-256 of the public seed and t.
    """
    return tuple(_uniform(seed, t) < chance for t, chance in enumerate(chances(name, steps)))


def _uniform(seed: int, step: int) -> float:
    digest = hashlib.sha256(f"redaction schedule {seed} {step}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2.0**64
