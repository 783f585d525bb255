"""The mechanism of DP-SGD's steps: what they are charged, and the noise that goes with the charge.

Source: Abadi et al. (2016), "Deep Learning with Differential Privacy", algorithm 1, with Poisson sampling.

In each step every user (or record) takes part by a coin of probability q of its own. The sum of the clipped gradients
changes by at most C when one user is added or removed, the noise has standard deviation sigma * C on every coordinate,
and the sum is divided by a public number. So a step is the event Poisson(q, Gaussian(sigma)), also when no unit was
sampled: an empty step draws noise and counts.

Charge and noise come from one object and cannot be set apart: the gate charges a chunk `event_of` its steps, and the
optimizer adds noise of `noise_std` to the step that is open. Both follow from the multiplier of each step.

>>> steps = NoisySteps(sampling_rate=0.01, noise_multiplier=1.0, clipping_norm=0.5, steps=10)
>>> steps.event.count, steps.event.event.sampling_probability, steps.noise_std(step=0)
(10, 0.01, 0.5)

**Noise that falls.** Steps fall into at most 16 levels of whole chunks (`accounting.schedule`). All steps of a level
have the noise of that level and are the event Poisson(q, Gaussian(sigma_level)), whatever came before: which noise a
step has depends on its number alone, so the steps compose heterogeneously and adaptively, as those of one noise do. A
chunk is charged the events of its own steps.

>>> from dataclasses import replace
>>> falling = replace(steps, schedule=NoiseSchedule("linear", tau=1.0, steps_per_epoch=5), chunk=5)
>>> falling.levels, [falling.noise_std(step) for step in (0, 4, 5)]
(((1.0, 5), (0.5, 5)), [0.5, 0.5, 0.25])

**Micro-batches**, as in eDP-SGD (Dupuy et al., ICASSP 2022). The units of a step fall into N micro-batches, each unit
into one, by a keyed hash of its own. A micro-batch gives the gradient of the mean loss of its units, clipped to C, or
zero where it has none. The step releases

    (sum over micro-batches + N(0, (2 sigma C)^2 I)) / N

One more unit changes one micro-batch and no other. The mean in it may turn from one end of the ball of radius C to the
other: the sum moves by 2C, or by C where the micro-batch was empty. Clipping a mean costs this factor of two, which
TensorFlow Privacy documents for its micro-batches too (issue 620). Noise is scaled to 2C, so sigma is the effective
multiplier, and a step is the event Poisson(q, Gaussian(sigma)): amplification by sampling holds for any function of the
sample, not only for sums over units. How many units a micro-batch has is private, and stays inside the clip; N is
public.

>>> replace(steps, microbatches=16).noise_std(step=0)
1.0

**Correlated noise**, by banded matrix factorisation: Choquette-Choo et al. (NeurIPS 2023), "(Amplified) Banded Matrix
Factorization", algorithm 2 and theorem 4. Units fall into b groups by a keyed hash of their own. Step t is open to
group t mod b alone, and each unit of it takes part by a coin of probability p = b q. With G_t the sum of clipped
gradients of step t and C banded (`strategy`), what is released is G + sigma C_clip C^-1 z, or, which is the same,
C G + sigma C_clip z.

Why T steps cost T / b events Poisson(p, Gaussian(sigma)): a unit's steps lie b apart, and what it adds at step t is in
rows t, ..., t + b - 1 of C G alone: column t of C times its clipped gradient. So those rows are one event, they do not
overlap with those of its next step, and the column is at most 1 long. The gradient of step t is fixed by what was
released before row t. What others add in these rows may depend on the rows before, which are released: given them, it
is the same in both worlds, and can be subtracted. So nothing more is lost by adaptivity, within an event or between
them. Each group has T / b steps that are open to it.

A chunk is charged the events that begin in it. The last b - 1 rows of an event may come in the next chunk, and are paid
for by then.

>>> banded = NoisySteps(0.2, noise_multiplier=1.0, clipping_norm=0.5, steps=12, bands=4)
>>> banded.event.count, banded.event.event.sampling_probability
(3, 0.2)

**Redacted steps**: a schedule of noisy steps on full text, and of steps on redacted text with light noise or none.
Domain Private Transformers (2023), section on redaction schedules; Shi et al. (2022) for two stages, and for light
noise in the first one, against what a policy misses.

What is protected, and against what. Let F be a public, row-wise policy. Neighbours have the same redacted copies, and
differ in ONE unit whose full text takes part in the noisy steps or does not (zero-out). A noisy step is then the event
of plain DP-SGD: Poisson(q, Gaussian(sigma)), with the sigma of this step where noise falls, and with noise on 2C where
micro-batches are clipped. A step on redacted copies is post-processing: it is a function of the weights before it,
which are released with noise, of the copies, which are equal on both sides, and of noise of its own. So the noisy steps
alone are charged. They are fixed before the run, by public coins: a charge is a matter of the recipe.

This is selective differential privacy: it says nothing of what the policy leaves in the copies. Charges of such steps
are admitted to selective accounts of the policy, and to no others.

With light noise the redacted steps are steps of plain DP-SGD as well, on other text: a unit's copy depends on this unit
alone, and its gradient is clipped as any. So all steps together are differentially private for users, with no regard to
the policy, at the larger epsilon of `central_event_of`. A central account pays that besides.

A chunk of steps is charged for its noisy steps. One that has none rides on the next chunk that has some, or, at the
end, on the last one.

>>> listed = (True, True, False, True, False, True)
>>> scheduled = NoisySteps(0.1, 1.0, 0.5, 6, redacted=listed, policy="digits")
>>> scheduled.event.count, [scheduled.noise_std(step) for step in range(6)]
(2, [0.0, 0.0, 0.5, 0.0, 0.5, 0.0])
>>> scheduled.charged_chunks(2)
[range(0, 4), range(4, 6)]
"""

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, asdict, dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from scipy.optimize import minimize
from scipy.signal import lfilter

