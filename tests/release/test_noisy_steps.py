"""One object for the noisy steps of a training says what the five classes said that it replaced, at random settings."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import old_steps as old
import pytest

from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.release.step_mechanism import NoisySteps

SETTINGS = 120  # of each kind
Pair = tuple[Any, NoisySteps]


def _shape(draw: random.Random, steps: int | None = None) -> tuple[Any, ...]:
    """Rate, noise, clipping norm, steps and unit, some of them whole numbers."""
    rate = draw.choice([1, draw.uniform(1e-4, 1), 10 ** draw.uniform(-6, 0)])
    noise = draw.choice([1, 3, draw.uniform(0.3, 5), 10 ** draw.uniform(-0.5, 2)])
    norm = draw.choice([1, 2, 10 ** draw.uniform(-3, 3)])
    unit = draw.choice([PrivacyUnit.USER, PrivacyUnit.RECORD])
    return rate, noise, norm, steps or draw.randint(1, 60), unit


def _schedule(draw: random.Random, falls: bool) -> dict[str, Any]:
    """A noise schedule and its chunk, after which some noise is left."""
    chunk = draw.randint(1, 9)
    if not falls:
        return {"schedule": NoiseSchedule(), "chunk": chunk}
    epoch = draw.choice([1, chunk, 3 * chunk])
    kind, tau = draw.choice([("linear", draw.uniform(1e-3, 0.05)), ("exponential", draw.uniform(1e-3, 0.02))])
    return {"schedule": NoiseSchedule(kind, tau, epoch), "chunk": chunk}  # type: ignore[arg-type]


def _plain(draw: random.Random) -> Pair:
    shape = _shape(draw)
    return old.SampledGaussian(*shape), NoisySteps(*shape, chunk=draw.randint(1, 9))


def _falling(draw: random.Random) -> Pair:
    shape, more = _shape(draw), _schedule(draw, falls=True)
    return old.FallingGaussian(*shape, **more), NoisySteps(*shape, **more)


def _micro_batches(draw: random.Random) -> Pair:
    shape, more = _shape(draw), _schedule(draw, falls=draw.random() < 0.5)
    more["microbatches"] = draw.randint(1, 99)
    return old.MicroBatchGaussian(*shape, **more), NoisySteps(*shape, **more)


def _banded(draw: random.Random) -> Pair:
    bands = draw.randint(2, 6)
    shape = _shape(draw, steps=bands * draw.randint(1, 8))
    return old.BandedGaussian(*shape, bands=bands), NoisySteps(*shape, bands=bands)


def _scheduled(draw: random.Random) -> Pair:
    full, ours = draw.choice([_plain, _falling, _micro_batches])(draw)
    share = draw.random()
    listed = [draw.random() < share for _ in range(full.steps)]
    listed[draw.randrange(full.steps)] = False
    light = draw.choice([0.0, 1, draw.uniform(0.1, 3), full.noise_multiplier])
    terms = {"redacted": tuple(listed), "policy": "a digest", "light": light}
    return old.ScheduledGaussian(full, **terms), replace(ours, **terms)


@pytest.mark.parametrize("make", [_plain, _falling, _micro_batches, _banded, _scheduled])
def test_it_says_what_the_old_classes_said(make: Callable[[random.Random], Pair]) -> None:
    draw = random.Random(make.__name__)
    for _ in range(SETTINGS):
        before, now = make(draw)
        assert json.dumps(now.parameters) == json.dumps(before.parameters)
        assert [now.noise_std(step) for step in range(now.steps)] == [
            before.noise_std(step) for step in range(now.steps)
        ]
        for name in ("event", "protection", "strategy", "sampling_rate", "clipping_norm", "steps", "unit"):
            assert getattr(now, name) == getattr(before, name), name
        assert now.bands == before.groups
        assert now.sensitivity == old.full_steps(before).sensitivity  # type: ignore[attr-defined]
        assert now.redacted_steps == old.redacted_steps(before)
        assert now.noiseless_steps == old.noiseless_steps(before)
        _compare_chunks(before, now, draw)


def _compare_chunks(before: Any, now: NoisySteps, draw: random.Random) -> None:
    for chunk in (now.bands, now.bands * draw.randint(1, 9), now.steps):
        chunks = now.charged_chunks(chunk)
        assert chunks == old.charged_chunks(before, chunk)
        for steps in chunks:
            assert now.event_of(steps) == before.event_of(steps)
            if now.light:
                assert now.central_event_of(steps) == before.central_event_of(steps)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"schedule": NoiseSchedule("linear", 0.1)}, "the noise of the steps is correlated"),
        ({"microbatches": 16}, "the noise of the steps is correlated"),
        ({"redacted": (True, False) * 6, "policy": "p"}, "the noise of the steps is correlated"),
    ],
)
def test_bands_go_with_no_other_option(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ReleaseError, match=says):
        NoisySteps(0.1, 2.0, 0.5, 12, bands=4, **more)


@pytest.mark.parametrize("more", [{"policy": "p"}, {"light": 1.0}])
def test_a_policy_or_light_noise_is_of_redacted_steps(more: dict[str, Any]) -> None:
    with pytest.raises(ReleaseError, match="the schedule has 0 entries for 10 steps"):
        NoisySteps(0.1, 2.0, 0.5, 10, **more)


@pytest.mark.parametrize("steps", [range(8, 12), range(-1, 3), range(10, 11), range(3, 3)])
def test_steps_that_nobody_planned_have_no_charge(steps: range) -> None:
    with pytest.raises(ReleaseError, match="are not all planned: there are 10"):
        NoisySteps(0.1, 2.0, 0.5, 10).event_of(steps)
    with pytest.raises(ReleaseError, match="step 10 is not one of the 10 steps"):
        NoisySteps(0.1, 2.0, 0.5, 10).noise_std(10)
