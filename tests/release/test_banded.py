"""Banded noise: columns no longer than 1, the least error of prefix sums, and the charge of every chunk."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from trainings import open_book, train, training

from rayprivacy.core.errors import ReleaseError
from rayprivacy.release.step_mechanism import NoisySteps, prefix_error, prefix_strategy, step_factors

MECHANISM = NoisySteps(sampling_rate=0.2, noise_multiplier=2.0, clipping_norm=0.5, steps=24, bands=4)
SIZES = [(2, 8), (3, 30), (4, 200), (8, 200), (16, 480), (64, 64), (2, 2000), (7, 10_500)]


def _dense(strategy: tuple[float, ...], steps: int) -> np.ndarray:
    """C, whole."""
    return sum(value * np.eye(steps, k=-below) for below, value in enumerate(strategy))


@pytest.mark.parametrize(("bands", "steps"), SIZES)
def test_no_column_is_longer_than_1_in_exact_arithmetic(bands: int, steps: int) -> None:
    strategy = prefix_strategy(bands, steps)
    assert len(strategy) == bands
    assert 1 - Fraction(1, 10**5) < sum(Fraction(each) ** 2 for each in strategy) <= 1
    assert all(float(np.float32(each)) == each for each in strategy)  # what the noise is made with is this, exactly


@pytest.mark.parametrize(("bands", "steps"), [(1, 10), (4, 12), (8, 40)])
def test_columns_errors_and_factors_are_those_of_the_whole_matrix(bands: int, steps: int) -> None:
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
def test_no_other_coefficients_have_a_smaller_error(bands: int, steps: int) -> None:
    best, random = prefix_strategy(bands, steps), np.random.default_rng(3)
    length = np.linalg.norm(best)
    for scale in (0.3, 0.03, 0.003):
        for _ in range(20):
            other = np.array(best) * (1 + scale * random.normal(size=bands))
            other *= length / np.linalg.norm(other)
            assert prefix_error(best, steps) < prefix_error(tuple(other), steps) * (1 + 1e-5)


def test_steps_are_charged_as_one_event_for_every_b_of_them() -> None:
    one = PoissonSampledDpEvent(0.2, GaussianDpEvent(2.0))
    assert MECHANISM.event == SelfComposedDpEvent(one, 6)
    assert [MECHANISM.event_of(range(at, at + 8)).count for at in (0, 8, 16)] == [2, 2, 2]
    assert MECHANISM.event_of(range(20, 24)) == SelfComposedDpEvent(one, 1)
    assert replace(MECHANISM, clipping_norm=4.0).event == MECHANISM.event
    assert {MECHANISM.noise_std(step) for step in range(24)} == {1.0}  # sigma times C


def test_chunks_together_cost_what_all_steps_cost(tmp_path: Path) -> None:
    used = []
    for chunk in (4, 8, 24):
        ledger = open_book(tmp_path / str(chunk), [MECHANISM.event])
        train(ledger, training(ledger, MECHANISM, chunk=chunk))
        assert [charge.event.count for charge in ledger.charges_of("chat", "run")] == [chunk // 4] * (24 // chunk)
        used.append(ledger.status("chat").balance.used[0])
    assert used == pytest.approx([used[0]] * 3, rel=1e-12)


@pytest.mark.parametrize("steps", [range(0, 6), range(2, 6), range(22, 25)])
def test_a_chunk_that_cuts_an_event_is_refused(steps: range) -> None:
    with pytest.raises(ReleaseError, match="are charged at once with bands 4: let steps and chunk be multiples"):
        MECHANISM.event_of(steps)
