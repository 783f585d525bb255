"""The learning rate is a function of the step alone, and the optimizer is torch's."""

import math
from typing import Any

import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.optimizer import Schedule, make_optimizer
from rayprivacy.dpsgd.settings import OptimizerConfig


def _rates(steps: int, **fields: Any) -> list[float]:
    schedule = Schedule(OptimizerConfig(learning_rate=2.0, **fields), steps)
    return [schedule.rate(step) for step in range(steps)]


def test_rates_stay_or_fall_to_zero_one_step_after_the_last() -> None:
    assert _rates(4, schedule="constant") == [2.0] * 4
    assert _rates(4, schedule="linear") == [2.0, 1.5, 1.0, 0.5]
    rates = _rates(10, schedule="cosine")
    assert rates[0] == 2.0
    assert math.isclose(rates[5], 1.0)
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.1


def test_a_rate_is_needed() -> None:
    with pytest.raises(ConfigError, match="learning_rate is not set"):
        Schedule(OptimizerConfig(), 10)


def _after(config: OptimizerConfig, gradients: list[float]) -> float:
    weight = torch.tensor([1.0], requires_grad=True)
    optimizer = make_optimizer(config, [weight])
    for step, gradient in enumerate(gradients):
        for group in optimizer.param_groups:
            group["lr"] = Schedule(config, 10).rate(step)
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    return weight.item()


def test_sgd_momentum_and_decay_are_what_their_names_say() -> None:
    plain = OptimizerConfig(kind="sgd", learning_rate=0.1, schedule="constant")
    assert math.isclose(_after(plain, [1.0, 1.0]), 0.8, rel_tol=1e-6)
    assert math.isclose(_after(plain.model_copy(update={"momentum": 0.5}), [1.0, 1.0]), 0.75, rel_tol=1e-6)
    assert math.isclose(_after(plain.model_copy(update={"weight_decay": 1.0}), [0.0]), 0.9, rel_tol=1e-6)


def test_adamw_decays_weights_apart_from_the_gradient() -> None:
    config = OptimizerConfig(learning_rate=0.1, schedule="constant", weight_decay=1.0)
    assert math.isclose(_after(config, [0.0]), 0.9, rel_tol=1e-6)
    assert math.isclose(_after(config, [1e-3]), 0.8, rel_tol=1e-4)  # Adam's first step is as long as the rate
