"""Leaks between domains: what counts as one, and rates with intervals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rayprivacy.core.errors import ConfigError
from rayprivacy.policies.classifier import ClassifierPolicy, train_scores
from rayprivacy.policies.words import KeywordPolicy

TEXTS = [("air", text) for text in ("my seat", "the zip code, a seat", "  ")]
TEXTS += [("media", text) for text in ("a plan", "Seats, seat!", "ok")]


@pytest.fixture(scope="module")
def domain_leaks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        import domain_leaks

    return domain_leaks


@pytest.fixture
def lists(domain_leaks: Any) -> Any:
    return domain_leaks.ListJudge({"air": KeywordPolicy(["seat"]), "media": KeywordPolicy(["zip code", "plan"])})


@pytest.fixture
def texts(domain_leaks: Any) -> list[Any]:
    return [domain_leaks.Sampled(*each) for each in TEXTS]


def test_rates_are_by_judge_and_domain_and_leave_empty_texts_out(
    domain_leaks: Any, lists: Any, texts: list[Any]
) -> None:
    assert domain_leaks.leaks(texts, lists) == [False, True, False, False, True, False]
    found = domain_leaks.leak_rates(texts, {"lists": lists, "nobody": lambda _: set()})
    assert {domain: (rate.leaks, rate.texts) for domain, rate in found["lists"].items()} == {
        domain_leaks.ALL: (2, 5),
        "air": (1, 2),
        "media": (1, 3),
    }
    assert all(rate.leaks == 0 and rate.low == 0.0 < rate.high for rate in found["nobody"].values())
    with pytest.raises(ConfigError, match="all texts are empty"):
        domain_leaks.leak_rates(texts[2:3], {"lists": lists})


def test_intervals_hold_the_true_rate_as_often_as_they_say(domain_leaks: Any) -> None:
    random, rate, rate_of = np.random.default_rng(0), 0.07, domain_leaks.rate_of
    found = [rate_of(int(random.binomial(300, rate)), 300) for _ in range(300)]
    assert sum(each.low <= rate <= each.high for each in found) >= stats.binom(300, 0.95).ppf(1e-4)
    gaps = [
        domain_leaks.difference(*(rate_of(int(random.binomial(400, share)), 400) for share in (0.12, 0.05)))
        for _ in range(300)
    ]
    assert stats.binom(300, 0.95).ppf(1e-4) <= sum(low <= 0.07 <= high for low, high in gaps)
    assert sum(low <= 0.0 for low, _ in gaps) < 60, "it sees a difference of seven points"
    assert domain_leaks.difference(rate_of(56, 70), rate_of(48, 80)) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_a_classifier_judges_by_its_windows(domain_leaks: Any) -> None:
    rows = [
        ("seat on the flight", "air"),
        ("boarding the flight", "air"),
        ("internet plan", "media"),
        ("new plan", "media"),
    ]
    judge = domain_leaks.ClassifierJudge(ClassifierPolicy(train_scores(rows, 3), window=3, threshold=0.8))
    assert judge("flight boarding seat") == {"air"}
    assert judge("new internet plan then some words flight boarding seat") == {"air", "media"}
    assert judge("hello") == set()
