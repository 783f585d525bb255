"""Who takes part in a step: by the unit's own keyed coin, in the steps of its own group, and by nothing else."""

import hashlib
import math
import pickle
import struct
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import TEST_SECRET, Key
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag

KEY, RUN, BANDS, STEPS, RATE = Key.for_tests(), "run", 5, 200, 0.3
P_THRESHOLD = 1e-4
GROUPS = pytest.mark.parametrize("groups", [1, BANDS])


def _document(*ids):
    return Document(np.array([0, *ids], dtype=np.int32), 1)


def _unit(user, documents=4):
    return Unit(unit_tag(KEY, "user", user), tuple(_document(user, turn) for turn in range(documents)))


UNITS = [_unit(user, 1 + user % 6) for user in range(300)]


def _sampler(units=UNITS, q=RATE, most=2, key=KEY, run=RUN, groups=1):
    return PoissonSampler(key, run, q, units, most, groups=groups)


def _read(sampler, step):
    """(user, turn) of each document of each unit that takes part."""
    return [[(int(document.ids[1]), int(document.ids[2])) for document in unit] for unit in sampler.sample(step)]


def _taken(sampler, step):
    return [unit[0][0] for unit in _read(sampler, step)]


def _slow_words(tag, *parts):
    """The coin and the turn of a unit as the module docstring has them, with nothing of the module."""
    state = hashlib.blake2b(key=TEST_SECRET, digest_size=32)
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part.encode())
    coin, turn = struct.unpack(">QQ", Cipher(algorithms.AES(state.digest()), modes.ECB()).encryptor().update(tag))
    return coin, turn


@pytest.mark.parametrize("q", [1e-3, 0.3, 1 / 3, 1.0])
def test_the_sample_is_that_of_a_slow_implementation(q):
    for step in range(20):
        wanted = []
        for user, unit in enumerate(UNITS):
            coin, turn = _slow_words(unit.tag, "dpsgd-coins", RUN, str(step))
            if coin < math.floor(Fraction(q) * 2**64):
                n = len(unit.documents)
                wanted.append([(user, (turn + at) % n) for at in range(min(n, 2))])
        assert _read(_sampler(q=q), step) == wanted


def test_the_coins_stay_what_they_were_in_earlier_versions():
    assert unit_tag(KEY, "user", "somebody").hex() == "71d9d4c7cbc7ff9c44b35f82152a078e"
    assert [taken[0] for taken in _read(_sampler(q=0.01), 0)] == [(55, 1), (83, 2), (159, 1), (213, 0), (268, 3)]


def test_a_coin_is_below_the_threshold_and_not_on_it():
    words = ((unit, _slow_words(unit.tag, "dpsgd-coins", RUN, "0")[0]) for unit in map(_unit, range(100_000)))
    unit, coin = next(each for each in words if each[1] % 2**11 == 0)  # a coin that a float represents exactly
    assert _sampler([unit], q=coin / 2**64).sample(0) == []
    assert len(_sampler([unit], q=math.nextafter(coin / 2**64, 1)).sample(0)) == 1


@GROUPS
def test_an_inserted_unit_moves_nobody_else(groups):
    whole = _sampler(groups=groups)
    for left_out in (0, 17, 299):
        fewer = _sampler(UNITS[:left_out] + UNITS[left_out + 1 :], groups=groups)
        for step in range(30):
            assert _read(fewer, step) == [taken for taken in _read(whole, step) if taken[0][0] != left_out]


@GROUPS
def test_neither_the_order_of_units_nor_the_worker_that_holds_them_matters(groups):
    whole, turned = _sampler(groups=groups), _sampler(UNITS[::-1], groups=groups)
    ranks = [_sampler(UNITS[rank::3], groups=groups) for rank in range(3)]
    for step in range(30):
        assert _read(turned, step) == _read(whole, step)[::-1]
        assert sorted(taken for rank in ranks for taken in _read(rank, step)) == _read(whole, step)


def test_a_step_is_replayed_and_other_steps_runs_and_keys_differ():
    first, sampler = _read(_sampler(), 5), _sampler()
    again = [_read(sampler, step) for step in (0, 7, 5)]  # what was asked before leaves no trace
    assert again[-1] == first
    others = [_read(_sampler(), 6), _read(_sampler(run="run2"), 5), _read(_sampler(key=Key(bytes(32))), 5)]
    assert len({str(each) for each in (first, *others)}) == 4


