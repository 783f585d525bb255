"""Groups of units that take turns: by a hash of the unit alone, and never one unit twice within b steps."""

import hashlib
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import TEST_SECRET, Key
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag

KEY, RUN, BANDS, STEPS, USERS, RATE = Key.for_tests(), "run", 5, 200, 3000, 0.3
P_THRESHOLD = 1e-4


def _unit(user: int) -> Unit:
    return Unit(unit_tag(KEY, "user", user), (Document(np.array([0, user], dtype=np.int32), 1),))


UNITS = [_unit(user) for user in range(USERS)]


def _sampler(units: list[Unit] = UNITS, q: float = RATE, groups: int = BANDS, run: str = RUN) -> PoissonSampler:
    return PoissonSampler(KEY, run, q, units, 1, groups=groups)


def _taken(sampler: PoissonSampler, step: int) -> list[int]:
    return [int(documents[0].ids[1]) for documents in sampler.sample(step)]


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    """Who took part when: bool [steps, users]."""
    sampler, table = _sampler(), np.zeros((STEPS, USERS), dtype=bool)
    for step in range(STEPS):
        table[step, _taken(sampler, step)] = True
    return table


def _slow_group(user: int) -> int:
    state = hashlib.blake2b(key=TEST_SECRET, digest_size=32)
    for part in ("dpsgd-groups", RUN):
        state.update(len(part).to_bytes(8, "big") + part.encode())
    block = Cipher(algorithms.AES(state.digest()), modes.ECB()).encryptor().update(UNITS[user].tag)
    return int(struct.unpack(">QQ", block)[0] % BANDS)


def test_steps_are_open_to_the_group_of_a_slow_implementation(table: np.ndarray) -> None:
    for user in range(300):
        steps = np.flatnonzero(table[:, user])
        assert set(steps % BANDS) == {_slow_group(user)}


def test_no_unit_takes_part_twice_within_the_bands(table: np.ndarray) -> None:
    gaps = [np.diff(np.flatnonzero(table[:, user])) for user in range(USERS)]
    assert min(gap.min() for gap in gaps if len(gap)) == BANDS
    assert all((gap % BANDS == 0).all() for gap in gaps)


def test_the_groups_are_balanced() -> None:
    sizes = [len(_taken(_sampler(q=1.0), group)) for group in range(BANDS)]
    assert sum(sizes) == USERS
    assert stats.chisquare(sizes).pvalue > P_THRESHOLD


def test_in_its_own_steps_a_unit_takes_part_with_the_given_rate(table: np.ndarray) -> None:
    opened = STEPS // BANDS * USERS
    assert stats.binomtest(int(table.sum()), opened, RATE).pvalue > P_THRESHOLD
    for wrong in (0.7 * RATE, 1.3 * RATE):
        assert stats.binomtest(int(table.sum()), opened, wrong).pvalue < P_THRESHOLD
    turns = table.sum(0)  # independent coins: binomial over users
    spread = ((turns - STEPS // BANDS * RATE) ** 2).sum() / (STEPS // BANDS * RATE * (1 - RATE))
    assert 2 * min(stats.chi2.cdf(spread, USERS), stats.chi2.sf(spread, USERS)) > P_THRESHOLD


def test_an_inserted_unit_moves_nobody_else() -> None:
    whole = _sampler()
    for left_out in (0, 17, USERS - 1):
        fewer = _sampler(UNITS[:left_out] + UNITS[left_out + 1 :])
        for step in range(30):
            assert _taken(fewer, step) == [user for user in _taken(whole, step) if user != left_out]


def test_neither_the_order_of_units_nor_the_worker_that_holds_them_matters() -> None:
    whole, ranks = _sampler(), [_sampler(UNITS[rank::3]) for rank in range(3)]
    for step in range(20):
        assert sorted(user for rank in ranks for user in _taken(rank, step)) == _taken(whole, step)


def test_groups_differ_between_runs_and_coins_are_those_of_one_group() -> None:
    assert _taken(_sampler(q=1.0), 0) != _taken(_sampler(q=1.0, run="run 2"), 0)
    everybody = _sampler(groups=1)
    for step in range(20):
        assert set(_taken(_sampler(), step)) == set(_taken(everybody, step)) & set(_taken(_sampler(q=1.0), step))


def test_a_step_may_be_empty_and_so_may_a_rank() -> None:
    assert _sampler([]).sample(3) == []
    assert [len(_sampler(UNITS[:1], q=1.0).sample(step)) for step in range(BANDS)].count(0) == BANDS - 1


@pytest.mark.parametrize("groups", [0, -1])
def test_no_groups_are_refused(groups: int) -> None:
    with pytest.raises(ConfigError, match=r"training\.bands is"):
        _sampler(groups=groups)
