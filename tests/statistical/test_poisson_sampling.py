"""Coins of DP-SGD: each unit takes part with probability q, whoever else does and whatever happened before."""

import numpy as np
import pytest
from adversaries import P_THRESHOLD, Array
from scipy import stats

from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag

KEY = Key.for_tests()
USERS, STEPS, Q = 2000, 400, 0.05


def _units(documents: int = 1) -> list[Unit]:
    """Users whose documents say who wrote them, and which of them they are."""
    ids = [[np.array([0, user, turn], dtype=np.int32) for turn in range(documents)] for user in range(USERS)]
    return [Unit(unit_tag(KEY, "user", user), tuple(Document(one, 1) for one in own)) for user, own in enumerate(ids)]


UNITS = _units()


def _taking_part(key: Key, run: str, q: float, steps: int = STEPS) -> Array:
    """Who took part when: bool [steps, users]."""
    sampler, table = PoissonSampler(key, run, q, UNITS, 1), np.zeros((steps, USERS), dtype=bool)
    for step in range(steps):
        table[step, [documents[0].ids[1] for documents in sampler.sample(step)]] = True
    return table


@pytest.fixture(scope="module")
def table() -> Array:
    return _taking_part(KEY, "run", Q)


def _rate_p_value(taken: Array, q: float) -> float:
    return float(stats.binomtest(int(taken.sum()), taken.size, q).pvalue)


def _dispersion_p_value(counts: Array, trials: int, q: float) -> float:
    """Two-sided: do these sums of `trials` coins scatter as sums of independent coins do?"""
    total = float(((counts - trials * q) ** 2).sum() / (trials * q * (1 - q)))
    chi2 = stats.chi2(counts.size)
    return 2 * min(float(chi2.cdf(total)), float(chi2.sf(total)))


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.99])
def test_the_rate_is_q(q: float) -> None:
    taken = _taking_part(KEY, "rates", q, 200 if q < 0.01 else 40)
    assert _rate_p_value(taken, q) > P_THRESHOLD
    for wrong in (0.7 * q, 1.3 * q):
        assert wrong > 1 or _rate_p_value(taken, wrong) < P_THRESHOLD


def test_the_sizes_of_batches_and_the_turns_of_users_scatter_as_independent_coins_do(table: Array) -> None:
    assert _dispersion_p_value(table.sum(1), USERS, Q) > P_THRESHOLD
    assert _dispersion_p_value(table.sum(0), STEPS, Q) > P_THRESHOLD


def test_shuffled_batches_would_be_noticed() -> None:
    random, shuffled = np.random.default_rng(1), np.zeros((STEPS, USERS), dtype=bool)
    for row in shuffled:
        row[random.permutation(USERS)[: int(Q * USERS)]] = True
    assert _dispersion_p_value(shuffled.sum(1), USERS, Q) < P_THRESHOLD
    repeated = np.tile(shuffled[:20], (STEPS // 20, 1))
    assert _dispersion_p_value(repeated.sum(0), STEPS, Q) < P_THRESHOLD


@pytest.mark.parametrize("lag", [1, 2, 7, 200])
def test_coins_are_independent_over_steps_and_users(table: Array, lag: int) -> None:
    assert _rate_p_value(table[:-lag] & table[lag:], Q * Q) > P_THRESHOLD
    assert _rate_p_value(table[:, :-lag] & table[:, lag:], Q * Q) > P_THRESHOLD


def test_coins_of_other_runs_and_keys_are_independent(table: Array) -> None:
    for other in (_taking_part(KEY, "another run", Q), _taking_part(Key(bytes(32)), "run", Q)):
        assert _rate_p_value(table & other, Q * Q) > P_THRESHOLD
    assert _rate_p_value(table & _taking_part(KEY, "run", Q), Q * Q) < P_THRESHOLD


@pytest.mark.parametrize(("documents", "most"), [(2, 1), (5, 2), (7, 3)])
def test_every_document_is_read_equally_often(documents: int, most: int) -> None:
    sampler = PoissonSampler(KEY, "turns", 0.5, _units(documents), most)
    starts, read = np.zeros(documents, dtype=int), np.zeros(documents, dtype=int)
    for step in range(20):
        for taken in sampler.sample(step):
            turns = [int(document.ids[2]) for document in taken]
            assert turns == [(turns[0] + at) % documents for at in range(most)]
            starts[turns[0]] += 1
            read[turns] += 1
    assert stats.chisquare(starts).pvalue > P_THRESHOLD
    assert read.sum() == most * starts.sum()
    assert np.ptp(read) < 0.1 * read.mean()


def test_the_turn_depends_neither_on_the_last_one_nor_on_how_the_coin_fell() -> None:
    everybody, some = (PoissonSampler(KEY, "turns", q, _units(3), 1) for q in (1.0, 0.5))
    starts, turns = np.zeros((2, 3), dtype=int), []
    for step in range(11):
        taken = {int(documents[0].ids[1]) for documents in some.sample(step)}
        every = [document.ids for (document,) in everybody.sample(step)]
        turns.append([ids[2] for ids in every])
        for ids in every:
            starts[int(ids[1] in taken), ids[2]] += 1
    assert stats.chi2_contingency(starts).pvalue > P_THRESHOLD
    joint = np.bincount((3 * np.array(turns[:-1]) + np.array(turns[1:])).ravel(), minlength=9)
    assert stats.chisquare(joint).pvalue > P_THRESHOLD
