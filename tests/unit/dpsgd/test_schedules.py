"""Redaction schedules: chances as printed, coins from a public seed, and so many noisy steps."""

import pytest
from scipy import stats

from rayprivacy.methods.domain_private.schedules import chances, draw, expected_noisy


@pytest.mark.parametrize(
    ("name", "of_200", "of_400"),
    [("step", 100, 200), ("linear", 99.5, 199.5), ("expconvex", 198.4, 398.4), ("expconcave", 12.8, 26.2)],
)
def test_expected_noisy_steps_are_those_of_the_specification(name, of_200, of_400):
    for steps, noisy in ((200, of_200), (400, of_400)):
        assert expected_noisy(name, steps) == pytest.approx(noisy, abs=0.05)
        assert all(0 <= chance <= 1 for chance in chances(name, steps))
    assert expected_noisy("none", 200) == 200


def test_the_schedule_of_two_stages_has_no_chance_in_it():
    for steps in (4, 7):
        assert {draw("step", steps, seed) for seed in range(5)} == {tuple(2 * t < steps for t in range(steps))}


def test_coins_are_equal_on_every_call_and_differ_between_seeds():
    draws = [draw("expconcave", 200, seed) for seed in range(20)]
    assert draws == [draw("expconcave", 200, seed) for seed in range(20)]
    assert len(set(draws)) == 20
    assert all(5 <= 200 - sum(each) <= 25 for each in draws)
    # A changed stream of coins would be another release of every recipe.
    noisy = [t for t, redacted in enumerate(draws[0]) if not redacted]
    assert noisy == [179, 189, 191, 194, 195, 196, 197, 198, 199]


def test_coins_have_the_chances_that_are_declared():
    for name in ("linear", "expconcave"):
        expected = expected_noisy(name, 100)
        noisy = sum(100 - sum(draw(name, 100, seed)) for seed in range(400))
        assert stats.poisson(400 * expected).cdf(noisy) > 1e-4
        assert stats.poisson(400 * expected).sf(noisy) > 1e-4
    late = [sum(draw("linear", 10, seed)[t] for seed in range(400)) for t in (0, 9)]
    assert late[0] == 400
    assert 20 <= late[1] <= 60
