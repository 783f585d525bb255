"""The number of queries from a target for the noise on the mean vote."""

from collections.abc import Callable

import pytest

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.least_noise import gaussian_noise, laplace_noise
from rayprivacy.methods.seqpate.plan import most_queries, noise_on_mean
from rayprivacy.release.votes import SCALE, VoteMechanism

BUDGET = Budget(3.0, 1e-6)


def _noise_of(clip: float | None = None, teachers: int = 1000) -> Callable[[int], float]:
    def noise(queries: int) -> float:
        return noise_on_mean(VoteMechanism(queries, 50, teachers, gaussian_noise(queries, BUDGET, "gdp"), clip=clip))

    return noise


def test_the_noise_on_the_mean_is_a_probability() -> None:
    mechanism = VoteMechanism(queries=300, candidates=50, teachers=1000, sigma=26.0)
    assert noise_on_mean(mechanism) == mechanism.sigma * mechanism.sensitivity / (SCALE * 1000)
    assert noise_on_mean(mechanism) == pytest.approx(0.037, rel=0.01)


@pytest.mark.parametrize("target", [0.005, 0.01, 0.037, 0.1])
def test_one_query_more_would_exceed_the_target(target: float) -> None:
    noise_of = _noise_of()
    queries = most_queries(noise_of, target, 10**6)
    assert noise_of(queries) <= target < noise_of(queries + 1)
    assert most_queries(noise_of, target, queries - 1) == queries - 1  # no more than there is a use for


def test_a_smaller_clip_or_more_teachers_answer_more_queries() -> None:
    plain = most_queries(_noise_of(), 0.02, 10**6)
    assert most_queries(_noise_of(clip=0.2), 0.02, 10**6) > 12 * plain  # (sqrt(2) / 0.4)^2
    assert most_queries(_noise_of(teachers=2000), 0.02, 10**6) == pytest.approx(4 * plain, abs=4)


def test_a_target_out_of_reach_names_the_remedies() -> None:
    with pytest.raises(ConfigError, match=r"is 0\.0001 and one query alone has 0\.00\d+: take more teachers, a larger"):
        most_queries(_noise_of(), 1e-4, 100)


@pytest.mark.parametrize(("target", "most"), [(0.0, 10), (-1.0, 10), (float("nan"), 10), (0.1, 0), (0.1, True)])
def test_bad_arguments_are_refused(target: float, most: int) -> None:
    with pytest.raises(ConfigError, match="give a"):
        most_queries(_noise_of(), target, most)


def test_the_search_asks_for_few_figures() -> None:
    asked: list[int] = []

    def noise_of(queries: int) -> float:
        asked.append(queries)
        sigma = laplace_noise(queries, BUDGET, "zcdp")
        return noise_on_mean(VoteMechanism(queries, 50, 1000, sigma, noise="laplace"))

    queries = most_queries(noise_of, 0.05, 10_000)
    assert noise_of(queries) <= 0.05
    assert len(asked) <= 17
