"""The noise of a step on the real path: two ranks, every ZeRO stage, steps without any user, so that noise is all."""

from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
from adversaries import P_THRESHOLD, Array, variance_p_value
from engine_cases import BATCH, RATE, Case, before, fragments, taken
from rank_processes import Ranks
from scipy import stats

from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.noise import CorrelatedNoise, KeyedNoise
from rayprivacy.release.step_mechanism import prefix_strategy

SIGMA, NORM = 0.7, 3.0
STD = SIGMA * NORM / BATCH
Plain, Zero = list[dict[str, Array]], int | None
ENGINES = [(None, False), (0, False), (1, False), (2, False), (2, True), (3, False), (3, True)]
NAMED = [f"{'plain' if zero is None else f'zero{zero}'}{'-offload' * offload}" for zero, offload in ENGINES]


def on(*names):
    """These engines in every run of the tests, and the others in the exhaustive one."""
    marked = [
        pytest.param(*engine, marks=[] if name in names else pytest.mark.exhaustive)
        for engine, name in zip(ENGINES, NAMED, strict=True)
    ]
    return pytest.mark.parametrize(("zero", "offload"), marked, ids=NAMED)


@pytest.fixture(scope="module")
def pair():
    with closing(Ranks(2)) as ranks:
        yield ranks


def _case(zero, offload, steps=1, **more):
    return Case("gpt2", zero, offload, ((0, 0),) * steps, norm=NORM, sigma=SIGMA, **more)


def _moved(after):
    """What was added to the gradients, from the weights."""
    return {name: (start.astype(float) - after[name]) / RATE for name, start in before("gpt2").items()}


def _flat(moved):
    return np.concatenate([each.ravel() for each in moved.values()])


def _noise(pair, case):
    return _flat(_moved(pair.run(taken, case)[0]))


def _is(found, wanted):
    return bool(np.allclose(found, wanted, rtol=0, atol=1e-5 * STD))


def _uncorrelated(first, second):
    size = min(len(first), len(second))
    return bool(stats.pearsonr(first[:size], second[:size]).pvalue > P_THRESHOLD)


def _declared(noise):
    return abs(noise.std() / STD - 1) < 0.01 and variance_p_value(noise, STD) > P_THRESHOLD


@pytest.fixture(scope="module")
def plain():
    """Steps 0, 1 and 2 on one rank, each by itself."""
    return [_moved(taken(_case(None, False, first=step))) for step in range(3)]


def test_one_rank_adds_the_keyed_noise_of_each_step_and_parameter(plain):
    keyed = KeyedNoise(Key.for_tests(), "run")
    for step, moved in enumerate(plain):
        for name, noise in moved.items():
            drawn = keyed.normal(step, name, 0, noise.size).numpy().reshape(noise.shape)
            assert _is(noise, STD * drawn)


@pytest.mark.parametrize(
    "steps", [range(1), pytest.param(range(1, 3), marks=pytest.mark.exhaustive)], ids=["first", "more"]
)
@pytest.mark.parametrize(("zero", "offload"), ENGINES, ids=NAMED)
def test_the_noise_has_the_declared_scale_and_is_that_of_one_rank(pair, plain, zero, offload, steps):
    both = [pair.run(taken, _case(zero, offload, first=step)) for step in steps]
    found = [_moved(first) for first, _ in both]
    assert all(np.array_equal(first[name], second[name]) for first, second in both for name in first)
    assert _declared(np.concatenate([_flat(moved) for moved in found]))
    for moved, single in zip(found, (plain[step] for step in steps), strict=True):
        assert _is(_flat(moved), _flat(single))


def test_the_same_test_rejects_other_scales(plain):
    noise = np.concatenate([_flat(moved) for moved in plain])
    assert [_declared(noise * factor) for factor in (0.5, 0.7, 0.98, 1, 1.02, 1.3, 2.0)] == [0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_ranks_own_disjoint_coordinates_and_their_noise_is_independent(pair, plain, zero):
    moved, owned = plain[0], pair.run(fragments, _case(zero, False))
    halves = [
        np.concatenate([moved[name].ravel()[start : start + count] for name, start, count in rank]) for rank in owned
    ]
    assert sum(map(len, halves)) == _flat(moved).size > 10_000
    assert min(map(len, halves)) > 0.3 * _flat(moved).size
    assert all(abs(half.std() / STD - 1) < 0.02 for half in halves)
    assert _uncorrelated(*halves)
    assert not np.intersect1d(*[np.round(half, 9) for half in halves]).size


def test_steps_parameters_and_neighbours_share_no_noise(plain):
    first, second, third = (_flat(moved) for moved in plain)
    assert _uncorrelated(first, second)
    assert _uncorrelated(second, third)
    assert _uncorrelated(first[:-1], first[1:])
    for one, other in pairwise(plain[0].values()):
        assert _uncorrelated(one.ravel(), other.ravel())
    assert not _uncorrelated(first, first + 0.1 * second)


@on("zero3")
def test_three_steps_without_users_are_three_noises(pair, plain, zero, offload):
    assert _is(_noise(pair, _case(zero, offload, 3)), sum(map(_flat, plain)))


@on("plain", "zero2")
def test_the_noise_of_a_step_has_the_scale_of_that_step(pair, plain, zero, offload):
    both = _noise(pair, _case(zero, offload, 2, sigmas=(SIGMA, 3 * SIGMA, SIGMA / 2)))
    second = both - _flat(plain[0])
    assert _declared(second / 3)
    assert not _declared(second)
    assert _is(second, 3 * _flat(plain[1]))


@on("zero1", "zero3")
def test_noise_that_is_correlated_over_steps_is_that_of_one_rank(pair, zero, offload):
    moved = _moved(pair.run(taken, _case(zero, offload, 4, bands=5))[0])
    keyed = CorrelatedNoise(KeyedNoise(Key.for_tests(), "run"), prefix_strategy(5, 10))
    for name, noise in moved.items():
        wanted = sum(keyed.normal(step, name, 0, noise.size).numpy().astype(float) for step in range(4))
        assert _is(noise.ravel(), STD * wanted)


@on("plain", "zero3")
def test_noise_is_left_out_of_redacted_steps_alone(pair, plain, zero, offload):
    noise = _noise(pair, _case(zero, offload, 3, redacted=(True, False, True)))
    assert _declared(noise)
    assert _is(noise, _flat(plain[1]))


@on("plain", "zero3")
def test_redacted_steps_take_light_noise(pair, plain, zero, offload):
    both = _noise(pair, _case(zero, offload, 2, redacted=(True, False), light=SIGMA / 3))
    light = both - _flat(plain[1])
    assert _declared(3 * light)
    assert not _declared(light)
    assert _is(3 * light, _flat(plain[0]))


@on("plain", "zero0", "zero3")
def test_users_and_noise_add_up(pair, plain, zero, offload):
    noisy, quiet = (
        _noise(pair, Case("gpt2", zero, offload, ((5, 4),), (64, 24), NORM, sigma)) for sigma in (SIGMA, 0.0)
    )
    assert np.linalg.norm(quiet) > STD
    assert np.allclose(noisy - quiet, _flat(plain[0]), rtol=0, atol=1e-4 * STD)
