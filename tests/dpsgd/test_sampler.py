"""Who takes part in a step: by the unit's own keyed coin, and by nothing else."""

import hashlib
import math
import pickle
import struct
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import TEST_SECRET, Key
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag

KEY, RUN = Key.for_tests(), "run"


def _document(*ids: int) -> Document:
    return Document(np.array([0, *ids], dtype=np.int32), 1)


def _unit(user: int, documents: int = 4) -> Unit:
    return Unit(unit_tag(KEY, "user", user), tuple(_document(user, turn) for turn in range(documents)))


UNITS = [_unit(user, 1 + user % 6) for user in range(300)]


def _sampler(
    units: list[Unit] = UNITS, q: float = 0.3, most: int = 2, key: Key = KEY, run: str = RUN
) -> PoissonSampler:
    return PoissonSampler(key, run, q, units, most)


def _read(sampler: PoissonSampler, step: int) -> list[list[tuple[int, int]]]:
    """(user, turn) of each document of each unit that takes part."""
    return [[(int(document.ids[1]), int(document.ids[2])) for document in unit] for unit in sampler.sample(step)]


def _slow_words(tag: bytes, step: int) -> tuple[int, int]:
    """The coin and the turn of a unit as the module docstring has them, with nothing of the module."""
    state = hashlib.blake2b(key=TEST_SECRET, digest_size=32)
    for part in ("dpsgd-coins", RUN, str(step)):
        state.update(len(part).to_bytes(8, "big") + part.encode())
    coin, turn = struct.unpack(">QQ", Cipher(algorithms.AES(state.digest()), modes.ECB()).encryptor().update(tag))
    return coin, turn


@pytest.mark.parametrize("q", [1e-3, 0.3, 1 / 3, 1.0])
def test_the_sample_is_that_of_a_slow_implementation(q: float) -> None:
    for step in range(20):
        wanted = []
        for user, unit in enumerate(UNITS):
            coin, turn = _slow_words(unit.tag, step)
            if coin < math.floor(Fraction(q) * 2**64):
                n = len(unit.documents)
                wanted.append([(user, (turn + at) % n) for at in range(min(n, 2))])
        assert _read(_sampler(q=q), step) == wanted


def test_the_coins_stay_what_they_were_in_earlier_versions() -> None:
    assert unit_tag(KEY, "user", "somebody").hex() == "71d9d4c7cbc7ff9c44b35f82152a078e"
    assert [taken[0] for taken in _read(_sampler(q=0.01), 0)] == [(55, 1), (83, 2), (159, 1), (213, 0), (268, 3)]


def test_a_coin_is_below_the_threshold_and_not_on_it() -> None:
    # A coin that a float represents exactly: its last 11 bits are 0.
    unit, coin = next(
        (unit, coin)
        for unit, coin in ((unit, _slow_words(unit.tag, 0)[0]) for unit in map(_unit, range(100_000)))
        if coin % 2**11 == 0
    )
    assert _sampler([unit], q=coin / 2**64).sample(0) == []
    assert len(_sampler([unit], q=math.nextafter(coin / 2**64, 1)).sample(0)) == 1


def test_an_inserted_unit_moves_nobody_else() -> None:
    whole = _sampler()
    for left_out in (0, 17, 299):
        fewer = _sampler(UNITS[:left_out] + UNITS[left_out + 1 :])
        for step in range(30):
            with_it = [taken for taken in _read(whole, step) if taken[0][0] != left_out]
            assert _read(fewer, step) == with_it


def test_neither_the_order_of_units_nor_the_worker_that_holds_them_matters() -> None:
    whole, turned = _sampler(), _sampler(UNITS[::-1])
    ranks = [_sampler(UNITS[rank::3]) for rank in range(3)]
    for step in range(30):
        assert _read(turned, step) == _read(whole, step)[::-1]
        assert sorted(taken for rank in ranks for taken in _read(rank, step)) == _read(whole, step)


def test_a_step_is_replayed_and_other_steps_runs_and_keys_differ() -> None:
    first = _read(_sampler(), 5)
    sampler = _sampler()
    for step in (0, 7, 5):  # what was asked before leaves no trace
        again = _read(sampler, step)
    assert again == first
    others = [_read(_sampler(), 6), _read(_sampler(run="run2"), 5), _read(_sampler(key=Key(bytes(32))), 5)]
    assert all(other != first for other in others)
    assert len({str(other) for other in others}) == 3


def test_everybody_takes_part_at_q_1_and_nobody_at_a_tiny_q() -> None:
    for step in range(50):
        assert len(_sampler(q=1.0).sample(step)) == len(UNITS)
        assert _sampler(q=5e-324).sample(step) == []
        assert _sampler(q=1e-15).sample(step) == []
    assert _sampler([]).sample(0) == []


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_a_unit_brings_its_documents_in_turn_and_no_more_than_allowed(most: int) -> None:
    sampler = _sampler(q=1.0, most=most)
    seen = set()
    for step in range(60):
        for user, taken in enumerate(_read(sampler, step)):
            n = len(UNITS[user].documents)
            start = taken[0][1]
            assert taken == [(user, (start + at) % n) for at in range(min(n, most))]
            seen |= {pair for pair in taken if user < 12}
    assert seen == {(user, turn) for user in range(12) for turn in range(1 + user % 6)}


@pytest.mark.parametrize("q", [0.0, -0.1, 1.0000001, 2.0, math.nan, math.inf, -math.inf])
def test_a_rate_that_is_no_probability_is_refused(q: float) -> None:
    with pytest.raises(ConfigError, match=r"training\.sampling_rate is"):
        _sampler(q=q)


def test_impossible_units_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.max_records is 0"):
        _sampler(most=0)
    with pytest.raises(ConfigError, match="15 bytes"):
        Unit(bytes(15), (_document(1, 1),))
    with pytest.raises(ConfigError, match="0 documents"):
        Unit(bytes(16), ())
    with pytest.raises(ReleaseError, match="same tag"):
        _sampler([*UNITS, Unit(UNITS[3].tag, (_document(1, 1),))])


def test_tags_separate_their_parts_and_keys() -> None:
    tags = [unit_tag(KEY, "ab", "c"), unit_tag(KEY, "a", "bc"), unit_tag(KEY, "abc"), unit_tag(Key(bytes(32)), "abc")]
    assert len(set(tags)) == 4
    assert {len(tag) for tag in tags} == {16}
    assert unit_tag(KEY, "ab", "c") == tags[0]


def test_nothing_private_is_printed_and_the_sampler_stays_in_its_process() -> None:
    unit = Unit(b"tag of one user!", (_document(123456789),))
    for private in (unit, unit.documents[0], unit.documents, _sampler([unit])):
        assert "123456789" not in repr(private)
        assert "tag of one" not in repr(private)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(_sampler([unit]))
