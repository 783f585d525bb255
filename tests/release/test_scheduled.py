"""A redaction schedule at the gate: its noisy steps are charged, each once, to an account of its own kind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import leaves
from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.blocks.steps_plan import training_stage
from rayprivacy.core.errors import LedgerError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.domain_private.schedules import draw
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.release.steps import StepGate, StepRelease

LISTED = (True, True, True, False, True, False, False, True, True)
FULL = NoisySteps(0.1, 2.0, 0.5, len(LISTED))
STEPS = replace(FULL, redacted=LISTED, policy="a digest")
ONE, LIGHT = (PoissonSampledDpEvent(0.1, GaussianDpEvent(sigma)) for sigma in (2.0, 0.5))


PROTECTION = (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE)


def _ledger(path: Path, kind: AccountKind = AccountKind.SELECTIVE) -> Ledger:
    ledger = Ledger.open(f"sqlite:///{path}/ledger.db")
    terms: Any = {"plan": [STEPS.event], "corpus": "chats"}
    policy: Any = {"policy": "a digest"} if kind is AccountKind.SELECTIVE else {}
    ledger.ensure_account("plain", *PROTECTION, Budget(8.0, 1e-6), "rdp", **terms)
    ledger.ensure_account("chat", *PROTECTION, Budget(8.0, 1e-6), "rdp", kind=kind, **terms, **policy)
    return ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return _ledger(tmp_path)


def _release(ledger: Ledger, steps: NoisySteps = STEPS, central: str = "") -> StepRelease:
    return StepRelease.of(ledger, "chat", "run", Key.for_tests(), steps, 2, "corpus", "base", central=central)


def _trained(ledger: Ledger, release: StepRelease) -> list[DpEvent]:
    """Trains, and returns what the selective account was charged."""
    gate = StepGate(ledger, release)
    for rung in (1, 2, 2, 3):  # the second is repeated after a crash
        gate.begin(rung)
        gate.end(rung, f"model after {rung}")
    assert gate.released("model", "model after 3").value == "model"
    ledger.verify()
    return [charge.event for charge in ledger.charges_of("chat", "run")]


def test_noise_and_event_are_those_of_the_noisy_steps() -> None:
    assert [STEPS.noise_std(step) for step in range(9)] == [0.0 if each else 1.0 for each in LISTED]
    assert STEPS.event == SelfComposedDpEvent(ONE, 3)
    assert STEPS.event_of(range(3, 6)) == SelfComposedDpEvent(ONE, 2)
    assert STEPS.protection.kind is AccountKind.SELECTIVE


@pytest.mark.parametrize(
    ("chunk", "ends"), [(1, [4, 6, 9]), (2, [4, 6, 9]), (3, [6, 9]), (4, [4, 9]), (5, [5, 9]), (9, [9]), (99, [9])]
)
def test_chunks_without_a_noisy_step_ride_on_others(chunk: int, ends: list[int]) -> None:
    chunks = STEPS.charged_chunks(chunk)
    assert [each.stop for each in chunks] == ends
    assert [step for each in chunks for step in each] == list(range(9))
    assert sum(STEPS.event_of(each).count for each in chunks) == STEPS.event.count
    assert training_stage("t", "", STEPS, chunk).charges == tuple(map(STEPS.event_of, chunks))


def test_each_level_of_falling_noise_is_an_event_of_its_own() -> None:
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


def test_noise_on_micro_batches_is_on_twice_the_norm() -> None:
    shape = {"schedule": NoiseSchedule(), "chunk": 3, "microbatches": 16}
    steps = replace(STEPS, **shape, light=0.5)
    assert [steps.noise_std(step) for step in range(9)] == [0.5 if each else 2.0 for each in LISTED]
    assert steps.event == STEPS.event


def test_light_noise_gives_all_steps_an_event_for_users() -> None:
    steps = replace(STEPS, light=0.5)
    assert [steps.noise_std(step) for step in range(9)] == [0.25 if each else 1.0 for each in LISTED]
    assert steps.event == STEPS.event
    both = [SelfComposedDpEvent(LIGHT, 6), SelfComposedDpEvent(ONE, 3)]
    assert steps.central_event_of(range(9)) == ComposedDpEvent(both)
    assert steps.noiseless_steps == frozenset()
    assert STEPS.noiseless_steps == STEPS.redacted_steps == steps.redacted_steps
    with pytest.raises(ReleaseError, match="redacted steps take no noise, and have no epsilon for users"):
        STEPS.central_event_of(range(9))


def test_a_central_account_that_pays_for_all_steps_is_not_exposed(ledger: Ledger) -> None:
    steps = replace(STEPS, light=0.5)
    terms = {"corpus": "chats", "plan": [steps.central_event_of(range(9))]}
    ledger.ensure_account("users", *PROTECTION, Budget(1e3, 1e-6), "rdp", **terms)
    assert _trained(ledger, _release(ledger, steps, "users")) == [SelfComposedDpEvent(ONE, 1)] * 3
    paid = [dict(leaves(charge.event)) for charge in ledger.charges_of("users", "run")]
    assert paid == [{LIGHT: 3, ONE: 1}, {LIGHT: 1, ONE: 1}, {LIGHT: 2, ONE: 1}]
    ledger.ensure_account("later", *PROTECTION, Budget(1e3, 1e-6), "rdp", **terms)
    entries = [entry.kind for name in ("plain", "users", "later") for entry in ledger.entries(name)]
    assert "exposure" not in entries


def test_light_noise_and_a_central_account_come_together(ledger: Ledger) -> None:
    for steps, central in ((STEPS, "plain"), (replace(STEPS, light=0.5), "")):
        with pytest.raises(ReleaseError, match="exactly where they take noise"):
            _release(ledger, steps, central)


def test_each_chunk_is_charged_once_for_its_noisy_steps_and_exposes_the_plain_account(ledger: Ledger) -> None:
    release = _release(ledger)
    assert _trained(ledger, release) == [SelfComposedDpEvent(ONE, 1)] * 3
    assert [entry.kind for entry in ledger.entries("plain")].count("exposure") == 3
    assert [release.rung_of(done) for done in (0, 2, 4, 5, 6, 8, 9)] == [1, 1, 1, 2, 2, 3, 3]


def test_a_plain_account_does_not_pay_for_it(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path, AccountKind.CENTRAL)
    with pytest.raises(LedgerError, match="selective"):
        StepGate(ledger, _release(ledger)).begin(1)


def test_another_draw_or_policy_is_another_input(ledger: Ledger) -> None:
    seen = set()
    for steps in (STEPS, replace(STEPS, policy="another"), replace(STEPS, redacted=draw("linear", 9, 1))):
        release = _release(ledger, steps)
        seen |= {release.inputs, release.stream}
    assert len(seen) == 6


def test_a_chunk_without_a_noisy_step_is_not_charged() -> None:
    with pytest.raises(ReleaseError, match="none of steps 0 to 3 is noisy"):
        STEPS.event_of(range(3))
