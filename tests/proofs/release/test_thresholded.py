"""Counts by key: how far one unit moves them, the noise of each key, the threshold, and one draw for one charge."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from adversaries import P_THRESHOLD, betrays_more, variance_p_value
from hypothesis import given
from hypothesis import strategies as st
from keys_of_users import ADVERSARIES, CROWD, KEY, sums_of
from opendp.domains import atom_domain, map_domain
from opendp.measurements import make_gaussian_threshold
from opendp.metrics import absolute_distance, l02inf_distance
from scipy import stats

from rayprivacy.accounting.gaussian import delta_of
from rayprivacy.core.errors import BudgetRefusedError, EventError, LedgerError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import RELEASE_SEAL, Private, digest_json
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger
from rayprivacy.release import noise
from rayprivacy.release.gate import Asked, Gate
from rayprivacy.release.thresholded import MOST_KEYS, SCALE, ReleasedCounts, ThresholdedCounts, is_key, upper_quantile

OTHER_KEY = Key(b"x" * 32)
COUNTS = ThresholdedCounts(most=4, sigma=6.0, delta=5e-7)
LOOSE = ThresholdedCounts(most=4, sigma=2.0, delta=0.05)  # a threshold that lone keys pass often enough to be counted
LONE = 100_000
EVERY = 1e-6  # of draws that are what they should be, rejected


def _moved(corpus, unit):
    """What one more user does to the sums; those of the others are not touched."""
    mechanism = COUNTS
    before, after = mechanism.check(sums_of(mechanism, corpus)), mechanism.check(sums_of(mechanism, [*corpus, unit]))
    assert not before - after
    return after - before


def _bounded(moved):
    """In whole numbers: at most c keys, each by one, hence the sums by the root of c in L2."""
    squared = sum((SCALE * by) ** 2 for by in moved.values())
    return len(moved) <= 4 and set(moved.values()) <= {1} and squared <= COUNTS.sensitivity**2


@pytest.mark.parametrize("unit", ADVERSARIES.values(), ids=ADVERSARIES)
def test_no_adversarial_user_moves_the_sums_further(unit):
    for corpus in ([], CROWD, [(f"twin {n}", texts) for n, texts in enumerate(ADVERSARIES.values())]):
        assert _bounded(_moved(corpus, ("one more", unit)))


_texts = st.lists(st.lists(st.sampled_from([*"abcdefgh", "", "\ud800"]), max_size=9), max_size=4)


@given(st.lists(_texts, max_size=4), _texts)
def test_one_more_user_moves_the_sums_by_at_most_the_sensitivity(corpus, unit):
    assert _bounded(_moved([(f"user {n}", texts) for n, texts in enumerate(corpus)], ("one more", unit)))


def test_the_bound_is_tight():
    moved = _moved(CROWD, ("one more", [["mine", "yours", "red", "blue"]]))
    assert sum((SCALE * by) ** 2 for by in moved.values()) == pytest.approx(COUNTS.sensitivity**2, rel=1e-12)
    assert COUNTS.sensitivity > math.sqrt(4) * 2**20


def test_a_user_counts_once_for_a_key_however_often_they_write_it():
    assert sums_of(COUNTS, [("ann", [["red"], ["red", "red"]]), ("bob", [["red"]])]) == {"red": 2}
    scattered = COUNTS.contribution(KEY, ["ann", "bob", "ann"], ["red", "red", "red"])
    assert scattered == {"red": 2}


@given(st.permutations([(n % 3, f"key {n}") for n in range(24)]))
def test_what_a_user_counts_for_depends_on_no_order_and_on_nobody_else(mentions):
    found = COUNTS.contribution(KEY, [f"user {name}" for name, _ in mentions], [word for _, word in mentions])
    alone = [
        COUNTS.contribution(
            KEY, *zip(*[(f"user {name}", word) for name, word in mentions if name == user], strict=True)
        )
        for user in range(3)
    ]
    assert found == sum(alone, Counter())
    assert all(len(each) == 4 for each in alone)


def test_which_keys_count_is_a_secret_of_each_user():
    words = [f"key {n}" for n in range(40)]
    kept = {name: tuple(COUNTS.bounded(KEY, name, words)) for name in ("ann", "bob", "cy")}
    assert len(set(kept.values())) == 3
    assert COUNTS.bounded(OTHER_KEY, "ann", words) != list(kept["ann"])
    assert COUNTS.bounded(KEY, "ann", reversed(words * 2)) == list(kept["ann"])
    assert COUNTS.bounded(KEY, "\ud800", ["a"]) == ["a"]  # a name that no encoding holds stops nothing


@pytest.mark.parametrize("word", [None, 7, b"red", "", "x" * 1001, "\udc00", ("a",)])
def test_what_is_no_key_is_none(word):
    assert not is_key(word)


# The threshold


@pytest.mark.parametrize("std", [0.4, 1.0, 3.7, 50.0, 1000.0])
@pytest.mark.parametrize("probability", [0.5, 0.05, 1e-3, 1e-7, 1e-12])
def test_the_tail_of_the_discrete_gaussian_is_below_the_bound_of_the_proof(std, probability):
    """In its exact weights, for any step: at ceil(s z) + 1 and beyond."""
    far = math.ceil(40 * std) + 10
    weights = {n: math.exp(-(n * n) / (2 * std * std)) for n in range(-far, far + 1)}
    first = math.ceil(std * upper_quantile(probability)) + 1
    assert math.fsum(weights[n] for n in range(first, far + 1)) <= probability * math.fsum(weights.values())


def _tail_of_lone_keys(mechanism, threshold):
    """The exact probability with which a key of one unit has a noisy sum above a threshold; tail and whole in steps."""
    std = mechanism.noise_std_grid
    above = np.arange(threshold - SCALE + 1, math.ceil(12 * std), dtype=np.float64)
    half = np.arange(1, math.ceil(12 * std), dtype=np.float64)
    whole = 1 + 2 * math.fsum(np.exp(-((half / std) ** 2) / 2))
    return math.fsum(np.exp(-((above / std) ** 2) / 2)) / whole


@pytest.mark.parametrize("mechanism", [ThresholdedCounts(1, 0.5, 1e-6), ThresholdedCounts(2, 0.3, 0.3)])
def test_lone_keys_of_a_unit_pass_with_delta_together(mechanism):
    """Added up step by step, over millions of steps: never above delta_T, and hardly below."""
    exact = mechanism.most * _tail_of_lone_keys(mechanism, mechanism.threshold)
    assert mechanism.delta * (1 - 1e-4) < exact <= mechanism.delta
    assert mechanism.most * _tail_of_lone_keys(mechanism, int(0.9 * mechanism.threshold)) > 1.1 * mechanism.delta


@pytest.mark.parametrize(("most", "sigma", "delta"), [(4, 4.0, 5e-7), (1, 1.0, 1e-6), (36, 2.0, 1e-9), (9, 30.0, 1e-3)])
def test_another_library_finds_the_same_guarantee(most, sigma, delta):
    """OpenDP's threshold, by its own proof: rho of zCDP, and the delta of what passes."""
    mechanism, root = ThresholdedCounts(most, sigma, delta), math.isqrt(most)
    domain, metric = map_domain(atom_domain(T=str), atom_domain(T="i64")), l02inf_distance(absolute_distance(T="i64"))

    def guarantee(threshold):
        measured = make_gaussian_threshold(domain, metric, scale=mechanism.noise_std_grid, threshold=threshold)
        return measured.map((most, root * SCALE, SCALE))

    rho, found = guarantee(mechanism.threshold)
    assert rho == pytest.approx(1 / (2 * sigma**2), rel=1e-9)
    assert found == pytest.approx(delta, rel=1e-4 if delta < 1e-3 else 1e-2)  # for any of c keys, not for the sum of c
    assert guarantee(int(0.9 * mechanism.threshold))[1] > 1.3 * delta


