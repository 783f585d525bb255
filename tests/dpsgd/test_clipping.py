"""Coefficients: the definition of each kind, and what they bound. Rates and steps: what their names say."""

import math
from typing import Any

import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.clipping import Clipping, ClippingKind
from rayprivacy.dpsgd.optimizer import Schedule, make_optimizer
from rayprivacy.dpsgd.settings import OptimizerConfig

KINDS = pytest.mark.parametrize("kind", ["flat", "per_layer", "automatic"])


def _lengths(squared: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """Norms of clipped gradients whose parts have these squared norms."""
    columns = coefficients if coefficients.dim() == 2 else coefficients[:, None]
    return (squared.double() * columns.double().square()).sum(1).sqrt()


@pytest.mark.parametrize(
    ("kind", "squared", "expected"),
    [
        ("flat", [[9.0, 16.0], [1.0, 0.0], [0.0, 0.0]], [0.4, 1.0, 1.0]),
        ("per_layer", [[16.0, 1.0, 0.0, 4.0]], [[0.25, 1.0, 1.0, 0.5]]),
        ("automatic", [[9.0, 16.0], [1e-8, 0.0]], [2 / 5.01, 2 / (1e-4 + 0.01)]),
    ],
)
def test_coefficients_are_the_definition_of_each_kind(kind: ClippingKind, squared: Any, expected: Any) -> None:
    torch.testing.assert_close(Clipping(2.0, kind).coefficients(torch.tensor(squared)), torch.tensor(expected))


@KINDS
def test_no_gradient_is_left_longer_than_the_norm(kind: ClippingKind) -> None:
    squared = 10.0 ** (torch.rand(2000, 7, generator=torch.Generator().manual_seed(0)) * 40 - 20)
    lengths = _lengths(squared, Clipping(0.7, kind).coefficients(squared))
    assert 0.69 < lengths.max() <= 0.7  # a norm that is never reached would waste noise


@KINDS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_unit_that_is_not_finite_in_one_parameter_is_out_of_all(kind: ClippingKind, bad: float) -> None:
    found = Clipping(1.0, kind).coefficients(torch.tensor([[1.0, 4.0], [bad, 4.0], [1.0, bad]]))
    assert found[0].all()
    assert not found[1:].any()


@KINDS
def test_low_precision_aims_one_percent_lower(kind: ClippingKind) -> None:
    squared = torch.tensor([[100.0, 400.0], [1e6, 1.0]])
    usual, lower = (_lengths(squared, Clipping(1.0, kind, low).coefficients(squared)) for low in (False, True))
    torch.testing.assert_close(lower / usual, torch.full((2,), 0.99, dtype=torch.float64), rtol=1e-2, atol=0)
    assert (lower <= 0.99).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(((norm,), "clipping_norm is") for norm in (0.0, -1.0, math.nan, math.inf)),
        ((1.0, "median"), "use 'flat', 'per_layer' or 'automatic'"),
    ],
)
def test_what_bounds_nothing_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Clipping(*given)


def _rates(steps: int, kind: Any) -> list[float]:
    schedule = Schedule(OptimizerConfig(learning_rate=2.0, schedule=kind), steps)
    return [schedule.rate(step) for step in range(steps)]


def test_rates_stay_or_fall_to_zero_one_step_after_the_last() -> None:
    assert _rates(4, "constant") == [2.0] * 4
    assert _rates(4, "linear") == [2.0, 1.5, 1.0, 0.5]
    rates = _rates(10, "cosine")
    assert (rates[0], rates) == (2.0, sorted(rates, reverse=True))
    assert math.isclose(rates[5], 1.0)
    assert 0 < rates[-1] < 0.1
    with pytest.raises(ConfigError, match="learning_rate is not set"):
        Schedule(OptimizerConfig(), 10)


def test_optimizers_are_those_of_torch() -> None:
    shape = {"learning_rate": 0.1, "momentum": 0.5, "weight_decay": 1.0}
    sgd = make_optimizer(OptimizerConfig(kind="sgd", **shape), [torch.zeros(1)])
    assert (type(sgd), sgd.defaults["momentum"], sgd.defaults["weight_decay"]) == (torch.optim.SGD, 0.5, 1.0)
    adamw = make_optimizer(OptimizerConfig(learning_rate=0.1, weight_decay=1.0), [torch.zeros(1)])
    assert (type(adamw), adamw.defaults["weight_decay"]) == (torch.optim.AdamW, 1.0)
