"""What events cost together at a delta, by one of three accountants; and plans, which are such lists of events.

- `gdp`: exact, for Gaussian events only; a rule by which the ledger admits charges.
- `rdp`: Renyi orders; takes every central event but mixtures; an upper bound.
- `pld`: numerical privacy loss distributions; tight, but a claim only for a plan fixed in advance.

All are under add-or-remove-one: multipliers are normalised by the sensitivity before they get here (and the RDP
accountant of dp-accounting forgets a factor 2 under REPLACE_ONE). Nothing is kept between calls: an exception inside an
accountant can wipe what it had summed before. No accountant takes metric local privacy. What thresholds take of delta
is taken off before any of them is asked.

>>> from dp_accounting import SelfComposedDpEvent
>>> round(epsilon([SelfComposedDpEvent(GaussianDpEvent(10.0), 100)], 1e-6), 3)
4.887
>>> figures([(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 1000)], 1e-5).rounded()
{'pld': 1.83, 'rdp': 2.1}

A *plan* lists the mechanisms that a run will use, before it starts, so that its PLD figure is a claim. An account may
be opened on one: its epsilon is computed once, and each charge must then be covered by a *line* of the plan, that is,
cost no more than the line's mechanism whatever the corpus (`dominates`). A plan file is a YAML or JSON list of events
as the ledger stores them:

    - {kind: self-composed, count: 1000, event: {kind: gaussian, noise_multiplier: 40.0}}
    - {kind: poisson-sampled-gaussian, sampling_probability: 0.01, noise_multiplier: 1.0}

>>> plan_lines([GaussianDpEvent(2.0), SelfComposedDpEvent(GaussianDpEvent(2.0), 3)])
((GaussianDpEvent(noise_multiplier=2.0), 4),)
>>> dominates(GaussianDpEvent(2.0), PoissonSampledDpEvent(0.1, GaussianDpEvent(2.5)))
True
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from rayprivacy.accounting.events import (
    MetricLocalDpEvent,
    checked_leaves,
    delta_left,
    from_json,
    round_up,
    to_json,
    total,
    without_thresholds,
)
from rayprivacy.accounting.gaussian import check_delta, epsilon_of
from rayprivacy.accounting.loss import pld_epsilon
from rayprivacy.accounting.renyi import rdp_epsilon
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.written import load_yaml, read_text

AccountantName = Literal["gdp", "rdp", "pld"]


def gdp_cost(event: DpEvent) -> Fraction:
    """The exact mu^2 of a composition of Gaussian events: the sum of count / sigma^2, sigma being the exact float."""
    return total([_mu_squared(leaf) * times for leaf, times in checked_leaves(event)])


def total_mu_squared(events: Iterable[DpEvent]) -> float:
    """The mu^2 of all events together, rounded up, whatever their order."""
    return round_up(total([gdp_cost(event) for event in events]))


def epsilon(events: Sequence[DpEvent], delta: float, accountant: AccountantName = "gdp") -> float:
    """The epsilon of events together at `delta`; infinite with a non-private one, an error where there is none."""
    if accountant not in ("gdp", "rdp", "pld"):
        raise ConfigError(f"accountant is {accountant!r}: use 'gdp', 'rdp' or 'pld'.")
    check_delta(delta)
    lines = [pair for event in events for pair in checked_leaves(event)]
    if any(type(leaf) is MetricLocalDpEvent for leaf, _ in lines):
        raise EventError("a metric-local event is no central guarantee: no accountant composes it.")
    if any(type(leaf) is NonPrivateDpEvent for leaf, _ in lines):
        return math.inf
    plain, taken = without_thresholds(events)
    kept = delta_left(delta, taken) if taken else delta
    if accountant == "gdp":
        return epsilon_of(math.sqrt(total_mu_squared(plain)), kept)
    if accountant == "rdp":
        return rdp_epsilon(plain, kept)
    return pld_epsilon([pair for event in plain for pair in checked_leaves(event)], kept)


def _mu_squared(leaf: DpEvent) -> Fraction:
    if type(leaf) is not GaussianDpEvent:
        raise EventError(f"the event holds a {type(leaf).__name__}: composition 'gdp' takes Gaussian events only.")
    return 1 / Fraction(leaf.noise_multiplier) ** 2


@dataclass(frozen=True)
class Figures:
    """Epsilon by each accountant that has one, and a note for each that has none.

    All are upper bounds for a plan fixed in advance, so the lesser is the plan's epsilon.
    """

    by: dict[str, float]
    notes: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """The lesser figure."""
        return min(self.by.values())

    def rounded(self, digits: int = 2) -> dict[str, float]:
        """The figures, rounded for reading."""
        return {name: round(value, digits) for name, value in self.by.items()}


def figures(lines: Sequence[tuple[DpEvent, int]], delta: float) -> Figures:
    """The epsilon of basic mechanisms with their counts, by PLD and by Renyi orders; an error where both fail.

    For Renyi orders a mixture counts as its costlier stand-in `at_once`.
    """
    by: dict[str, float] = {}
    notes = []
    plans: dict[AccountantName, list[DpEvent]] = {
        "pld": [SelfComposedDpEvent(leaf, times) for leaf, times in lines],
        "rdp": [SelfComposedDpEvent(at_once(leaf), times) for leaf, times in lines],
    }
    for name, plan in plans.items():
        try:
            by[name] = epsilon(plan, delta, name)
        except EventError as error:
            notes.append(f"no {name} figure: {str(error).rstrip('.')}")
    if not by:
        raise EventError(f"{notes[-1]}.")
    return Figures(by, tuple(notes))


def at_once(leaf: DpEvent) -> DpEvent:
    """A sampled Gaussian that costs at least as much as a mixture: whatever is sampled has the largest sensitivity."""
    if type(leaf) is not MixtureOfGaussiansDpEvent:
        return leaf
    pairs = list(zip(leaf.sensitivities, leaf.sampling_probs, strict=True))
    any_sampled = min(1.0, sum(p for size, p in pairs if size > 0) * (1 + 1e-9))
    return PoissonSampledDpEvent(any_sampled, GaussianDpEvent(leaf.standard_deviation / max(leaf.sensitivities)))


def read_plan(path: Path | str) -> tuple[DpEvent, ...]:
    """The events of a plan file."""
    listed = load_yaml(read_text(path, "plan", "give a file of YAML or JSON in UTF-8"), f"plan is {str(path)!r}, which")
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"plan is {str(path)!r}, which is not a list of at least one event: write one.")
    try:
        return tuple(from_json(entry) for entry in listed)
    except EventError as error:
        raise ConfigError(f"plan is {str(path)!r}, where {error}") from None


def plan_lines(events: Sequence[DpEvent]) -> tuple[tuple[DpEvent, int], ...]:
    """The basic mechanisms of a plan with their counts, equal ones added up, in an order that depends on neither."""
    counts: dict[str, int] = {}
    for event in events:
        for leaf, times in checked_leaves(event):
            key = json.dumps(to_json(leaf), sort_keys=True)
            counts[key] = counts.get(key, 0) + times
    return tuple((from_json(json.loads(key)), counts[key]) for key in sorted(counts))


def dominates(line: DpEvent, leaf: DpEvent) -> bool:
    """Whether a mechanism of a plan costs at least as much as another, at every delta and in any composition.

    Less noise and more sampling cost more; not sampling costs as much as sampling always. Other kinds cover only
    themselves, and metric privacy covers nothing.
    """
    line, leaf = from_json(to_json(line)), from_json(to_json(leaf))
    if MetricLocalDpEvent in (type(line), type(leaf)):
        return False
    if type(line) is LaplaceDpEvent and type(leaf) is LaplaceDpEvent:
        return bool(leaf.noise_multiplier >= line.noise_multiplier)
    known, asked = _sampled(line), _sampled(leaf)
    if known is not None and asked is not None:
        return asked[0] <= known[0] and asked[1] >= known[1]
    return bool(line == leaf)


def plan_epsilon(lines: Sequence[tuple[DpEvent, int]], delta: float) -> float:
    """The epsilon of a whole plan by privacy loss distributions, rounded against the user of the budget."""
    return epsilon([SelfComposedDpEvent(leaf, times) for leaf, times in lines], delta, "pld")


def _sampled(event: DpEvent) -> tuple[float, float] | None:
    """Sampling probability and noise multiplier of Gaussian noise, sampled or not."""
    if type(event) is GaussianDpEvent:
        return 1.0, event.noise_multiplier
    if type(event) is PoissonSampledDpEvent:
        return event.sampling_probability, event.event.noise_multiplier
    return None
