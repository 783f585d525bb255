"""The noisy steps of a training: what they draw and are charged, what has no guarantee, and what names a release."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from trainings import open_book, train, training

from rayprivacy.accounting.events import leaves
from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, EventError, LedgerError, ReleaseError
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.release.step_mechanism import NoisySteps

LINEAR = NoiseSchedule("linear", tau=0.5, steps_per_epoch=8)
PLAIN = NoisySteps(sampling_rate=0.2, noise_multiplier=2.0, clipping_norm=0.5, steps=24)
FALLING = replace(PLAIN, schedule=LINEAR, chunk=4)
MEANS = replace(PLAIN, chunk=4, microbatches=32)
BY_STEP = replace(FALLING, schedule=NoiseSchedule("exponential", tau=0.015), steps=200, chunk=3)
BANDED = replace(PLAIN, bands=4)
REDACTED = replace(MEANS, redacted=(True, False) * 12, policy="a digest", light=0.5)
NO_NORMS = (0.0, -1.0, math.nan, math.inf)
DIGESTS = {
    "PLAIN": "c1861f3f60e50a42",
    "FALLING": "8e125db366026767",
    "MEANS": "1cad4baac96cacaa",
    "BANDED": "37a0a6fe221b0d6a",
    "REDACTED": "26be9dc9531f4c47",
}


@pytest.mark.parametrize("kind", DIGESTS)
def test_releases_of_earlier_versions_are_found_again(kind: str) -> None:
    """The digest of the parameters names the charge: another one would be paid again."""
    assert digest_json(globals()[kind].parameters)[:16] == DIGESTS[kind]


@pytest.mark.parametrize(
    ("steps", "fields", "error", "says"),
    [
        *((PLAIN, {"clipping_norm": norm}, ReleaseError, f"clipping norm is {norm}") for norm in NO_NORMS),
        *((PLAIN, {"steps": steps}, ReleaseError, f"steps is {steps}") for steps in (0, 2.5)),
        *((PLAIN, {"sampling_rate": rate}, EventError, "sampling_probability") for rate in (0.0, 1.5)),
        (PLAIN, {"noise_multiplier": math.nan}, EventError, "noise_multiplier"),
        *((each, {"noise_multiplier": 0.0}, EventError, "noise_multiplier") for each in (PLAIN, FALLING, BANDED)),
        (PLAIN, {"unit": PrivacyUnit.PHRASE}, ReleaseError, "unit is 'phrase'"),
        (PLAIN, {"policy": "p"}, ReleaseError, "the schedule has 0 entries for 24 steps"),
        (PLAIN, {"light": 1.0}, ReleaseError, "the schedule has 0 entries for 24 steps"),
        (FALLING, {"schedule": NoiseSchedule("exponential", 1.0)}, ReleaseError, "leaves a noise multiplier of"),
        (FALLING, {"noise_multiplier": 0.1}, ReleaseError, "leaves a noise multiplier of 0.05 in the last steps"),
        (FALLING, {"chunk": 3}, ConfigError, "multiple of chunk"),
        (MEANS, {"microbatches": 0}, ReleaseError, "microbatches is 0"),
        (BANDED, {"bands": 0}, ReleaseError, "bands is 0"),
        (BANDED, {"bands": 2.0}, ReleaseError, "bands is 2.0"),
        (BANDED, {"bands": 5}, ReleaseError, "multiples of bands"),
        (BANDED, {"steps": 26}, ReleaseError, "multiples of bands"),
        (BANDED, {"sampling_rate": 1.2}, EventError, "sampling_probability"),
        (BANDED, {"schedule": NoiseSchedule("linear", 0.1)}, ReleaseError, "the noise of the steps is correlated"),
        (BANDED, {"microbatches": 16}, ReleaseError, "the noise of the steps is correlated"),
        (REDACTED, {"bands": 4, "microbatches": None}, ReleaseError, "the noise of the steps is correlated"),
        (REDACTED, {"redacted": (True, False)}, ReleaseError, "2 entries for 24 steps"),
        (REDACTED, {"redacted": (True,) * 24}, ReleaseError, "no step of the schedule is noisy"),
        (REDACTED, {"policy": ""}, ReleaseError, "names no policy"),
        (REDACTED, {"light": -1.0}, ReleaseError, "the light noise is -1.0"),
    ],
)
def test_steps_without_a_guarantee_cannot_be_made(
    steps: NoisySteps, fields: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        replace(steps, **fields)


@pytest.mark.parametrize("steps", [range(20, 28), range(-4, 4), range(24, 28), range(4, 4)])
def test_steps_that_are_not_planned_have_no_charge(steps: range) -> None:
    for mechanism in (PLAIN, FALLING, MEANS, BANDED):
        with pytest.raises(ReleaseError, match="are not all planned: there are 24"):
            mechanism.event_of(steps)
        with pytest.raises(ReleaseError, match="step 24 is not one of the 24 steps"):
            mechanism.noise_std(24)


@pytest.mark.parametrize("mechanism", [FALLING, BY_STEP, replace(BY_STEP, chunk=200)])
def test_every_step_is_charged_the_noise_that_it_draws(mechanism: NoisySteps) -> None:
    for step in range(mechanism.steps):
        ((leaf, times),) = leaves(mechanism.event_of(range(step, step + 1)))
        assert times == 1
        assert leaf.sampling_probability == mechanism.sampling_rate
        assert leaf.event.noise_multiplier * mechanism.clipping_norm == mechanism.noise_std(step)


def test_the_noise_follows_the_schedule_from_level_to_level() -> None:
    assert [FALLING.noise_std(step) for step in range(24)] == [1.0] * 8 + [2 / 1.5 / 2] * 8 + [0.5] * 8
    one, three = (PoissonSampledDpEvent(0.2, GaussianDpEvent(sigma)) for sigma in (2.0, 1.0))
    assert FALLING.event_of(range(4)) == SelfComposedDpEvent(one, 4)
    parts = FALLING.event_of(range(4, 20)).events
    assert parts[0] == SelfComposedDpEvent(one, 4)
    assert parts[2] == SelfComposedDpEvent(three, 4)
    assert replace(FALLING, schedule=NoiseSchedule()).event == PLAIN.event


def test_chunks_together_are_charged_the_levels_and_nothing_twice(tmp_path: Path) -> None:
    ledger = open_book(tmp_path, [FALLING.event], "pld")
    for _ in range(2):  # again after a crash that nobody noticed
        train(ledger, training(ledger, FALLING))
    charged = [charge.event for charge in ledger.charges_of("chat", "run")]
    rungs = [FALLING.event_of(range(first, first + 4)) for first in range(0, 24, 4)]
    assert list(leaves(ComposedDpEvent(charged))) == [leaf for rung in rungs for leaf in leaves(rung)]
    assert len({leaf for event in charged for leaf, _ in leaves(event)}) == 3
    assert ledger.status("chat").balance.used == (8, 8, 8)  # of three planned lines
    with pytest.raises((BudgetRefusedError, LedgerError, EventError)):
        train(ledger, training(ledger, replace(FALLING, schedule=replace(LINEAR, tau=0.6))))


def test_the_noise_is_scaled_to_the_2c_by_which_one_unit_moves_the_sum() -> None:
    assert MEANS.sensitivity == 1.0
    assert {MEANS.noise_std(step) for step in range(24)} == {2.0}
    assert MEANS.event == PLAIN.event
    assert replace(MEANS, microbatches=64).noise_std(0) == MEANS.noise_std(0)  # on the sum, whatever N
    falling = replace(MEANS, schedule=LINEAR)
    assert [falling.noise_std(step) for step in range(24)] == [2 * FALLING.noise_std(step) for step in range(24)]
    assert falling.event == FALLING.event


@pytest.mark.parametrize(
    ("mechanism", "others"),
    [
        (FALLING, [{"schedule": replace(LINEAR, **its)} for its in ({"tau": 0.6}, {"steps_per_epoch": 4})]),
        (FALLING, [{"schedule": replace(LINEAR, kind="exponential")}, {"noise_multiplier": 2.1}]),
        (MEANS, [{"microbatches": 64}]),
        (BANDED, [{"bands": 8}]),
    ],
)
def test_everything_that_fixes_the_noise_is_in_the_digest(mechanism: NoisySteps, others: list[dict[str, Any]]) -> None:
    assert all(replace(mechanism, **other).parameters != mechanism.parameters for other in others)
