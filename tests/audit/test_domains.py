"""Leaks between domains: what counts as one, rates with intervals, and scores that order texts by the two models."""

import numpy as np
import pytest
from scipy import stats

from rayprivacy.auditing.domains import (
    ALL,
    Sampled,
    difference,
    leak_rates,
    leaks,
    likelihood_ratios,
    rate_of,
    top_share,
)
from rayprivacy.core.errors import ConfigError
from rayprivacy.policies.classifier import ClassifierPolicy, train_scores
from rayprivacy.policies.judges import ClassifierJudge, ListJudge
from rayprivacy.policies.keywords import KeywordPolicy

LISTS = ListJudge({"air": KeywordPolicy(["seat"]), "media": KeywordPolicy(["zip code", "plan"])})
TEXTS = [
    Sampled("air", "my seat"),
    Sampled("air", "the zip code, a seat"),
    Sampled("air", "  "),
    Sampled("media", "a plan"),
    Sampled("media", "Seats, seat!"),
    Sampled("media", "ok"),
]


def test_a_leak_is_what_is_sensitive_for_another_domain() -> None:
    assert leaks(TEXTS, LISTS) == [False, True, False, False, True, False]


def test_rates_are_by_judge_and_domain_and_leave_empty_texts_out() -> None:
    found = leak_rates(TEXTS, {"lists": LISTS, "nobody": lambda _: set()})
    assert {domain: (rate.leaks, rate.texts) for domain, rate in found["lists"].items()} == {
        ALL: (2, 5),
        "air": (1, 2),
        "media": (1, 3),
    }
    assert all(rate.leaks == 0 and rate.low == 0.0 < rate.high for rate in found["nobody"].values())
    with pytest.raises(ConfigError, match="all texts are empty"):
        leak_rates(TEXTS[2:3], {"lists": LISTS})


def test_intervals_hold_the_true_rate_as_often_as_they_say() -> None:
    random, rate = np.random.default_rng(0), 0.07
    held = [low <= rate <= high for low, high in (_interval(int(random.binomial(300, rate))) for _ in range(300))]
    assert sum(held) >= stats.binom(300, 0.95).ppf(1e-4)
    gaps = [
        difference(rate_of(int(random.binomial(400, 0.12)), 400), rate_of(int(random.binomial(400, 0.05)), 400))
        for _ in range(300)
    ]
    assert stats.binom(300, 0.95).ppf(1e-4) <= sum(low <= 0.07 <= high for low, high in gaps)
    assert sum(low <= 0.0 for low, _ in gaps) < 60, "it sees a difference of seven points"


def _interval(leaking: int) -> tuple[float, float]:
    rate = rate_of(leaking, 300)
    return rate.low, rate.high


def test_scores_are_high_where_the_target_expects_what_the_reference_does_not() -> None:
    prompt, whole = np.array([2.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0])
    reference = (np.full(3, 2.0), np.full(3, 2.0))
    scores = likelihood_ratios((prompt, whole), reference)
    assert scores == pytest.approx([np.e, 1.0, 1 / np.e])
    assert top_share([True, False, False], scores, 0.34).share == 1.0
    assert top_share([False, False, True], scores, 0.34).share == 0.0
    assert top_share([True, False, True], scores, 1.0).leaks == 2


def test_a_classifier_judges_by_its_windows() -> None:
    rows = [
        ("seat on the flight", "air"),
        ("boarding the flight", "air"),
        ("internet plan", "media"),
        ("new plan", "media"),
    ]
    judge = ClassifierJudge(ClassifierPolicy(train_scores(rows, 3), window=3, threshold=0.8))
    assert judge("flight boarding seat") == {"air"}
    assert judge("new internet plan then some words flight boarding seat") == {"air", "media"}
    assert judge("hello") == set()