def _passed(mechanism, threshold=None):
    """How many users of c lone keys, of LONE in all, had any of them released by the real draw."""
    lone = {f"{user} {n}": 1 for user in range(LONE // mechanism.most) for n in range(mechanism.most)}
    if threshold is not None:
        object.__setattr__(mechanism, "threshold", threshold)
    return len({word.split()[0] for word in mechanism.to_counts(mechanism.draw(lone)).keys})


def test_lone_keys_pass_no_more_often_than_delta_and_a_lower_threshold_is_noticed():
    units = LONE // LOOSE.most
    any_of_four = 1 - (1 - LOOSE.delta / LOOSE.most) ** LOOSE.most  # for which delta is the bound of a sum
    passed = _passed(replace(LOOSE))
    assert stats.binomtest(passed, units, LOOSE.delta, alternative="greater").pvalue > EVERY
    assert stats.binomtest(passed, units, any_of_four).pvalue > EVERY
    lower = _passed(replace(LOOSE), int(0.9 * LOOSE.threshold))
    assert stats.binomtest(lower, units, LOOSE.delta, alternative="greater").pvalue < EVERY


def test_the_threshold_stands_on_delta_the_bound_and_the_noise():
    for fields in ({"delta": 5e-8}, {"most": 5}, {"sigma": 6.1}):
        assert replace(COUNTS, **fields).threshold > COUNTS.threshold
    assert COUNTS.threshold / SCALE == pytest.approx(1 + 12 * stats.norm.isf(5e-7 / 4), rel=1e-6)
    assert upper_quantile(0.5) >= 0


def test_a_key_at_the_threshold_stays_and_one_above_it_goes(monkeypatch):
    held = {"at": 1, "above": 1, "below": 1, "far below": 1, "far above": 1}
    given = {
        "above": COUNTS.threshold + 1,
        "at": COUNTS.threshold,
        "below": COUNTS.threshold - 1,
        "far below": -(2**60),
    }
    given["far above"] = 2**60
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda signal, std: np.array([given[w] for w in held]))
    stored = COUNTS.draw(held)
    assert {word: steps for word, (steps, _) in json.loads(stored).items()} == {
        "above": COUNTS.threshold + 1,
        "far above": 2**60,
    }
    assert COUNTS.to_counts(stored).keys == ("above", "far above")


# The noise


def _noisy(stored):
    return np.array([steps for steps, _ in json.loads(stored).values()])


def test_the_noise_of_keys_has_the_declared_scale_and_is_exact():
    held = {f"key {n}": 10**6 for n in range(20_000)}
    noisy = _noisy(COUNTS.draw(held)) - 10**6 * SCALE
    assert len(noisy) == 20_000  # so far above the threshold
    assert COUNTS.noise_std_grid == pytest.approx(6.0 * 2 * SCALE, rel=1e-12)
    assert COUNTS.noise_std_grid >= 6.0 * 2 * SCALE
    assert variance_p_value(noisy, 6.0 * 2 * SCALE) > P_THRESHOLD
    for factor in (0.7, 1.3):
        assert variance_p_value(noisy, 6.0 * 2 * SCALE * factor) < P_THRESHOLD
    assert stats.kstest(noisy, stats.norm(scale=COUNTS.noise_std_grid).cdf).pvalue > P_THRESHOLD
    assert len(np.unique(noisy % SCALE)) > 15_000  # noise has no lattice but that of the grid
    again = _noisy(COUNTS.draw(held)) - 10**6 * SCALE
    assert abs(np.corrcoef(noisy, again)[0, 1]) < 5 / math.sqrt(20_000)
    assert abs(np.corrcoef(noisy[1:], noisy[:-1])[0, 1]) < 5 / math.sqrt(20_000)


def _excess(steps):
    """The delta of discrete noise of multiplier 1 over the Gaussian's, at its worst, by steps in a count of one."""
    places = np.arange(-30 * steps, 30 * steps + 1) / steps
    chances = np.exp(-(places**2) / 2)
    chances /= chances.sum()
    with_it, without = chances[:-steps], chances[steps:]  # shifted by one unit
    epsilons = np.linspace(4.5, 5.2, 141)
    return max(np.maximum(0, with_it - math.exp(e) * without).sum() / delta_of(1.0, e) for e in epsilons)


def test_noise_on_whole_counts_would_be_charged_too_little_and_on_a_fine_grid_is_not():
    assert _excess(1) > 1.7
    assert _excess(2**5) < 1.002
    assert _excess(2**10) < 1 + 2e-6  # and the grid is a thousand times finer


def _tells(mechanism, runs=5000):
    """How often an attacker who knows all others takes a world for the one with the unit: with it, and without."""

    def alarms(count):
        held = {f"{run:05} {n}": count for run in range(runs) for n in range(mechanism.most)}
        seen = mechanism.to_counts(mechanism.draw(held)).counts.reshape(runs, mechanism.most) - 10**5
        return int((seen.sum(axis=1) > 1.5 * mechanism.most).sum())

    return alarms(10**5 + 1), alarms(10**5)


def test_two_worlds_are_told_apart_no_better_than_charged():
    charged = ThresholdedCounts(most=4, sigma=1.0, delta=5e-7)
    assert not betrays_more(*_tells(charged), 5000, charged.sigma)
    assert betrays_more(*_tells(replace(charged, sigma=charged.sigma / 1.5)), 5000, charged.sigma)


def test_noise_comes_before_the_threshold():
    """A count at the threshold passes half of the time, one below it often, and one above it not always."""
    at, std = COUNTS.threshold // SCALE, COUNTS.noise_std_grid / SCALE
    held = {f"{place} {n}": int(at + place * std) for place in (-1, 0, 1) for n in range(2000)}
    passed = Counter(word.split()[0] for word in json.loads(COUNTS.draw(held)))
    for place in (-1, 0, 1):
        chance = COUNTS.passing(int(at + place * std))
        assert 0.1 < chance < 0.9
        assert stats.binomtest(passed[str(place)], 2000, chance).pvalue > EVERY


def test_each_key_that_somebody_has_draws_noise_once_and_no_other(monkeypatch):
    drawn = []
    real = noise.add_discrete_gaussian
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda *given: drawn.append(given) or real(*given))
    COUNTS.draw({"a": 3, "b": 0, "c": 1})
    ((signal, std),) = drawn
    assert (signal.tolist(), std) == ([3 * SCALE, SCALE], COUNTS.noise_std_grid)
    assert COUNTS.draw({}) == COUNTS.draw({"b": 0}) == b"{}"
    assert len(drawn) == 1


