"""The noisy steps of a training: settings that have no guarantee, steps without a charge, and what names a release."""

from dataclasses import replace
from typing import Any

import pytest

from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.errors import ConfigError, EventError, ReleaseError
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.release.step_mechanism import NoisySteps

LINEAR = NoiseSchedule("linear", tau=0.5, steps_per_epoch=8)
PLAIN = NoisySteps(sampling_rate=0.2, noise_multiplier=2.0, clipping_norm=0.5, steps=24)
FALLING = replace(PLAIN, schedule=LINEAR, chunk=4)
MEANS = replace(PLAIN, chunk=4, microbatches=32)
BANDED = replace(PLAIN, bands=4)
REDACTED = replace(MEANS, redacted=(True, False) * 12, policy="a digest", light=0.5)
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
        *((PLAIN, {"clipping_norm": norm}, ReleaseError, f"clipping norm is {norm}") for norm in (0.0, -1.0)),
        (PLAIN, {"clipping_norm": float("nan")}, ReleaseError, "clipping norm is nan"),
        (PLAIN, {"clipping_norm": float("inf")}, ReleaseError, "clipping norm is inf"),
        (PLAIN, {"steps": 0}, ReleaseError, "steps is 0"),
        (PLAIN, {"steps": 2.5}, ReleaseError, "steps is 2.5"),
        (PLAIN, {"sampling_rate": 1.5}, EventError, "sampling_probability"),
        (PLAIN, {"sampling_rate": 0.0}, EventError, "sampling_probability"),
        (PLAIN, {"noise_multiplier": float("nan")}, EventError, "noise_multiplier"),
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