def test_everybody_takes_part_at_q_1_and_nobody_at_a_tiny_q():
    for step in range(50):
        assert len(_sampler(q=1.0).sample(step)) == len(UNITS)
        assert _sampler(q=5e-324).sample(step) == []
        assert _sampler(q=1e-15).sample(step) == []
    assert _sampler([]).sample(0) == []
    assert _sampler([], groups=BANDS).sample(3) == []


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_a_unit_brings_its_documents_in_turn_and_no_more_than_allowed(most):
    sampler, seen = _sampler(q=1.0, most=most), set()
    for step in range(60):
        for user, taken in enumerate(_read(sampler, step)):
            n = len(UNITS[user].documents)
            start = taken[0][1]
            assert taken == [(user, (start + at) % n) for at in range(min(n, most))]
            seen |= {pair for pair in taken if user < 12}
    assert seen == {(user, turn) for user in range(12) for turn in range(1 + user % 6)}


@pytest.fixture(scope="module")
def table():
    """Who took part when, in groups: bool [steps, users]."""
    sampler, table = _sampler(groups=BANDS), np.zeros((STEPS, len(UNITS)), dtype=bool)
    for step in range(STEPS):
        table[step, _taken(sampler, step)] = True
    return table


def test_steps_are_open_to_the_group_of_a_slow_implementation(table):
    for user, unit in enumerate(UNITS):
        group = _slow_words(unit.tag, "dpsgd-groups", RUN)[0] % BANDS
        assert set(np.flatnonzero(table[:, user]) % BANDS) == {group}


def test_no_unit_takes_part_twice_within_the_bands(table):
    gaps = [np.diff(np.flatnonzero(own)) for own in table.T]
    assert min(gap.min() for gap in gaps if len(gap)) == BANDS
    assert all((gap % BANDS == 0).all() for gap in gaps)


def test_groups_are_balanced_and_in_its_own_steps_a_unit_takes_part_with_the_given_rate(table):
    sizes = [len(_taken(_sampler(q=1.0, groups=BANDS), group)) for group in range(BANDS)]
    assert sum(sizes) == len(UNITS)
    assert stats.chisquare(sizes).pvalue > P_THRESHOLD
    own = STEPS // BANDS
    for wrong, fits in ((1.0, True), (0.7, False), (1.3, False)):
        test = stats.binomtest(int(table.sum()), own * len(UNITS), wrong * RATE)
        assert bool(test.pvalue > P_THRESHOLD) is fits
    spread = ((table.sum(0) - own * RATE) ** 2).sum() / (own * RATE * (1 - RATE))  # independent: binomial over users
    assert 2 * min(stats.chi2.cdf(spread, len(UNITS)), stats.chi2.sf(spread, len(UNITS))) > P_THRESHOLD


def test_groups_differ_between_runs_and_coins_are_those_of_one_group():
    opened = _sampler(q=1.0, groups=BANDS)
    assert _taken(opened, 0) != _taken(_sampler(q=1.0, run="run 2", groups=BANDS), 0)
    for step in range(20):
        assert set(_taken(_sampler(groups=BANDS), step)) == set(_taken(_sampler(), step)) & set(_taken(opened, step))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(({"q": q}, r"training\.sampling_rate is") for q in (0.0, -0.1, 1.0000001, math.nan, math.inf, -math.inf)),
        *(({"groups": groups}, r"training\.bands is") for groups in (0, -1)),
        ({"most": 0}, r"training\.max_records is 0"),
        ({"units": [*UNITS, Unit(UNITS[3].tag, (_document(1, 1),))]}, "same tag"),
    ],
)
def test_what_cannot_be_sampled_is_refused(given, said):
    with pytest.raises((ConfigError, ReleaseError), match=said):
        _sampler(**given)


@pytest.mark.parametrize(("tag", "documents", "said"), [(15, 1, "15 bytes"), (16, 0, "0 documents")])
def test_impossible_units_are_refused(tag, documents, said):
    with pytest.raises(ConfigError, match=said):
        Unit(bytes(tag), (_document(1, 1),) * documents)


def test_tags_separate_their_parts_and_keys():
    tags = [unit_tag(KEY, "ab", "c"), unit_tag(KEY, "a", "bc"), unit_tag(KEY, "abc"), unit_tag(Key(bytes(32)), "abc")]
    assert len(set(tags)) == 4
    assert {len(tag) for tag in tags} == {16}


def test_nothing_private_is_printed_and_the_sampler_stays_in_its_process():
    unit = Unit(b"tag of one user!", (_document(123456789),))
    for private in (unit, unit.documents[0], unit.documents, _sampler([unit])):
        assert "123456789" not in repr(private)
        assert "tag of one" not in repr(private)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(_sampler([unit]))