def test_nothing_of_what_stays_is_stored_not_even_an_order():
    """What is stored is a table of the keys that passed, by name, whatever the order in which their sums came."""
    held = {f"key {n}": 10**5 for n in range(30, 0, -1)} | {f"lone {n}": 1 for n in range(500)}
    found = COUNTS.to_counts(stored := COUNTS.draw(held))
    assert found.keys == tuple(sorted(f"key {n}" for n in range(1, 31)))
    assert b"lone" not in stored
    assert set(json.loads(stored)) == set(found.keys)
    assert np.abs(found.counts - 10**5).max() < 8 * found.std
    assert (found.std, {*found.lines}) == (COUNTS.noise_std_grid / SCALE, {COUNTS.threshold / SCALE})


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("line", [40.0, 25.0], ids=["threshold", "cut"])
def test_an_interval_holds_for_keys_that_were_released(confidence, line):
    """Also for those that hardly pass, known or not; an interval around the noisy count would miss them."""
    std = 8.0
    for count in (0, 15, 25, 40, 60, 200):
        noisy = count + std * stats.truncnorm.rvs((line - count) / std, np.inf, size=20_000, random_state=count)
        others = np.full(len(noisy), 65.0 - line)  # keys beside them that were above another line
        lines = np.concatenate([np.full(len(noisy), line), others])
        found = ReleasedCounts(("",) * len(lines), np.concatenate([noisy, noisy + 30]), lines, std)
        least, most = (ends[: len(noisy)] for ends in found.interval(confidence))
        held = int(((least <= count) & (count <= most)).sum())
        assert stats.binomtest(held, len(noisy), confidence, alternative="less").pvalue > EVERY, count
        assert ((least >= 0) & (least <= noisy) & (noisy <= most)).all()
        if count == 200:
            assert stats.binomtest(held, len(noisy), confidence).pvalue > EVERY  # and no wider than it has to be
        if count == 15 and line == 40:
            assert (np.abs(noisy - count) <= stats.norm.isf((1 - confidence) / 2) * std).mean() < confidence / 2


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, math.nan])
def test_a_confidence_that_is_none_is_refused(confidence):
    with pytest.raises(ReleaseError, match="confidence is "):
        ReleasedCounts(("a",), np.ones(1), np.ones(1), 1.0).interval(confidence)


