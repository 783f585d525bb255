"""The noisy steps of a training, independent, falling, banded or scheduled: what they draw and are charged."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from trainings import open_book, train, training

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import leaves
from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.blocks.steps_plan import training_stage
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, EventError, LedgerError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.domain_private.schedules import draw
from rayprivacy.release.step_mechanism import NoisySteps, prefix_error, prefix_strategy, step_factors
from rayprivacy.release.steps import StepGate, StepRelease

LINEAR = NoiseSchedule("linear", tau=0.5, steps_per_epoch=8)
PLAIN = NoisySteps(sampling_rate=0.2, noise_multiplier=2.0, clipping_norm=0.5, steps=24)
FALLING = replace(PLAIN, schedule=LINEAR, chunk=4)
MEANS = replace(PLAIN, chunk=4, microbatches=32)
BY_STEP = replace(FALLING, schedule=NoiseSchedule("exponential", tau=0.015), steps=200, chunk=3)
BANDED = replace(PLAIN, bands=4)
REDACTED = replace(MEANS, redacted=(True, False) * 12, policy="a digest", light=0.5)
UNCORRELATED = ({"schedule": NoiseSchedule("linear", 0.1)}, {"microbatches": 16})
NO_NORMS = (0.0, -1.0, math.nan, math.inf)
DIGESTS = {
    "PLAIN": "c1861f3f60e50a42",
    "FALLING": "8e125db366026767",
    "MEANS": "1cad4baac96cacaa",
    "BANDED": "37a0a6fe221b0d6a",
    "REDACTED": "26be9dc9531f4c47",
}


@pytest.mark.parametrize("kind", DIGESTS)
def test_releases_of_earlier_versions_are_found_again(kind):
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
        *((BANDED, {"bands": bands}, ReleaseError, f"bands is {bands}") for bands in (0, 2.0)),
        *((BANDED, fields, ReleaseError, "multiples of bands") for fields in ({"bands": 5}, {"steps": 26})),
        (BANDED, {"sampling_rate": 1.2}, EventError, "sampling_probability"),
        *((BANDED, fields, ReleaseError, "the noise of the steps is correlated") for fields in UNCORRELATED),
        (REDACTED, {"bands": 4, "microbatches": None}, ReleaseError, "the noise of the steps is correlated"),
        (REDACTED, {"redacted": (True, False)}, ReleaseError, "2 entries for 24 steps"),
        (REDACTED, {"redacted": (True,) * 24}, ReleaseError, "no step of the schedule is noisy"),
        (REDACTED, {"policy": ""}, ReleaseError, "names no policy"),
        (REDACTED, {"light": -1.0}, ReleaseError, "the light noise is -1.0"),
    ],
)
def test_steps_without_a_guarantee_cannot_be_made(steps, fields, error, says):
    with pytest.raises(error, match=says):
        replace(steps, **fields)


@pytest.mark.parametrize("steps", [range(20, 28), range(-4, 4), range(24, 28), range(4, 4)])
def test_steps_that_are_not_planned_have_no_charge(steps):
    for mechanism in (PLAIN, FALLING, MEANS, BANDED):
        with pytest.raises(ReleaseError, match="are not all planned: there are 24"):
            mechanism.event_of(steps)
        with pytest.raises(ReleaseError, match="step 24 is not one of the 24 steps"):
            mechanism.noise_std(24)


@pytest.mark.parametrize("mechanism", [FALLING, BY_STEP, replace(BY_STEP, chunk=200)])
def test_every_step_is_charged_the_noise_that_it_draws(mechanism):
    for step in range(mechanism.steps):
        ((leaf, times),) = leaves(mechanism.event_of(range(step, step + 1)))
        assert times == 1
        assert leaf.sampling_probability == mechanism.sampling_rate
        assert leaf.event.noise_multiplier * mechanism.clipping_norm == mechanism.noise_std(step)


def test_the_noise_follows_the_schedule_from_level_to_level():
    assert [FALLING.noise_std(step) for step in range(24)] == [1.0] * 8 + [2 / 1.5 / 2] * 8 + [0.5] * 8
    one, three = (PoissonSampledDpEvent(0.2, GaussianDpEvent(sigma)) for sigma in (2.0, 1.0))
    assert FALLING.event_of(range(4)) == SelfComposedDpEvent(one, 4)
    parts = FALLING.event_of(range(4, 20)).events
    assert parts[0] == SelfComposedDpEvent(one, 4)
    assert parts[2] == SelfComposedDpEvent(three, 4)
    assert replace(FALLING, schedule=NoiseSchedule()).event == PLAIN.event


def test_chunks_together_are_charged_the_levels_and_nothing_twice(tmp_path):
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


def test_the_noise_is_scaled_to_the_2c_by_which_one_unit_moves_the_sum():
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
def test_everything_that_fixes_the_noise_is_in_the_digest(mechanism, others):
    assert all(replace(mechanism, **other).parameters != mechanism.parameters for other in others)


SIZES = [(2, 8), (3, 30), (4, 200), (8, 200), (16, 480), (64, 64), (2, 2000), (7, 10_500)]


def _dense(strategy, steps):
    """C, whole."""
    return sum(value * np.eye(steps, k=-below) for below, value in enumerate(strategy))


@pytest.mark.parametrize(("bands", "steps"), SIZES)
def test_no_column_is_longer_than_1_in_exact_arithmetic(bands, steps):
    strategy = prefix_strategy(bands, steps)
    assert len(strategy) == bands
    assert 1 - Fraction(1, 10**5) < sum(Fraction(each) ** 2 for each in strategy) <= 1
    assert all(float(np.float32(each)) == each for each in strategy)  # what the noise is made with is this, exactly


@pytest.mark.parametrize(("bands", "steps"), [(1, 10), (4, 12), (8, 40)])
def test_columns_errors_and_factors_are_those_of_the_whole_matrix(bands, steps):
    strategy = prefix_strategy(bands, steps)
    matrix = _dense(strategy, steps)
    lengths, inverse = np.linalg.norm(matrix, axis=0), np.linalg.inv(matrix)
    assert (lengths <= 1).all()
    assert (np.diff(lengths[steps - bands :]) < 0).all()  # the last ones are shorter
    for step in range(steps - bands):
        assert matrix[:, step] @ matrix[:, step + bands] == 0  # no row is touched by two steps of one user
    assert step_factors(strategy, steps) == pytest.approx(np.linalg.norm(inverse, axis=1), rel=1e-9)
    error = np.linalg.norm(np.tri(steps) @ inverse) / np.sqrt(steps)
    assert prefix_error(strategy, steps) == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize(("bands", "steps"), [(bands, steps) for bands, steps in SIZES if steps < 2000])
def test_no_other_coefficients_have_a_smaller_error(bands, steps):
    best, random = prefix_strategy(bands, steps), np.random.default_rng(3)
    length = np.linalg.norm(best)
    for scale in (0.3, 0.03, 0.003):
        for _ in range(20):
            other = np.array(best) * (1 + scale * random.normal(size=bands))
            other *= length / np.linalg.norm(other)
            assert prefix_error(best, steps) < prefix_error(tuple(other), steps) * (1 + 1e-5)


def test_steps_are_charged_as_one_event_for_every_b_of_them():
    one = PoissonSampledDpEvent(0.2, GaussianDpEvent(2.0))
    assert BANDED.event == SelfComposedDpEvent(one, 6)
    assert [BANDED.event_of(range(at, at + 8)).count for at in (0, 8, 16)] == [2, 2, 2]
    assert BANDED.event_of(range(20, 24)) == SelfComposedDpEvent(one, 1)
    assert replace(BANDED, clipping_norm=4.0).event == BANDED.event
    assert {BANDED.noise_std(step) for step in range(24)} == {1.0}  # sigma times C


def test_chunks_together_cost_what_all_steps_cost(tmp_path):
    used = []
    for chunk in (4, 8, 24):
        ledger = open_book(tmp_path / str(chunk), [BANDED.event])
        train(ledger, training(ledger, BANDED, chunk=chunk))
        assert [charge.event.count for charge in ledger.charges_of("chat", "run")] == [chunk // 4] * (24 // chunk)
        used.append(ledger.status("chat").balance.used[0])
    assert used == pytest.approx([used[0]] * 3, rel=1e-12)


@pytest.mark.parametrize("steps", [range(0, 6), range(2, 6), range(22, 25)])
def test_a_chunk_that_cuts_an_event_is_refused(steps):
    with pytest.raises(ReleaseError, match="are charged at once with bands 4: let steps and chunk be multiples"):
        BANDED.event_of(steps)


LISTED = (True, True, True, False, True, False, False, True, True)
FULL = NoisySteps(0.1, 2.0, 0.5, len(LISTED))
STEPS = replace(FULL, redacted=LISTED, policy="a digest")
ONE, LIGHT = (PoissonSampledDpEvent(0.1, GaussianDpEvent(sigma)) for sigma in (2.0, 0.5))


PROTECTION = (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE)


def _ledger(path, kind=AccountKind.SELECTIVE):
    ledger = Ledger.open(f"sqlite:///{path}/ledger.db")
    terms: Any = {"plan": [STEPS.event], "corpus": "chats"}
    policy: Any = {"policy": "a digest"} if kind is AccountKind.SELECTIVE else {}
    ledger.ensure_account("plain", *PROTECTION, Budget(8.0, 1e-6), "rdp", **terms)
    ledger.ensure_account("chat", *PROTECTION, Budget(8.0, 1e-6), "rdp", kind=kind, **terms, **policy)
    return ledger


@pytest.fixture
def ledger(tmp_path):
    return _ledger(tmp_path)


def _release(ledger, steps=STEPS, central=""):
    return StepRelease.of(ledger, "chat", "run", Key.for_tests(), steps, 2, "corpus", "base", central=central)


def _trained(ledger, release):
    """Trains, and returns what the selective account was charged."""
    gate = StepGate(ledger, release)
    for rung in (1, 2, 2, 3):  # the second is repeated after a crash
        gate.begin(rung)
        gate.end(rung, f"model after {rung}")
    assert gate.released("model", "model after 3").value == "model"
    ledger.verify()
    return [charge.event for charge in ledger.charges_of("chat", "run")]


def test_noise_and_event_are_those_of_the_noisy_steps():
    assert [STEPS.noise_std(step) for step in range(9)] == [0.0 if each else 1.0 for each in LISTED]
    assert STEPS.event == SelfComposedDpEvent(ONE, 3)
    assert STEPS.event_of(range(3, 6)) == SelfComposedDpEvent(ONE, 2)
    assert STEPS.protection.kind is AccountKind.SELECTIVE


@pytest.mark.parametrize(
    ("chunk", "ends"), [(1, [4, 6, 9]), (2, [4, 6, 9]), (3, [6, 9]), (4, [4, 9]), (5, [5, 9]), (9, [9]), (99, [9])]
)
def test_chunks_without_a_noisy_step_ride_on_others(chunk, ends):
    chunks = STEPS.charged_chunks(chunk)
    assert [each.stop for each in chunks] == ends
    assert [step for each in chunks for step in each] == list(range(9))
    assert sum(STEPS.event_of(each).count for each in chunks) == STEPS.event.count
    assert training_stage("t", "", STEPS, chunk).charges == tuple(map(STEPS.event_of, chunks))


def test_each_level_of_falling_noise_is_an_event_of_its_own():
    """A noisy step has the noise of its own number, redacted steps counted: levels of 3 steps, 1 + 2 of them noisy."""
    falling = NoisySteps(0.1, 2.0, 0.5, 9, schedule=NoiseSchedule("linear", tau=0.5), chunk=3)
    steps = replace(falling, redacted=LISTED, policy="a digest")
    factors = {step: 1 / (1 + 0.5 * (3 * (step // 3) + 2)) for step in (3, 5, 6)}
    assert {step: steps.noise_std(step) for step in range(9) if not LISTED[step]} == pytest.approx(factors)
    assert {steps.noise_std(step) for step in range(9) if LISTED[step]} == {0.0}
    by_hand = [PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0 * factors[step])) for step in (3, 5, 6)]
    assert {event.count for event in steps.event.events} == {1, 2}
    for rule in ("rdp", "pld"):
        assert epsilon([steps.event], 1e-6, rule) == pytest.approx(epsilon(by_hand, 1e-6, rule), rel=1e-6)
    assert STEPS.parameters != steps.parameters


def test_noise_on_micro_batches_is_on_twice_the_norm():
    shape = {"schedule": NoiseSchedule(), "chunk": 3, "microbatches": 16}
    steps = replace(STEPS, **shape, light=0.5)
    assert [steps.noise_std(step) for step in range(9)] == [0.5 if each else 2.0 for each in LISTED]
    assert steps.event == STEPS.event


def test_light_noise_gives_all_steps_an_event_for_users():
    steps = replace(STEPS, light=0.5)
    assert [steps.noise_std(step) for step in range(9)] == [0.25 if each else 1.0 for each in LISTED]
    assert steps.event == STEPS.event
    both = [SelfComposedDpEvent(LIGHT, 6), SelfComposedDpEvent(ONE, 3)]
    assert steps.central_event_of(range(9)) == ComposedDpEvent(both)
    assert steps.noiseless_steps == frozenset()
    assert STEPS.noiseless_steps == STEPS.redacted_steps == steps.redacted_steps
    with pytest.raises(ReleaseError, match="redacted steps take no noise, and have no epsilon for users"):
        STEPS.central_event_of(range(9))


def test_a_central_account_that_pays_for_all_steps_is_not_exposed(ledger):
    steps = replace(STEPS, light=0.5)
    terms = {"corpus": "chats", "plan": [steps.central_event_of(range(9))]}
    ledger.ensure_account("users", *PROTECTION, Budget(1e3, 1e-6), "rdp", **terms)
    assert _trained(ledger, _release(ledger, steps, "users")) == [SelfComposedDpEvent(ONE, 1)] * 3
    paid = [dict(leaves(charge.event)) for charge in ledger.charges_of("users", "run")]
    assert paid == [{LIGHT: 3, ONE: 1}, {LIGHT: 1, ONE: 1}, {LIGHT: 2, ONE: 1}]
    ledger.ensure_account("later", *PROTECTION, Budget(1e3, 1e-6), "rdp", **terms)
    entries = [entry.kind for name in ("plain", "users", "later") for entry in ledger.entries(name)]
    assert "exposure" not in entries


def test_light_noise_and_a_central_account_come_together(ledger):
    for steps, central in ((STEPS, "plain"), (replace(STEPS, light=0.5), "")):
        with pytest.raises(ReleaseError, match="exactly where they take noise"):
            _release(ledger, steps, central)


def test_each_chunk_is_charged_once_for_its_noisy_steps_and_exposes_the_plain_account(ledger):
    release = _release(ledger)
    assert _trained(ledger, release) == [SelfComposedDpEvent(ONE, 1)] * 3
    assert [entry.kind for entry in ledger.entries("plain")].count("exposure") == 3
    assert [release.rung_of(done) for done in (0, 2, 4, 5, 6, 8, 9)] == [1, 1, 1, 2, 2, 3, 3]


def test_a_plain_account_does_not_pay_for_it(tmp_path):
    ledger = _ledger(tmp_path, AccountKind.CENTRAL)
    with pytest.raises(LedgerError, match="selective"):
        StepGate(ledger, _release(ledger)).begin(1)


def test_another_draw_or_policy_is_another_input(ledger):
    seen = set()
    for steps in (STEPS, replace(STEPS, policy="another"), replace(STEPS, redacted=draw("linear", 9, 1))):
        release = _release(ledger, steps)
        seen |= {release.inputs, release.stream}
    assert len(seen) == 6


def test_a_chunk_without_a_noisy_step_is_not_charged():
    with pytest.raises(ReleaseError, match="none of steps 0 to 3 is noisy"):
        STEPS.event_of(range(3))
