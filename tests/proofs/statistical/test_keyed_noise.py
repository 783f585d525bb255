"""Keyed noise and coins of DP-SGD: as declared, a function of their place alone, and independent everywhere else."""

import copy
import hashlib
import math
import pickle
import struct

import numpy as np
import pytest
import torch
from adversaries import P_THRESHOLD, variance_p_value
from scipy import stats

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import TEST_SECRET, Key
from rayprivacy.dpsgd import chacha
from rayprivacy.dpsgd import noise as module
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag

KEY, RUN, STEP, NAME = Key.for_tests(), "run-1", 3, "model.layers.0.weight"
SIZE = 300_000
NOISE = KeyedNoise(KEY, RUN)
PIECE = 8 * module._ON_CPU  # coordinates that a thread draws at a time
NONCE = 8 * 2**32  # coordinates after which the counter begins anew


@pytest.fixture(scope="module")
def drawn():
    return NOISE.normal(STEP, NAME, 0, SIZE).numpy().astype(np.float64)


def _rotated(word, by):
    return (word << by | word >> (32 - by)) & 0xFFFFFFFF


def _block(secret, number):
    """One block of ChaCha20, straight from RFC 8439: eight words of 64 bits."""
    begun = list(struct.unpack("<16I", b"expand 32-byte k" + secret + struct.pack("<QQ", number, 0)))
    words = list(begun)
    columns = [(each, each + 4, each + 8, each + 12) for each in range(4)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in (columns + diagonals) * 10:
        for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            words[x] = (words[x] + words[y]) & 0xFFFFFFFF
            words[z] = _rotated(words[z] ^ words[x], by)
    return struct.unpack("<8q", struct.pack("<16I", *((x + y) & 0xFFFFFFFF for x, y in zip(words, begun, strict=True))))


def _slow(coordinates, step=STEP, name=NAME):
    """Coordinates as the module docstring has them, with nothing of the module: BLAKE2b, ChaCha20 and math."""
    state = hashlib.blake2b(key=TEST_SECRET, digest_size=32)
    for part in ("dpsgd-noise", RUN, str(step), name):
        state.update(len(part.encode()).to_bytes(8, "big") + part.encode())
    blocks = {number: _block(state.digest(), number) for number in {each // 8 for each in coordinates}}
    for coordinate in coordinates:
        pair = coordinate % 8 // 2 * 2
        first, second = (word >> 11 for word in blocks[coordinate // 8][pair : pair + 2])
        radius, angle = math.sqrt(-2 * math.log((first + 2**52 + 1) / 2**53)), 2 * math.pi * second / 2**53
        yield radius * (math.sin(angle) if coordinate % 2 else math.cos(angle))


@pytest.mark.parametrize("start", [0, 1, 1000, 12_345, PIECE - 3, 5 * PIECE - 4, 2**33 - 1, NONCE - 100, 2**40 + 1])
def test_the_noise_is_that_of_a_slow_implementation(start):
    wanted = list(_slow(range(start, start + 200)))
    np.testing.assert_allclose(NOISE.normal(STEP, NAME, start, 200).numpy(), wanted, rtol=2.4e-7, atol=1e-12)


def test_so_it_is_in_every_piece_of_a_draw(drawn):
    places = range(7, SIZE, 997)
    np.testing.assert_allclose(drawn[places], list(_slow(places)), rtol=2.4e-7, atol=1e-12)


def test_the_stream_stays_what_it_was_in_earlier_versions():
    wanted = torch.tensor([2.343343735, 0.270698696, -1.946185112, -0.190242931])
    torch.testing.assert_close(NOISE.normal(0, "weight", 0, 4), wanted, rtol=3e-7, atol=0)


def test_any_range_is_that_slice_of_the_whole(drawn):
    random = np.random.default_rng(5)
    edges = [0, 1, 2, 63, 64, 65, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 7, SIZE - 1]
    for start in [*edges, *random.integers(0, SIZE, 50).tolist()]:
        for count in (0, 1, 2, 3, int(random.integers(4, 40)), int(random.integers(0, SIZE))):
            part = NOISE.normal(STEP, NAME, start, min(count, SIZE - start))
            assert part.dtype == torch.float32
            assert np.array_equal(part.numpy(), drawn[start : start + count])


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_and_default_types_change_nothing(drawn, one_thread, threads):
    dtype = torch.get_default_dtype()
    try:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.bfloat16)
        torch.use_deterministic_algorithms(True)  # memory that nobody writes to is NaN
        again = NOISE.normal(STEP, NAME, 0, SIZE)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(False)
    assert again.dtype == torch.float32
    assert np.array_equal(again.numpy(), drawn)


@pytest.mark.parametrize("size", [1 << 10, 1 << 19])
def test_nor_do_torch_in_place_of_openssl_and_other_pieces(drawn, monkeypatch, size):
    monkeypatch.setattr(chacha, "fill", chacha.by_torch)
    monkeypatch.setattr(module, "_ON_CPU", size)
    for start, count in ((0, SIZE), (8 * (1 << 10) - 5, 11), (12_345, 100_000)):
        assert np.array_equal(NOISE.normal(STEP, NAME, start, count).numpy(), drawn[start : start + count])


def _normality(values):
    """p-values of standard normality: spread, whole distribution, tails."""
    bins = np.bincount((stats.norm.cdf(values) * 200).astype(int), minlength=200)
    beyond = int((np.abs(values) > 3.5).sum())
    return {
        "variance": variance_p_value(values, 1.0),
        "mean": float(2 * stats.norm.sf(abs(values.mean()) * math.sqrt(values.size))),
        "kolmogorov": float(stats.kstest(values, "norm").pvalue),
        "chi-square": float(stats.chisquare(bins).pvalue),
        "tails": float(stats.binomtest(beyond, values.size, 2 * stats.norm.sf(3.5)).pvalue),
    }


@pytest.mark.parametrize("part", ["all", "even", "odd", "late", "one coordinate"])
def test_the_noise_is_standard_normal(drawn, part):
    if part == "one coordinate":
        values = np.array([NOISE.normal(step, NAME, 7, 1).item() for step in range(4000)])
    else:
        values = {"all": drawn, "even": drawn[::2], "odd": drawn[1::2], "late": drawn[SIZE // 2 :]}[part]
    for name, p_value in _normality(values).items():
        assert p_value > P_THRESHOLD, name


def test_the_same_tests_reject_a_scale_30_percent_off(drawn):
    for factor in (0.7, 1.3):
        few = _normality(drawn[:100_000] * factor)
        assert max(few[name] for name in ("variance", "kolmogorov", "chi-square", "tails")) < P_THRESHOLD


def _related(first, second):
    """Whether values, or their sizes, are correlated."""
    pairs = ((first, second), (first**2, second**2), (np.abs(first), np.abs(second)))
    return any(stats.pearsonr(*pair).pvalue < P_THRESHOLD for pair in pairs)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 16, 256, PIECE - 1, PIECE, PIECE + 1, SIZE // 2])
def test_coordinates_are_independent(drawn, lag):
    assert not _related(drawn[:-lag], drawn[lag:])


def _pairs(values):
    """The two coordinates of two words as one number."""
    return values[0::2] + 1j * values[1::2]


OTHERS = {
    "step": (KEY, RUN, STEP + 1, NAME),
    "step 33": (KEY, RUN, 33, NAME),
    "run and step run together": (KEY, "run-", 13, NAME),
    "name": (KEY, RUN, STEP, "model.layers.1.weight"),
    "run": (KEY, "run-2", STEP, NAME),
    "key": (Key(bytes(32)), RUN, STEP, NAME),
}


@pytest.mark.parametrize(("key", "run", "step", "name"), OTHERS.values(), ids=OTHERS)
def test_no_noise_is_shared_between_steps_parameters_runs_or_keys(drawn, key, run, step, name):
    other = KeyedNoise(key, run).normal(step, name, 0, SIZE).numpy().astype(np.float64)
    assert not _related(drawn, other)
    assert not _related(drawn[:-1], other[1:])
    assert not np.isin(_pairs(drawn), _pairs(other)).any()


def test_noise_drawn_twice_would_be_noticed(drawn):
    again = NOISE.normal(STEP, NAME, 0, SIZE).numpy()
    assert _related(drawn, again)
    assert np.isin(_pairs(drawn)[100:], _pairs(again)[:-100]).any()
    assert _related(np.repeat(drawn, 2)[:-1], np.repeat(drawn, 2)[1:])  # a stream that repeats itself


def test_the_ends_of_the_uniform_numbers_are_finite():
    least, most = -(2**63), 2**63 - 1
    words = torch.tensor([[least, 0], [most, most], [least, most], [most, 0], [0, least]], dtype=torch.int64)
    out = torch.empty(len(words), 2)
    module._box_muller(words, out, torch.empty(3, 7, dtype=torch.float64))
    assert out[0].tolist() == pytest.approx([math.sqrt(2 * 53 * math.log(2)), 0])
    assert out[1].tolist() == pytest.approx([0, 0])
    assert out[4].tolist() == pytest.approx([-math.sqrt(2 * math.log(2)), 0], rel=1e-6, abs=1e-12)
    assert torch.isfinite(out).all()


def test_the_object_is_sealed():
    noise = KeyedNoise(Key(b"s" * 32), "a private run")
    assert f"{noise} {noise!r}" == "KeyedNoise(<sealed>) KeyedNoise(<sealed>)"
    for escape in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            escape(noise)


def test_a_negative_place_is_refused():
    for step, start, count in ((-1, 0, 1), (0, -1, 1), (0, -2, 2), (0, 0, -1)):
        with pytest.raises(ReleaseError, match="-"):
            NOISE.normal(step, NAME, start, count)


USERS, STEPS, Q = 2000, 400, 0.05


def _units(documents=1):
    """Users whose documents say who wrote them, and which of them they are."""
    ids = [[np.array([0, user, turn], dtype=np.int32) for turn in range(documents)] for user in range(USERS)]
    return [Unit(unit_tag(KEY, "user", user), tuple(Document(one, 1) for one in own)) for user, own in enumerate(ids)]


UNITS = _units()


def _taking_part(key, run, q, steps=STEPS):
    """Who took part when: bool [steps, users]."""
    sampler, table = PoissonSampler(key, run, q, UNITS, 1), np.zeros((steps, USERS), dtype=bool)
    for step in range(steps):
        table[step, [documents[0].ids[1] for documents in sampler.sample(step)]] = True
    return table


@pytest.fixture(scope="module")
def table():
    return _taking_part(KEY, "run", Q)


def _rate_p_value(taken, q):
    return float(stats.binomtest(int(taken.sum()), taken.size, q).pvalue)


def _dispersion_p_value(counts, trials, q):
    """Two-sided: do these sums of `trials` coins scatter as sums of independent coins do?"""
    total = float(((counts - trials * q) ** 2).sum() / (trials * q * (1 - q)))
    chi2 = stats.chi2(counts.size)
    return 2 * min(float(chi2.cdf(total)), float(chi2.sf(total)))


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.99])
def test_the_rate_is_q(q):
    taken = _taking_part(KEY, "rates", q, 200 if q < 0.01 else 40)
    assert _rate_p_value(taken, q) > P_THRESHOLD
    for wrong in (0.7 * q, 1.3 * q):
        assert wrong > 1 or _rate_p_value(taken, wrong) < P_THRESHOLD


def test_the_sizes_of_batches_and_the_turns_of_users_scatter_as_independent_coins_do(table):
    assert _dispersion_p_value(table.sum(1), USERS, Q) > P_THRESHOLD
    assert _dispersion_p_value(table.sum(0), STEPS, Q) > P_THRESHOLD


def test_shuffled_batches_would_be_noticed():
    random, shuffled = np.random.default_rng(1), np.zeros((STEPS, USERS), dtype=bool)
    for row in shuffled:
        row[random.permutation(USERS)[: int(Q * USERS)]] = True
    assert _dispersion_p_value(shuffled.sum(1), USERS, Q) < P_THRESHOLD
    repeated = np.tile(shuffled[:20], (STEPS // 20, 1))
    assert _dispersion_p_value(repeated.sum(0), STEPS, Q) < P_THRESHOLD


@pytest.mark.parametrize("lag", [1, 2, 7, 200])
def test_coins_are_independent_over_steps_and_users(table, lag):
    assert _rate_p_value(table[:-lag] & table[lag:], Q * Q) > P_THRESHOLD
    assert _rate_p_value(table[:, :-lag] & table[:, lag:], Q * Q) > P_THRESHOLD


def test_coins_of_other_runs_and_keys_are_independent(table):
    for other in (_taking_part(KEY, "another run", Q), _taking_part(Key(bytes(32)), "run", Q)):
        assert _rate_p_value(table & other, Q * Q) > P_THRESHOLD
    assert _rate_p_value(table & _taking_part(KEY, "run", Q), Q * Q) < P_THRESHOLD


@pytest.mark.parametrize(("documents", "most"), [(2, 1), (5, 2), (7, 3)])
def test_every_document_is_read_equally_often(documents, most):
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


def test_the_turn_depends_neither_on_the_last_one_nor_on_how_the_coin_fell():
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