# The gate

CORPUS, QUESTION = digest_json("corpus"), digest_json("question")
ASKED = Asked(CORPUS, QUESTION)
SUMS = {"red": 900, "blue": 70, "mine": 1}


def _gate(path, kept=1e-6, key=KEY, **more):
    ledger = Ledger.open(f"sqlite:///{path}/ledger.db")
    terms = {"threshold_delta": kept} if kept else {}
    ledger.ensure_account(
        "chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-5), **terms, **more
    )
    return Gate(ledger, "chat", key)


def _release(gate, sums=SUMS, mechanism=COUNTS, release_id="run", asked=ASKED, stage=""):
    return gate.release_counts(release_id, mechanism, Private(sums), asked=asked, stage=stage)


def _draws_no_more(monkeypatch):
    monkeypatch.setattr(ThresholdedCounts, "draw", lambda *_: pytest.fail("drew"))


def test_asking_again_is_served_from_the_ledger(tmp_path, monkeypatch):
    first = _release(_gate(tmp_path))
    assert (first.release_id, first.seal, first.value.keys[-1]) == ("run", RELEASE_SEAL, "red")
    _draws_no_more(monkeypatch)
    for sums in (SUMS, {"green": 10**6}, {}):  # whatever another machine counts: the answer does not name the charge
        again = _release(_gate(tmp_path), sums).value
        assert (again.keys, again.counts.tobytes()) == (first.value.keys, first.value.counts.tobytes())
    (charge,) = _gate(tmp_path).ledger.charges_of("chat", "run")
    assert (charge.event, charge.state) == (COUNTS.event, ChargeState.COMMITTED)
    assert b"mine" not in _gate(tmp_path).ledger.output(charge)
    report = _gate(tmp_path).ledger.verify()
    assert (report.charges, report.outputs) == (1, 1)


