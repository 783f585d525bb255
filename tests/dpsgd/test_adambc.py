"""DP-AdamBC: the noise's own part of the second moment, known beforehand, is taken off."""

import numpy as np
import pytest
import torch

from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.correlated_noise import CorrelatedNoise
from rayprivacy.dpsgd.engines.noisy_optimizer import StepNoise
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.optimizer import make_optimizer
from rayprivacy.dpsgd.settings import OptimizerConfig
from rayprivacy.release.step_mechanism import NoisySteps

STEPS, SIZE, RATE = 12, 20_000, 1e-2
CONFIG = OptimizerConfig(kind="adambc", learning_rate=RATE, betas=(0.8, 0.9), weight_decay=0.1, floor=0.2)
KEYED = KeyedNoise(Key.for_tests(), "run")
INDEPENDENT = NoisySteps(0.2, 0.7, 3.0, STEPS)
BANDED = NoisySteps(0.2, 0.7, 3.0, STEPS, bands=4)


def _noise(mechanism: NoisySteps) -> StepNoise:
    return StepNoise(KEYED, mechanism, expected_batch=5.0)


def _drawn(mechanism: NoisySteps) -> list[torch.Tensor]:
    """The noise of a mean gradient, step by step, as engines add it."""
    stream = CorrelatedNoise(KEYED, mechanism.strategy)
    return [stream.normal(step, "w", 0, SIZE).clone() * mechanism.noise_std(step) / 5.0 for step in range(STEPS)]


def _run(config: OptimizerConfig, gradients: list[torch.Tensor], variances: list[float]) -> torch.Tensor:
    weight = torch.ones(len(gradients[0]), requires_grad=True)
    optimizer = make_optimizer(config, [weight], variances)
    for gradient in gradients:
        optimizer.param_groups[0]["lr"] = RATE
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("mechanism", [INDEPENDENT, BANDED], ids=["independent", "banded"])
def test_the_variance_of_every_step_is_that_of_the_real_noise(mechanism: NoisySteps) -> None:
    for variance, drawn in zip(_noise(mechanism).variances, _drawn(mechanism), strict=True):
        assert float(drawn.double().var()) == pytest.approx(variance, rel=0.05)
    first, *_, last = _noise(mechanism).variances
    assert last > 1.3 * first if mechanism is BANDED else last == first


@pytest.mark.parametrize("mechanism", [INDEPENDENT, BANDED], ids=["independent", "banded"])
def test_updates_are_those_of_a_slow_implementation(mechanism: NoisySteps) -> None:
    variances = [float(each) for each in _noise(mechanism).variances]
    gradients = [each + 0.3 * torch.linspace(-1, 1, SIZE) for each in _drawn(mechanism)]
    weight, mean, squared, noise = np.ones(SIZE), np.zeros(SIZE), np.zeros(SIZE), 0.0
    for step, gradient in enumerate(map(np.asarray, gradients), start=1):
        gradient = gradient.astype(float)
        mean, squared = 0.8 * mean + 0.2 * gradient, 0.9 * squared + 0.1 * gradient**2
        noise = 0.9 * noise + 0.1 * variances[step - 1]
        off = noise / (1 - 0.9**step)
        second = np.maximum(squared / (1 - 0.9**step) - off, 0.2 * off)
        weight = weight * (1 - RATE * 0.1) - RATE * mean / (1 - 0.8**step) / np.sqrt(second)
    np.testing.assert_allclose(_run(CONFIG, gradients, variances).numpy(), weight, rtol=2e-3, atol=1e-4)


def test_of_noise_alone_nothing_is_left_in_the_second_moment_on_average() -> None:
    for mechanism in (INDEPENDENT, BANDED):
        weight = torch.zeros(SIZE, requires_grad=True)
        optimizer = make_optimizer(CONFIG, [weight], _noise(mechanism).variances)
        for gradient in _drawn(mechanism):
            weight.grad = gradient
            optimizer.step()
        second = float(optimizer.state[weight]["exp_avg_sq"].double().mean()) / (1 - 0.9**STEPS)
        subtracted = optimizer._noise[-1]  # type: ignore[attr-defined]
        assert second == pytest.approx(subtracted, rel=0.02)


def test_without_noise_it_is_adamw() -> None:
    gradients = [torch.linspace(-1, 1, 11) * (step + 1) + 0.01 for step in range(STEPS)]
    adamw = _run(CONFIG.model_copy(update={"kind": "adamw"}), gradients, [])
    np.testing.assert_allclose(_run(CONFIG, gradients, [0.0] * STEPS), adamw, rtol=1e-5, atol=1e-6)


def test_a_parameter_without_a_gradient_stays() -> None:
    used, unused = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizer = make_optimizer(CONFIG, [used, unused], [1.0])
    used.grad = torch.ones(3)
    optimizer.param_groups[0]["lr"] = RATE
    optimizer.step()
    assert torch.equal(unused.detach(), torch.ones(3))
    assert not torch.equal(used.detach(), torch.ones(3))
