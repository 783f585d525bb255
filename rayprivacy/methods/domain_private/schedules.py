"""Redaction schedules: which steps of a training read redacted text, decided by public coins before the run.

Source: Domain Private Transformers (2023), figure 3; where the authors' code differs, both forms are here. Step t of T
reads redacted text, and takes no noise, with probability p(t); else it reads full text, and is noisy and charged.

    schedule      form     p(t)                                  noisy steps of T = 200 and 400, expected
    step          paper    1 for t < T/2, then 0 (JFT)           100      200
    step          code     floor(10 (T - t) / T) / 10            109      219
    linear        both     1 - t/T                               99.5     199.5
    expconvex     both     exp(-eta t), eta = 1                  198.4    398.4
    expconcave    paper    1 - exp(eta (t - T) / T), eta = 15    12.8     26.2
    expconcave    code     1 - exp(eta (t + 1 - T) / T)          13.8     27.2
    none          -        0: every step is noisy                200      400

JFT ("just fine-tune twice", Shi et al., 2022) is the paper's step.

The paper tosses a coin in each step and calibrates the noise for all T steps. Here ALL coins come from a public seed of
the recipe, before anything is read, so that the noisy steps are known: they alone are composed, and calibrated.

>>> [round(expected_noisy(name, "code", 200), 1) for name in ("step", "linear", "expconvex", "expconcave")]
[109.0, 99.5, 198.4, 13.8]
>>> sum(draw("expconcave", "code", 200, seed=0)), sum(draw("step", "paper", 200, seed=0))
(191, 100)
"""

import hashlib
import math
from collections.abc import Callable
from typing import Literal, TypeAlias

Name: TypeAlias = Literal["step", "linear", "expconvex", "expconcave", "none"]
Form: TypeAlias = Literal["paper", "code"]
SCALES: dict[str, float] = {"expconvex": 1.0, "expconcave": 15.0}  # eta, where there is one, as in the paper
_CHANCES: dict[tuple[str, str], Callable[[int, int, float], float]] = {
    ("step", "paper"): lambda t, steps, _: float(2 * t < steps),
    ("step", "code"): lambda t, steps, _: 10 * (steps - t) // steps / 10,
    ("linear", "paper"): lambda t, steps, _: 1 - t / steps,
    ("linear", "code"): lambda t, steps, _: (steps - t) / steps,
    ("expconvex", "paper"): lambda t, _, eta: math.exp(-eta * t),
    ("expconvex", "code"): lambda t, _, eta: math.exp(-eta * t),
    ("expconcave", "paper"): lambda t, steps, eta: 1 - math.exp(eta * (t - steps) / steps),
    ("expconcave", "code"): lambda t, steps, eta: 1 - math.exp(eta * (t + 1 - steps) / steps),
    ("none", "paper"): lambda *_: 0.0,
    ("none", "code"): lambda *_: 0.0,
}


def chances(name: Name, form: Form, steps: int, scale: float | None = None) -> list[float]:
    """p(t) for t = 0, ..., T - 1: how likely a step reads redacted text."""
    eta = SCALES.get(name, 1.0) if scale is None else scale
    return [_CHANCES[name, form](t, steps, eta) for t in range(steps)]


def expected_noisy(name: Name, form: Form, steps: int, scale: float | None = None) -> float:
    """How many noisy steps a schedule has in expectation."""
    return sum(1 - chance for chance in chances(name, form, steps, scale))


def draw(name: Name, form: Form, steps: int, seed: int, scale: float | None = None) -> tuple[bool, ...]:
    """For each step whether it reads redacted text: by SHA-256 of seed and step; eta is by default the paper's."""
    return tuple(_uniform(seed, t) < chance for t, chance in enumerate(chances(name, form, steps, scale)))


def _uniform(seed: int, step: int) -> float:
    digest = hashlib.sha256(f"redaction schedule {seed} {step}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2.0**64