OTHERS = [
    {"asked": Asked(digest_json("another"), QUESTION)},
    {"asked": Asked(CORPUS, digest_json("another"))},
    {"stage": "names"},
    {"release_id": "another"},
    *({"mechanism": replace(COUNTS, **field)} for field in ({"most": 5}, {"sigma": 6.5}, {"delta": 4e-7})),
]


@pytest.mark.parametrize("changed", OTHERS, ids=["corpus", "question", "stage", "release", "most", "sigma", "delta"])
def test_whatever_else_is_changed_is_another_charge_and_another_draw(tmp_path, changed):
    gate = _gate(tmp_path)
    first, other = _release(gate), _release(gate, **changed)
    assert not set(first.value.counts) & set(other.value.counts)
    charges = [*gate.ledger.charges_of("chat", "run"), *gate.ledger.charges_of("chat", "another")]
    assert len({(charge.release_id, charge.input_digest) for charge in charges}) == 2
    assert gate.ledger.status("chat").thresholds[0] == pytest.approx(sum(c.event.event.delta for c in charges))


def test_the_ledger_holds_no_checkable_hash_of_what_is_asked(tmp_path):
    _release(_gate(tmp_path))
    _release(_gate(tmp_path, key=OTHER_KEY))
    assert len({charge.input_digest for charge in _gate(tmp_path).ledger.charges_of("chat", "run")}) == 2


@pytest.mark.parametrize("died", ["draw", "commit_output", "output"])
def test_a_release_that_breaks_off_is_resumed_with_one_charge_and_one_output(tmp_path, monkeypatch, died):
    def break_off(*_):
        raise KeyboardInterrupt

    owner = ThresholdedCounts if died == "draw" else Ledger
    for _ in range(2):
        gate = _gate(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(owner, died, break_off)
            with pytest.raises(KeyboardInterrupt):
                _release(gate)
    first, second = _release(_gate(tmp_path)).value, _release(_gate(tmp_path)).value
    assert first.counts.tobytes() == second.counts.tobytes()
    report = _gate(tmp_path).ledger.verify()
    assert (report.charges, report.outputs) == (1, 1)


@pytest.mark.parametrize(
    "sums", [{"a": -1}, {"a": 1.0}, {"a": True}, {"a": 2**31}, {"": 1}, {"\ud800": 1}, {3: 1}, {"x" * 1001: 1}]
)
def test_sums_that_are_none_are_refused_before_any_charge_and_not_quoted(tmp_path, sums):
    gate = _gate(tmp_path)
    with pytest.raises(ReleaseError) as caught:
        _release(gate, {"secret": 7} | sums)
    assert str(caught.value) == "the sums are not numbers of units by key: add up what contribution() gives."
    assert gate.ledger.charges_of("chat", "run") == []


def test_what_the_account_cannot_pay_is_refused_before_noise_exists(tmp_path, monkeypatch):
    _draws_no_more(monkeypatch)
    with pytest.raises(BudgetRefusedError, match=r"asks for delta 1\.1e-06 for its threshold"):
        _release(_gate(tmp_path), mechanism=replace(COUNTS, delta=1.1e-6))
    with pytest.raises(BudgetRefusedError, match="asks for epsilon"):
        _release(_gate(tmp_path), mechanism=replace(COUNTS, sigma=0.5))
    with pytest.raises(LedgerError, match="record"):
        _release(_gate(tmp_path), mechanism=replace(COUNTS, unit=PrivacyUnit.RECORD))
    (other := tmp_path / "other").mkdir()
    with pytest.raises(EventError, match="keeps no part of its delta"):
        _release(_gate(other, kept=None))
    assert _gate(tmp_path).ledger.verify().charges == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"most": most}, "most is ") for most in (0, -1, 1.0, True, None, MOST_KEYS + 1)),
        *(({"sigma": sigma}, "sigma is ") for sigma in (0.0, -1.0, math.nan, math.inf, 1e10)),
        *(({"delta": delta}, "delta is ") for delta in (0.0, -1e-9, 0.51, 1.0, math.nan)),
        ({"unit": PrivacyUnit.PHRASE}, "users or records"),
    ],
)
def test_impossible_mechanisms_are_refused(fields, message):
    with pytest.raises(ReleaseError, match=f"^{message}|{message}"):
        replace(COUNTS, **fields)
