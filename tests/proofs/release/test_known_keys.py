"""Counts by known keys: all of them draw noise, whoever has them, and a public cut decides; the rest is as it was."""

from collections import Counter
from dataclasses import replace

import pytest
from adversaries import betrays_more
from keys_of_users import ADVERSARIES, CROWD, sums_of
from scipy import stats

from rayprivacy.release import noise
from rayprivacy.release.thresholded import SCALE, ThresholdedCounts

COUNTS = ThresholdedCounts(most=4, sigma=6.0, delta=5e-7)
LOOSE = ThresholdedCounts(most=4, sigma=2.0, delta=0.05)  # a threshold that lone keys pass often enough to be counted
QUESTIONS = 5_000
EVERY = 1e-6  # of draws that are what they should be, rejected
KNOWN = [[f"{question} {answer}" for answer in range(12)] for question in range(50)]


def test_each_known_key_draws_noise_once_whoever_has_it_and_neighbours_draw_as_often(monkeypatch):
    """How many draws known keys take is public, and which of them somebody has changes none of it."""
    drawn, real = [], noise.add_discrete_gaussian
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda *given: drawn.append(given) or real(*given))
    for held in ({}, {"0 3": 7}, {"0 3": 8, "1 0": 1, "mine": 1}):
        drawn.clear()
        COUNTS.draw(held, iter(KNOWN))
        assert {std for _, std in drawn} == {COUNTS.noise_std_grid}
        signals = [signal.tolist() for signal, _ in drawn]
        assert signals[:50] == [[held.get(word, 0) * SCALE for word in words] for words in KNOWN]
        assert signals[50:] == [[SCALE]] * ("mine" in held)


def test_known_keys_that_nobody_has_pass_as_often_as_chance_allows_and_those_of_one_unit_hardly_more():
    mechanism, questions = replace(LOOSE, sigma=4.0), [[f"{n} {m}" for m in range(12)] for n in range(QUESTIONS)]
    for held in ({}, {f"{n} {m}": 1 for n in range(QUESTIONS) for m in range(4)}):
        passed = {word.split()[0] for word in mechanism.to_counts(mechanism.draw(held, questions)).keys}
        nobody, lone = (mechanism.passing(count, known=12) for count in (0, 1))
        chance = 1 - (1 - nobody) ** 8 * (1 - (lone if held else nobody)) ** 4
        assert stats.binomtest(len(passed), QUESTIONS, chance).pvalue > EVERY
        if not held:
            assert 0.9 * 0.005 < chance <= 0.005
            assert stats.binomtest(len(passed), QUESTIONS, 0.005, alternative="greater").pvalue > EVERY


@pytest.mark.parametrize("known", [1, 12, 500, 10**6])
def test_a_cut_is_one_against_chance_and_knows_no_delta(known):
    """Exactly: of so many keys that nobody has any is above it with a probability of at most 0.5%."""
    cut = COUNTS.cut(known)
    assert {replace(COUNTS, delta=delta).cut(known) for delta in (1e-12, 0.5)} == {cut}
    assert 0.9 * 0.005 < known * stats.norm.sf(cut / COUNTS.noise_std_grid) <= 0.005
    assert replace(COUNTS, sigma=6.1).cut(known) > cut


def test_a_known_key_is_released_above_its_cut_and_any_other_above_the_threshold():
    """Half of the keys with a count at the cut; and the lone key of a user beside them as seldom as without them."""
    at, std = COUNTS.cut(12), COUNTS.noise_std_grid
    held = {word: round(at / SCALE) for words in KNOWN for word in words}
    lone = {f"lone {n}": round(at / SCALE) for n in range(600)}
    found = COUNTS.to_counts(COUNTS.draw(held | lone, KNOWN))
    lines = dict(zip(found.keys, found.lines, strict=True))
    passed = Counter(word.startswith("lone") for word in found.keys)
    assert stats.binomtest(passed[False], 600, 0.5).pvalue > EVERY
    assert stats.binomtest(passed[True], 600, stats.norm.sf((COUNTS.threshold - at) / std)).pvalue > EVERY
    assert all(line == (COUNTS.threshold if word.startswith("lone") else at) / SCALE for word, line in lines.items())
    assert (found.counts > found.lines).all()


@pytest.mark.parametrize("unit", ADVERSARIES.values(), ids=ADVERSARIES)
def test_no_adversarial_user_moves_what_draws_noise_further(unit, monkeypatch):
    """The combined vector, of known keys and of those that somebody has, as the real draw makes it of both corpora.

    Where a key draws in both, the vectors differ by at most the sensitivity; one that draws in one alone is unknown,
    is the unit's own, and has a threshold.
    """
    known, seen = [["red", "key 1", "mine", "nobody's"], ["a", "b"]], {}

    def drawn(sums):
        seen.clear()

        def above(self, line, words, counts):
            seen.update(zip(words, zip(counts, [line] * len(words), strict=True), strict=True))
            return {}

        monkeypatch.setattr(ThresholdedCounts, "_above", above)
        COUNTS.draw(sums, known)
        return dict(seen)

    for corpus in ([], CROWD):
        before, after = drawn(sums_of(COUNTS, corpus)), drawn(sums_of(COUNTS, [*corpus, ("one more", unit)]))
        assert {word for words in known for word in words} <= before.keys() <= after.keys()
        moved = {word: after[word][0] - before[word][0] for word in before}
        own = after.keys() - before.keys()
        assert sum((SCALE * by) ** 2 for by in moved.values()) + len(own) * SCALE**2 <= COUNTS.sensitivity**2
        assert all(after[word] == (1, COUNTS.threshold) for word in own)
        assert all(after[word][1] == before[word][1] for word in before)


def test_two_worlds_are_told_apart_by_known_keys_no_better_than_charged():
    """One unit with c known keys that nobody else has: there is no threshold, and all of their noisy sums are seen."""
    charged, runs = ThresholdedCounts(most=4, sigma=1.0, delta=5e-7), 5000

    def tells(mechanism):
        def alarms(count):
            known = [[f"{run} {n}" for n in range(4)] for run in range(runs)]
            held = {word: count for words in known for word in words} if count else {}
            found = mechanism.to_counts(mechanism.draw(held, known))
            return len({word.split()[0] for word in found.keys})

        return alarms(1), alarms(0)

    assert not betrays_more(*tells(charged), runs, charged.sigma)
    assert betrays_more(*tells(replace(charged, sigma=charged.sigma / 3)), runs, charged.sigma)
