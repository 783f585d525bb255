"""The claim of a token: of every pair of words in the integer rows, and of real draws, which follow these rows."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

from rayprivacy.accounting.events import document_epsilon
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.sanitize.mechanism import (
    KEEP,
    WORD,
    Coins,
    RandomizedResponse,
    SanText,
    below,
    randomized_response_epsilon,
)
from rayprivacy.sanitize.table import ROUNDING, Table, epsilon_for_bound, epsilon_for_keep, rounded_up
from rayprivacy.sanitize.vocabulary import Vocabulary, load_glove

SETTINGS = {
    "santext": (14.0, 0, math.inf),
    "bounded by the floor": (40.0, 0, math.inf),
    "strong": (0.5, 0, math.inf),
    "sensitive words": (14.0, 50, math.inf),
    "capped": (14.0, 0, 1.0),
}


def _log_chances(table):
    """Of every outcome for every word, from the rows that are drawn from."""
    weights = table.weights(np.arange(len(table.vocabulary) + 1))
    assert weights.dtype == np.int64
    assert weights.min() >= 2**20
    return np.log(weights) - np.log(weights.sum(1))[:, None]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("unit_length", [True, False])
def test_no_pair_of_words_has_a_larger_ratio_than_claimed(setting, unit_length):
    epsilon, first, cap = SETTINGS[setting]
    if not unit_length:
        epsilon /= 5  # raw vectors are about five times as long
    table = Table(load_glove(500, unit_length), epsilon, first, cap)
    chances = _log_chances(table)
    apart = table.distances(np.arange(501), 0, 501)
    worst = np.array([(chances[word] - chances).max(1) for word in range(501)])
    assert (worst <= epsilon * apart + ROUNDING).all(), "theorem 1"
    assert worst.max() <= table.token_bound, "what is charged"
    if first == 0:  # else a word that cannot come out itself may be in the worst pair, and the bound is an upper one
        assert worst.max() >= 0.99 * table.token_bound, "and no more"


def test_the_row_of_a_word_is_the_law_of_the_paper(glove):
    table, words = Table(glove, 14.0), np.array([3, 250, 500])
    weights = table.weights(words)
    for row, word in zip(weights, words, strict=True):
        law = np.exp(-14.0 / 2 * np.linalg.norm(glove.vectors[:500] - glove.vectors[word], axis=1))
        np.testing.assert_allclose(row / row.sum(), law / law.sum(), atol=1e-6)
    np.testing.assert_allclose(table.keep_rates[[3, 250]], (weights / weights.sum(1)[:, None])[[0, 1], [3, 250]], 1e-3)


def test_far_words_are_possible_where_floats_would_say_never(glove):
    weights = Table(glove, 90.0).weights(np.array([0]))
    assert weights.min() == 2**20
    assert 2.0**52 * np.exp(-90 / 2 * 1.5) < 1


def test_a_cap_is_a_distance(glove):
    apart = Table(glove, 14.0, cap=1.0).distances(np.arange(60), 0, 60)
    assert apart.max() == 1.0
    assert (apart[:, None, :] <= apart[:, :, None] + apart[None] + 1e-9).all()
    assert Table(glove, 14.0, cap=1.0).token_bound < Table(glove, 14.0).token_bound


def test_epsilon_is_found_for_a_share_of_words_that_stay_or_a_bound(glove):
    for keep in (0.2, 0.5, 0.9):
        assert np.median(Table(glove, epsilon_for_keep(glove, keep)).keep_rates) == pytest.approx(keep, abs=0.02)
    for bound in (0.01, 3.0, 16.0, 22.1):
        assert 0.98 * bound <= Table(glove, epsilon_for_bound(glove, bound)).token_bound <= bound


@pytest.mark.parametrize(
    ("make", "value", "says"),
    [
        (epsilon_for_bound, 1e-5, "less than a table can hold"),
        (epsilon_for_bound, 50.0, r"no word costs more than 22\.2: set sanitize\.keep"),
        (Table, 1e4, r"sanitize\.epsilon is 1e\+04"),
    ],
)
def test_what_no_table_has_is_refused(glove, make, value, says):
    with pytest.raises(ConfigError, match=says):
        make(glove, value)


def test_scores_of_the_paper(glove):
    """With epsilon words stay more often, and have fewer outcomes and inputs; counted by a simulation."""
    words, weak, strong = np.array([5, 100, 300]), Table(glove, 30.0), Table(glove, 10.0)
    assert (weak.keep_rates > strong.keep_rates).all()
    assert (weak.distinct_outcomes(words) < strong.distinct_outcomes(words)).all()
    assert (weak.distinct_inputs(words) < strong.distinct_inputs(words)).all()
    dice, chances = np.random.default_rng(0), np.exp(_log_chances(strong))
    drawn = [len(set(dice.choice(500, size=1000, p=chances[word] / chances[word].sum()))) for word in words]
    np.testing.assert_allclose(strong.distinct_outcomes(words), drawn, rtol=0.1)


def test_two_machines_round_to_one_number():
    assert rounded_up(14.3) == 14.3
    assert rounded_up(14.3 + 1e-9) == 14.301
    assert rounded_up(4.7e-4 + 1e-12) == pytest.approx(4.7001e-4)
    assert rounded_up(1056.2000001) == 1056.3


def test_a_vocabulary_is_refused_in_a_sentence(glove):
    with pytest.raises(ConfigError, match=r"sanitize\.words is 3, and mine has 2 words"):
        Vocabulary.of("mine", ["a", "A", "b"], np.eye(3), 3, True)
    with pytest.raises(ConfigError, match="length 0"):
        Vocabulary.of("mine", ["a", "b"], np.zeros((2, 2)), 2, True)
    assert Vocabulary.of("mine", ["A", "a", "b"], np.eye(3), 2, True).words == ("a", "b")


PASSES, FAILS = 1e-3, 1e-9
MILLION = 1_000_000
P = round(0.3 * 2**32)


def _places(count, tag=1):
    return np.full(count, tag, dtype=np.uint64), np.arange(count, dtype=np.uint32)


def _drawn(mechanism, word, coins, count=MILLION):
    return mechanism.draw(np.full(count, word), *_places(count), coins)


def _p_value(drawn, law):
    expected = law / law.sum() * len(drawn)
    counts = np.bincount(drawn, minlength=len(law))
    likely = expected >= 5
    found, wanted = (np.append(each[likely], each[~likely].sum()) for each in (counts, expected))
    kept = slice(None) if wanted[-1] else slice(-1)
    found, wanted = found[kept], wanted[kept]
    return float(stats.chisquare(found, wanted * found.sum() / wanted.sum()).pvalue)


@pytest.mark.parametrize("word", [7, 444, 500])
def test_draws_follow_the_row_and_no_other(glove, coins, word):
    drawn = _drawn(SanText(Table(glove, 14.0)), word, coins)
    laws = {epsilon: Table(glove, epsilon).weights(np.array([word]))[0] for epsilon in (14.0, 14.0 * 1.3, 14.0 * 0.7)}
    assert _p_value(drawn, laws[14.0]) > PASSES
    assert _p_value(drawn, laws[14.0 * 1.3]) < FAILS
    assert _p_value(drawn, laws[14.0 * 0.7]) < FAILS


def test_common_words_are_kept_by_a_coin_of_their_own_and_others_never(glove, coins):
    mechanism = SanText(Table(glove, 14.0, 50), P)
    drawn = _drawn(mechanism, 7, coins)
    assert stats.binomtest(int((drawn == 7).sum()), MILLION, 0.7).pvalue > PASSES
    law = mechanism.table.weights(np.array([7]))[0]
    assert _p_value(drawn[drawn != 7] - 50, law) > PASSES
    for word in (60, 500):
        drawn = _drawn(mechanism, word, coins, 100_000)
        assert drawn.min() >= 50, "a sensitive word never becomes a common one"
        assert _p_value(drawn - 50, mechanism.table.weights(np.array([word]))[0]) > PASSES


@pytest.mark.parametrize("epsilon", [0.3, 3.0, 9.0])
@pytest.mark.parametrize("word", [3, 20])
def test_randomized_response_keeps_as_it_says(coins, epsilon, word):
    response = RandomizedResponse(20, epsilon)
    drawn = _drawn(response, word, coins, 200_000)
    law = np.full(20, (1 - response.keep_rate) / 19)
    law[:] = 1 / 20 if word == 20 else law
    if word < 20:
        law[word] = response.keep_rate
        assert response.keep_rate * 19 / (1 - response.keep_rate) <= math.exp(epsilon) * (1 + 1e-14)
    assert _p_value(drawn, law) > PASSES
    assert randomized_response_epsilon(response.keep_rate, 20) == pytest.approx(epsilon)


def _worlds(mechanism, one, other, coins):
    """A lower bound, at 99.9%, of the log-ratio by which an outcome is likelier in one world than in the other."""
    half, first = MILLION // 2, Coins(Key.for_tests(), "first")
    drawn = [_drawn(mechanism, word, by) for word, by in ((one, first), (other, coins))]
    found = []
    for ours, theirs in (drawn, drawn[::-1]):
        chances = [np.bincount(each[:half], minlength=600) + 1 for each in (ours, theirs)]
        likeliest = int(np.argmax(chances[0] / chances[1]))  # chosen on one half, measured on the other
        hits, misses = (int((each[half:] == likeliest).sum()) for each in (ours, theirs))
        low = stats.beta.ppf(0.0005, hits, half - hits + 1)
        found.append(math.log(low / stats.beta.ppf(0.9995, misses + 1, half - misses)))
    return max(found)


def test_two_worlds_cannot_be_told_apart_better_than_claimed(glove, coins):
    """At an epsilon at which a million draws see the worst outcome often enough to measure it."""
    table = Table(glove, 4.0)
    _, one, other = table.worst_pair
    apart = float(table.distances(np.array([one]), other, other + 1)[0, 0]) if other < 500 else 1.0
    measured = _worlds(SanText(table), one, other, coins)
    assert measured <= min(table.token_bound, 4.0 * apart)
    assert measured >= 0.8 * table.token_bound, "the attack is strong enough to find a bug"
    stronger = _worlds(SanText(Table(glove, 4.0 * 1.5)), one, other, coins)
    assert stronger > table.token_bound, "and finds an epsilon that is half as large again"


def test_words_that_are_not_on_the_list_cannot_be_told_apart(glove, coins):
    table = Table(glove, 6.0)
    assert _worlds(SanText(table), 500, 3, coins) <= table.token_bound


def test_the_charge_is_that_of_the_table(glove):
    plain, plus = SanText(Table(glove, 14.0)), SanText(Table(glove, 14.0, 50), P)
    assert document_epsilon(plain.event(64)) == pytest.approx(64 * plain.token_epsilon)
    assert plain.event(64).sensitive == ""
    assert plus.keep_cost == pytest.approx(math.log(1 / 0.3), rel=1e-8)
    assert document_epsilon(plus.event(64)) == pytest.approx(64 * (plus.table.token_bound + plus.keep_cost))
    assert plus.event(64).sensitive != SanText(Table(glove, 14.0, 60), P).event(64).sensitive
    assert document_epsilon(RandomizedResponse(500, 3.0).event(64)) == 192.0


def test_a_retry_shares_all_coins_and_nothing_else_does(glove, coins):
    mechanism, words = SanText(Table(glove, 5.0)), np.arange(500).repeat(40)
    tags, positions = _places(len(words))
    first = mechanism.draw(words, tags, positions, coins)
    again = Coins(Key.for_tests(), "account", "inputs")
    assert np.array_equal(mechanism.draw(words, tags, positions, again), first)
    shuffled = np.random.default_rng(0).permutation(len(words))
    moved = mechanism.draw(words[shuffled], tags[shuffled], positions[shuffled], coins)
    assert np.array_equal(moved, first[shuffled]), "a draw does not depend on its company"
    others = {
        "inputs": mechanism.draw(words, tags, positions, Coins(Key.for_tests(), "account", "other inputs")),
        "account": mechanism.draw(words, tags, positions, Coins(Key.for_tests(), "other account", "inputs")),
        "key": mechanism.draw(words, tags, positions, Coins(Key(bytes(32)), "account", "inputs")),
        "document": mechanism.draw(words, tags + np.uint64(1), positions, coins),
        "position": mechanism.draw(words, tags, positions + np.uint32(len(words)), coins),
    }
    chances = mechanism.table.weights(np.arange(500)).astype(float)
    chances /= chances.sum(1)[:, None]
    by_chance = float((chances**2).sum(1).mean())
    for name, other in others.items():
        same = int((other == first).sum())
        assert stats.binomtest(same, len(words), by_chance).pvalue > 1e-5, name


def test_neighbouring_documents_and_positions_and_the_coins_of_a_word_are_uncorrelated(coins):
    tags = np.repeat(np.arange(1000, dtype=np.uint64), 100)
    positions = np.tile(np.arange(100, dtype=np.uint32), 1000)
    uniform = coins.words(WORD, tags, positions).astype(float).reshape(1000, 100, 2) / 2**64
    keeps = coins.words(KEEP, tags, positions).astype(float).reshape(1000, 100, 2)
    limit = 4 / math.sqrt(99_000)
    for one, other in (
        (uniform[:, 1:, 0], uniform[:, :-1, 0]),
        (uniform[1:, :, 0], uniform[:-1, :, 0]),
        (uniform[..., 0], uniform[..., 1]),
        (uniform[..., 0], keeps[..., 0]),
    ):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < limit
    assert stats.kstest(uniform[..., 0].ravel(), "uniform").pvalue > PASSES


def test_numbers_below_a_limit_are_exactly_uniform(coins):
    tags, positions = _places(200_000)
    for limit in (3, 3 * 2**62):  # the second rejects a quarter of all draws
        drawn = below(coins, WORD, tags, positions, np.full(200_000, limit, dtype=np.uint64))
        assert int(drawn.max()) < limit
        bins = np.floor(drawn.astype(float) * (3 / limit)).clip(0, 2).astype(int)
        assert stats.chisquare(np.bincount(bins, minlength=3)).pvalue > PASSES


def test_coins_stay_where_they_are(coins):
    assert repr(coins) == "Coins(<sealed>)"
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(coins)
