"""Noise that falls by a schedule: drawn and charged by one rule, chunk by chunk."""

from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from trainings import open_book, train, training

from rayprivacy.accounting.events import leaves
from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.errors import BudgetRefusedError, EventError, LedgerError
from rayprivacy.release.step_mechanism import NoisySteps

LINEAR = NoiseSchedule("linear", tau=0.5, steps_per_epoch=8)
MECHANISM = NoisySteps(0.2, 2.0, clipping_norm=0.5, steps=24, schedule=LINEAR, chunk=4)
BY_STEP = replace(MECHANISM, schedule=NoiseSchedule("exponential", tau=0.015), steps=200, chunk=3)


@pytest.mark.parametrize("mechanism", [MECHANISM, BY_STEP, replace(BY_STEP, chunk=200)])
def test_every_step_is_charged_the_noise_that_it_draws(mechanism: NoisySteps) -> None:
    for step in range(mechanism.steps):
        ((leaf, times),) = leaves(mechanism.event_of(range(step, step + 1)))
        assert times == 1
        assert leaf.sampling_probability == mechanism.sampling_rate
        assert leaf.event.noise_multiplier * mechanism.clipping_norm == mechanism.noise_std(step)


def test_the_noise_follows_the_schedule_from_level_to_level() -> None:
    assert [MECHANISM.noise_std(step) for step in range(24)] == [1.0] * 8 + [2 / 1.5 / 2] * 8 + [0.5] * 8
    one, three = (PoissonSampledDpEvent(0.2, GaussianDpEvent(sigma)) for sigma in (2.0, 1.0))
    assert MECHANISM.event_of(range(4)) == SelfComposedDpEvent(one, 4)
    parts = MECHANISM.event_of(range(4, 20)).events
    assert parts[0] == SelfComposedDpEvent(one, 4)
    assert parts[2] == SelfComposedDpEvent(three, 4)
    constant = replace(MECHANISM, schedule=NoiseSchedule())
    assert constant.event == NoisySteps(0.2, 2.0, 0.5, 24).event


def test_chunks_together_are_charged_the_levels_and_nothing_twice(tmp_path: Path) -> None:
    ledger = open_book(tmp_path, [MECHANISM.event], "pld")
    for _ in range(2):  # again after a crash that nobody noticed
        train(ledger, training(ledger, MECHANISM))
    charged = [charge.event for charge in ledger.charges_of("chat", "run")]
    rungs = [MECHANISM.event_of(range(first, first + 4)) for first in range(0, 24, 4)]
    assert list(leaves(ComposedDpEvent(charged))) == [leaf for rung in rungs for leaf in leaves(rung)]
    assert len({leaf for event in charged for leaf, _ in leaves(event)}) == 3
    assert ledger.status("chat").balance.used == (8, 8, 8)  # of three planned lines
    with pytest.raises((BudgetRefusedError, LedgerError, EventError)):
        train(ledger, training(ledger, replace(MECHANISM, schedule=replace(LINEAR, tau=0.6))))


def test_everything_that_fixes_the_noise_is_in_the_digest() -> None:
    others = [
        replace(MECHANISM, schedule=replace(LINEAR, tau=0.6)),
        replace(MECHANISM, schedule=replace(LINEAR, steps_per_epoch=4)),
        replace(MECHANISM, schedule=replace(LINEAR, kind="exponential")),
        replace(MECHANISM, noise_multiplier=2.1),
    ]
    assert all(other.parameters != MECHANISM.parameters for other in others)
    assert MECHANISM.parameters["levels"] == [[2.0, 8], [2 / 1.5, 8], [1.0, 8]]
