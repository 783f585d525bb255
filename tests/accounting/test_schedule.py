"""Noise that falls by a public schedule: its levels, and what is refused."""

import math

import pytest

from rayprivacy.accounting.calibrate import least_sigma, least_sigma_near
from rayprivacy.accounting.schedule import MOST_LEVELS, NoiseSchedule
from rayprivacy.core.errors import ConfigError

LINEAR = NoiseSchedule("linear", 0.1, steps_per_epoch=50)
BY_STEP = NoiseSchedule("exponential", 0.01)


def test_epochs_are_levels_with_the_noise_of_the_rule() -> None:
    assert LINEAR.levels(500, chunk=25) == tuple((1 / (1 + 0.1 * epoch), 50) for epoch in range(10))
    assert LINEAR.levels(120, chunk=25)[-1] == (1 / 1.2, 20)
    assert NoiseSchedule("exponential", 0.5, 10).levels(20) == ((1.0, 10), (math.exp(-0.5), 10))
    assert NoiseSchedule().levels(7, chunk=2) == ((1.0, 7),)


@pytest.mark.parametrize("schedule", [BY_STEP, NoiseSchedule("linear", 0.1, 3), NoiseSchedule("linear", 2.0)])
@pytest.mark.parametrize(("steps", "chunk"), [(500, 1), (500, 3), (99, 3), (7, 3), (1, 1)])
def test_levels_are_few_whole_chunks_and_never_above_the_rule(schedule: NoiseSchedule, steps: int, chunk: int) -> None:
    levels = schedule.levels(steps, chunk)
    assert len(levels) <= MOST_LEVELS
    assert sum(times for _, times in levels) == steps
    assert all(times % chunk == 0 for _, times in levels[:-1])
    by_step = [factor for factor, times in levels for _ in range(times)]
    assert all(given <= schedule.factor(step) for step, given in enumerate(by_step))
    assert by_step[-1] == schedule.factor(steps - 1)
    assert by_step == sorted(by_step, reverse=True)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (("cosine", 0.1), "'cosine'"),
        (("linear", 0.0), "tau is 0.0"),
        (("linear", math.nan), "tau is nan"),
        (("exponential", math.inf), "tau is inf"),
        (("constant", 0.1), "tau is 0.1"),
        (("linear", 0.1, 0), "steps_per_epoch is 0"),
    ],
)
def test_what_is_no_schedule_is_refused(fields: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        NoiseSchedule(*fields)  # type: ignore[arg-type]


def test_an_epoch_that_cuts_a_chunk_is_refused() -> None:
    with pytest.raises(ConfigError, match="let an epoch be a multiple of chunk"):
        LINEAR.levels(500, chunk=20)


@pytest.mark.parametrize("power", [0.8, 1.0, 2.5])
@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_a_search_by_a_bad_guess_asks_seldom_and_rounds_up(power: float, epsilon: float) -> None:
    """A guess that is 20 times too low, falls by another power, or has no figure below some noise."""
    asked: list[float] = []

    def cost(sigma: float) -> float:
        asked.append(sigma)
        return 40 / sigma**power if sigma > 0.5 else math.inf

    found = least_sigma_near(cost, epsilon, lambda sigma: 2 / sigma)
    assert len(asked) < 12
    assert epsilon * (1 - 1e-3) <= cost(found) <= epsilon
    assert found == pytest.approx(least_sigma(cost, epsilon), rel=2e-3)
    with pytest.raises(ConfigError, match="no noise multiplier"):
        least_sigma_near(lambda sigma: 99.0, epsilon, lambda sigma: 2 / sigma)
