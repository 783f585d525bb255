"""Plans: the list of mechanisms that a run will use, written down before it starts.

A PLD figure is tight, and a claim only for mechanisms fixed in advance. So an account may be opened on a plan: it lists
every mechanism with its count, its epsilon is computed once, and each charge must then be covered by a *line* of the
plan, that is, cost no more than the line's mechanism whatever the corpus (`dominates`).

A plan file is a YAML or JSON list of events as the ledger stores them:

    - {kind: self-composed, count: 1000, event: {kind: gaussian, noise_multiplier: 40.0}}
    - {kind: poisson-sampled-gaussian, sampling_probability: 0.01, noise_multiplier: 1.0}

>>> plan_lines([GaussianDpEvent(2.0), SelfComposedDpEvent(GaussianDpEvent(2.0), 3)])
((GaussianDpEvent(noise_multiplier=2.0), 4),)
>>> dominates(GaussianDpEvent(2.0), PoissonSampledDpEvent(0.1, GaussianDpEvent(2.5)))
True
"""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import from_json, leaves, to_json
from rayprivacy.accounting.metric import MetricLocalDpEvent
from rayprivacy.core.errors import ConfigError, EventError


def read_plan(path: Path | str) -> tuple[DpEvent, ...]:
    """The events of a plan file."""
    try:
        listed = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"plan is {str(path)!r}, which cannot be read ({error.strerror}): give a file.") from None
    except (ValueError, RecursionError, yaml.YAMLError):  # YAML constructors raise ValueError on odd dates and numbers
        raise ConfigError(f"plan is {str(path)!r}, which is not UTF-8 YAML or JSON: write a list of events.") from None
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
        for leaf, times in leaves(from_json(to_json(event))):
            key = json.dumps(to_json(leaf), sort_keys=True)
            counts[key] = counts.get(key, 0) + times
    return tuple((from_json(json.loads(key)), counts[key]) for key in sorted(counts))


def dominates(line: DpEvent, leaf: DpEvent) -> bool:
    """Whether a mechanism of a plan costs at least as much as another, at every delta and in any composition.

    Less noise and more sampling cost more; not sampling costs as much as sampling always. Other kinds only cover
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