from rayprivacy.accounting.events import validate
from rayprivacy.accounting.loss import PLD_SIGMA_FLOOR
from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import AccountKind, PrivacyUnit, Protection

Array = npt.NDArray[np.float64]
_GRID = 2.0**20
_DECIMALS = 3  # of the coefficients with c_0 = 1: coarser than machines differ, and far too fine to matter
_NO_STRATEGY = 1e300
_CONSTANT = NoiseSchedule()
_ALWAYS = ("sampling_rate", "noise_multiplier", "clipping_norm", "steps", "unit")
_NAMED = {  # what the digest of a release holds of steps of each kind
    "sampled": _ALWAYS,
    "falling": (*_ALWAYS, "schedule", "chunk", "levels"),
    "microbatch": (*_ALWAYS, "schedule", "chunk", "microbatches", "levels"),
    "banded": (*_ALWAYS, "bands", "strategy"),
}


@dataclass(frozen=True)
class NoisySteps:
    """Sensitivity, noise and event of all steps of one training; immutable, picklable, and public in all its parts.

    Attributes:
        sampling_rate: the probability that a user (or record) takes part in a step that is open to it.
        noise_multiplier: sigma, noise std / sensitivity, of a step whose factor is 1.
        clipping_norm: C, bound on the L2 norm of a clipped gradient: of one user (or record), or of a micro-batch.
        steps: T; steps count from 0, and redacted ones are among them.
        unit: whose coin is tossed, and whose gradient is clipped unless there are micro-batches.
        schedule: by which the noise falls.
        chunk: steps that are charged at once; levels of noise are made of whole chunks.
        microbatches: N; None where units are clipped.
        bands: b, how many steps in a row share noise, and how many groups there are; 1 is independent noise.
        redacted: for each step whether it reads redacted text; empty where there is no redaction schedule.
        policy: digest of the public policy that redacts.
        light: noise multiplier of redacted steps; 0 leaves noise out.
    """

    sampling_rate: float
    noise_multiplier: float
    clipping_norm: float
    steps: int
    unit: PrivacyUnit = PrivacyUnit.USER
    _: KW_ONLY
    schedule: NoiseSchedule = _CONSTANT
    chunk: int = 1
    microbatches: int | None = None
    bands: int = 1
    redacted: tuple[bool, ...] = ()
    policy: str = ""
    light: float = 0.0

    def __post_init__(self) -> None:
        for name, count in (("microbatches", self.microbatches), ("bands", self.bands), ("steps", self.steps)):
            if count is not None and (type(count) is not int or count < 1):
                raise ReleaseError(f"{name} is {count!r}: give a whole number of at least 1.")
        if not (math.isfinite(self.clipping_norm) and self.clipping_norm > 0):
            raise ReleaseError(f"the clipping norm is {self.clipping_norm}: give a positive finite number.")
        if self.unit not in (PrivacyUnit.USER, PrivacyUnit.RECORD):
            raise ReleaseError(f"the unit is '{self.unit}': DP-SGD protects a user or a record.")
        if self.bands > 1 and (self.schedule.falls or self.microbatches or self.redacted):
            raise ReleaseError(
                "the noise of the steps is correlated, and can neither fall, nor be for micro-batches, nor be left out"
                " of some: set bands to 1."
            )
        self._check_noise()
        self._check_redaction()

    def _check_noise(self) -> None:
        validate(self._event_on_full_text(range(self.steps)))
        least = min(sigma for sigma, _ in self.levels)
        if self.schedule.falls and least <= PLD_SIGMA_FLOOR:
            raise ReleaseError(
                f"the noise schedule leaves a noise multiplier of {least:.3g} in the last steps: let it stay above"
                f" {PLD_SIGMA_FLOOR}, with a smaller tau, fewer steps or more noise at first."
            )

    def _check_redaction(self) -> None:
        if not (self.redacted or self.policy or self.light):
            return
        if len(self.redacted) != self.steps:
            raise ReleaseError(f"the schedule has {len(self.redacted)} entries for {self.steps} steps: give one each.")
        if all(self.redacted):
            raise ReleaseError("no step of the schedule is noisy, so that there is nothing to charge: plan some.")
        if not self.policy:
            raise ReleaseError("the schedule names no policy: give the digest of the one that redacts.")
        if not 0 <= self.light < math.inf:
            raise ReleaseError(f"the light noise is {self.light}: give a finite multiplier, or 0 for none.")

    @property
    def sensitivity(self) -> float:
        """How far one unit moves the sum of a step at most, in L2; what noise multipliers are in units of."""
        return self.clipping_norm if self.microbatches is None else 2 * self.clipping_norm

    @property
    def levels(self) -> tuple[tuple[float, int], ...]:
        """Noise multipliers on full text, in order, each with the number of steps in a row that have it."""
        factors = self.schedule.levels(self.steps, self.chunk)
        return tuple((self.noise_multiplier * factor, times) for factor, times in factors)

    def multiplier(self, step: int) -> float:
        """The noise multiplier of a step: that of its level, or, where it reads redacted text, the light one or 0."""
        levels = self.levels
        for (sigma, _), end in zip(levels, accumulate(times for _, times in levels), strict=True):
            if 0 <= step < end:
                return self.light if self.redacted and self.redacted[step] else sigma
        raise ReleaseError(f"step {step} is not one of the {self.steps} steps: no noise is planned for it.")

    def noise_std(self, step: int) -> float:
        """Standard deviation of a step's own draw, on each coordinate of the sum of clipped gradients."""
        return self.multiplier(step) * self.sensitivity

    @property
    def strategy(self) -> tuple[float, ...]:
        """The coefficients of C: noise of all steps is C^-1 times independent draws; (1.0,) where it is independent."""
        return prefix_strategy(self.bands, self.steps) if self.bands > 1 else (1.0,)

    @property
    def event(self) -> DpEvent:
        """The charge of all steps together."""
        return self.event_of(range(self.steps))

    def event_of(self, steps: range) -> DpEvent:
        """The charge of one chunk of consecutive steps; a repetition after a crash gives an equal event.

        They are planned steps, a whole multiple of the bands, and not all redacted.
        """
        if not self.redacted:
            return self._event_on_full_text(steps)
        noisy = [self._one(self.multiplier(step)) for step in steps if not self.redacted[step]]
        if not noisy:
            raise ReleaseError(f"none of steps {steps.start} to {steps.stop} is noisy: charge them with later ones.")
        return _counted(noisy)

    def central_event_of(self, steps: range) -> DpEvent:
        """What some steps of a redaction schedule cost a user with no regard to the policy; redacted ones need light
        noise.
        """
        if not self.light:
            raise ReleaseError("redacted steps take no noise, and have no epsilon for users: give them light noise.")
        return _counted(self._one(self.multiplier(step)) for step in steps)

    def _event_on_full_text(self, steps: range) -> DpEvent:
        """An event for every b steps, and one count of them for each level that the steps are in."""
        if len(steps) % self.bands or steps.start % self.bands:
            raise ReleaseError(
                f"steps {steps.start} to {steps.stop} are charged at once with bands {self.bands}: let steps and chunk"
                " be multiples of bands."
            )
        if not 0 <= steps.start < steps.stop <= self.steps:
            raise ReleaseError(
                f"steps {steps.start} to {steps.stop} are not all planned: there are {self.steps} steps."
            )
        parts, begin = [], 0
        for sigma, times in self.levels:
            shared = min(steps.stop, begin + times) - max(steps.start, begin)
            if shared > 0:
                parts.append(SelfComposedDpEvent(self._one(sigma), shared // self.bands))
            begin += times
        return parts[0] if len(parts) == 1 else ComposedDpEvent(parts)

    def _one(self, sigma: float) -> DpEvent:
        """The event of one step, or of b steps in a row."""
        return PoissonSampledDpEvent(float(self.sampling_rate), GaussianDpEvent(float(sigma)))

    @property
    def redacted_steps(self) -> frozenset[int]:
        """The steps that may read redacted text only."""
        return frozenset(step for step, redacted in enumerate(self.redacted) if redacted)

    @property
    def noiseless_steps(self) -> frozenset[int]:
        """The steps that take no noise: the redacted ones of a schedule without light noise."""
        return frozenset() if self.light else self.redacted_steps

    def charged_chunks(self, chunk: int) -> list[range]:
        """The steps that are charged at once, in order: `chunk` of them, or more where those have no noisy step."""
        free, chunks, first = self.redacted_steps, [], 0
        for end in [*range(chunk, self.steps, chunk), self.steps]:
            if not free.issuperset(range(first, end)):
                chunks.append(range(first, end))
                first = end
        return [*chunks[:-1], range(chunks[-1].start, self.steps)]

    @property
    def protection(self) -> Protection:
        """What the event's epsilon is about; selective where some steps read redacted text."""
        return Protection(self.unit, kind=AccountKind.SELECTIVE if self.redacted else AccountKind.CENTRAL)

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes charge and noise of every step, as JSON values; part of the release's digest.

        A digest names charges, so that none is paid twice: what is here for one setting stays as it is.
        """
        if not self.redacted:
            return self._parameters_on_full_text
        own = {"redacted": list(self.redacted), "policy": self.policy, "light": self.light}
        return {"mechanism": "scheduled-gaussian", "full": self._parameters_on_full_text, **own}

    @property
    def _parameters_on_full_text(self) -> dict[str, Any]:
        every = asdict(self) | {"levels": [list(level) for level in self.levels], "strategy": list(self.strategy)}
        return {"mechanism": f"{self._kind}-gaussian", **{name: every[name] for name in _NAMED[self._kind]}}

    @property
    def _kind(self) -> str:
        if self.bands > 1:
            return "banded"
        if self.microbatches:
            return "microbatch"
        return "falling" if self.schedule.falls else "sampled"


def _counted(events: Iterable[DpEvent]) -> DpEvent:
    """The events of single steps as one: equal ones, wherever they come, are a count."""
    counts: dict[DpEvent, int] = {}
    for event in events:
        counts[event] = counts.get(event, 0) + 1
    parts = [SelfComposedDpEvent(one, count) for one, count in counts.items()]
    return parts[0] if len(parts) == 1 else ComposedDpEvent(parts)


@lru_cache(maxsize=64)
def prefix_strategy(bands: int, steps: int) -> tuple[float, ...]:
    """The coefficients c_0, ..., c_(b-1) of a banded Toeplitz matrix C for T steps, for small errors of prefix sums.

    Source: Choquette-Choo et al. (NeurIPS 2023), "(Amplified) Banded Matrix Factorization", arXiv 2306.08153. DP-SGD's
    weights after step t are made of the sum of all gradients up to t. With noise C^-1 z in place of z, the noise of
    later steps takes back some of that of earlier ones, and what is left in these sums is smaller. One user touches
    column t of C for each step t that it takes part in, so noise of scale sigma needs every column to be at most 1
    long.

    C has c_0 on its diagonal, c_1 below it, ..., and zeros further down. The coefficients minimise the mean squared
    noise of all T prefix sums: with s the prefix sums of the coefficients of 1 / c(x), at fixed length,
    sum over k of (T - k) s_k^2. They depend on b and T alone: public, and the same on every machine, since they are
    rounded much more coarsely than machines differ. Each is a multiple of 2^-20 and rounded down, so that float32 holds
    it exactly, all columns are at most 1 long without any rounding, and the last b - 1, which end with the matrix, are
    shorter.

    >>> prefix_strategy(1, 100)
    (1.0,)
    >>> [round(each, 2) for each in prefix_strategy(4, 200)]
    [0.65, 0.49, 0.44, 0.38]
    """
    if bands == 1:
        return (1.0,)
    found = minimize(
        _loss, _square_root(bands)[1:], (steps,), "L-BFGS-B", jac=True, bounds=[(0, 1)] * (bands - 1), tol=1e-12
    )
    shape = [1.0, *np.round(found.x, _DECIMALS).tolist()]
    length = math.sqrt(math.fsum(each * each for each in shape))
    return tuple(math.floor(each / length * _GRID) / _GRID for each in shape)


def step_factors(strategy: tuple[float, ...], steps: int) -> list[float]:
    """For each step the standard deviation of its noise, (C^-1 z)_t, for standard normal z: the rows' lengths."""
    return [float(each) for each in np.sqrt(np.cumsum(np.square(_inverse(np.array(strategy), steps))))]


def prefix_error(strategy: tuple[float, ...], steps: int) -> float:
    """Root mean square, over all T prefix sums, of their noise for standard normal z."""
    sums = np.cumsum(_inverse(np.array(strategy), steps))
    return math.sqrt(float((np.arange(steps, 0, -1) * sums**2).sum()) / steps)


def _square_root(bands: int) -> Array:
    """The first coefficients of (1 - x)^(-1/2), which would be the best without a limit on bands."""
    odd = 2 * np.arange(1, bands) - 1
    return np.cumprod(np.concatenate([[1.0], odd / (odd + 1)]))


def _inverse(coefficients: Array, steps: int) -> Array:
    """The first T coefficients of 1 / c(x): the first column of C^-1."""
    return np.asarray(lfilter([1.0], coefficients, np.eye(1, steps)[0]))


def _loss(later: Array, steps: int) -> tuple[float, Array]:
    """Logarithm of the squared error times the squared length of c, and its gradient; c_0 is 1."""
    coefficients, weights = np.concatenate([[1.0], later]), np.arange(steps, 0, -1)
    with np.errstate(all="ignore"):  # the search may try coefficients whose inverse grows without limit
        sums = np.cumsum(_inverse(coefficients, steps))
        error, length = float((weights * sums**2).sum()), float((coefficients**2).sum())
        # Each c_j moves the prefix sums by -x^j s(x) / c(x).
        moved, weighted = np.asarray(lfilter([1.0], coefficients, sums)), weights * sums
        slopes = [-2 * float(weighted[j:] @ moved[: steps - j]) for j in range(1, len(coefficients))]
    gradient = np.array(slopes) / error + 2 * later / length
    if not (math.isfinite(error) and np.isfinite(gradient).all()):
        return _NO_STRATEGY, np.zeros_like(later)
    return math.log(error * length), gradient
