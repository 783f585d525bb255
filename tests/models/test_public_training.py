"""Ordinary training with a guard: the learning rate falls towards zero, and one batch cannot throw the model off."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rayprivacy.core.console import nobody
from rayprivacy.models.pretraining import Objective, fit

RATE, STEPS = 0.01, 10


def _loss(model: Any, slopes: Sequence[float]) -> torch.Tensor:
    return model.weight.sum() * sum(slopes)


def _moved(slopes: Sequence[float], guarded_steps: int | None) -> float:
    """How far a weight moves against slopes of its loss, a step each."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    objective = Objective(_loss, len, at_once=1)
    figures = fit(model, objective, [[slope] for slope in slopes], [1.0], RATE, nobody, "block", guarded_steps)
    assert figures["loss_before"] == 0
    return -model.weight.item()


def test_the_learning_rate_falls_linearly_towards_zero() -> None:
    assert _moved([1.0] * STEPS, None) == pytest.approx(RATE * STEPS, rel=0.01)
    assert _moved([1.0] * STEPS, STEPS) == pytest.approx(RATE * (STEPS + 1) / 2, rel=0.01)


def test_a_batch_of_a_large_gradient_counts_for_no_more_than_one_of_norm_1() -> None:
    spike = [1.0, 1.0, 1000.0, *[1.0] * (STEPS - 3)]
    assert _moved(spike, STEPS) == pytest.approx(_moved([1.0] * STEPS, STEPS), rel=1e-4)
    assert _moved(spike, None) < 0.8 * _moved([1.0] * STEPS, None), "without the guard the steps behind it are short"
