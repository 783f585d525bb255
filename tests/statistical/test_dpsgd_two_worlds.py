"""Two worlds, with a canary and without, through sampler, clipping, noise and optimizer: no attack beats the claim.

The attacker knows everybody else, and where the canary's clipped gradient points. Clopper-Pearson bounds of the
threshold attack are compared with the trade-off curve of one Poisson-sampled Gaussian step,

    hits(false alarms a) <= q * Phi(Phi^-1(a) + 1 / sigma) + (1 - q) * a.
"""

import numpy as np
import pytest
import torch
from adversaries import P_THRESHOLD
from effort import EFFORT
from scipy import stats
from torch import Tensor, nn

from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.dpsgd.clipping import Clipping
from rayprivacy.dpsgd.engines.noisy_optimizer import StepNoise
from rayprivacy.dpsgd.engines.plain import PlainEngine
from rayprivacy.dpsgd.gradients import BookKeeping
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import OptimizerConfig
from rayprivacy.release.step_mechanism import NoisySteps

NORM, CANARY, PAD = 0.5, 3, 1
STEPS = 2000 if EFFORT == 1 else 4000
KEY = Key.for_tests()


def _losses(model: nn.Embedding, batch: Batch) -> Tensor:
    return -1000 * (model(batch.ids)[:, :, 0] * batch.weights).sum(1)  # far above the clipping norm


def _unit(name: str, token: int) -> Unit:
    return Unit(unit_tag(KEY, "user", name), (Document(np.array([token, token], dtype=np.int32), 1),))


def _seen(present: bool, sigma: float, q: float) -> int:
    """In how many steps the threshold test says that the canary took part in the corpus."""
    run = f"{present} {sigma} {q}"
    units = [_unit(f"user {number}", 0) for number in range(3)] + [_unit("canary", CANARY)] * present
    sampler = PoissonSampler(KEY, run, q, units, 1)
    noise = StepNoise(KeyedNoise(KEY, run), NoisySteps(q, sigma, NORM, STEPS), expected_batch=1.0)
    schedule = Schedule(OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant"), STEPS)
    model = nn.Embedding(4, 1)
    clipped = BookKeeping(model, Clipping(NORM))
    engine, hits = PlainEngine(model, clipped, noise, schedule, _losses), 0
    for step in range(STEPS):
        before = model.weight[CANARY, 0].item()
        engine.step(step, physical_batches(sampler.sample(step), 64, PAD))
        hits += before - model.weight[CANARY, 0].item() < -NORM / 2
    return hits


def _exceeds(claimed: tuple[float, float], sigma: float, q: float) -> bool:
    """Whether steps of noise multiplier sigma and rate q betray more than the claimed (sigma, q) allow."""
    noise, rate = claimed
    hits, false = _seen(True, sigma, q), _seen(False, sigma, q)
    least_hits = stats.beta.ppf(P_THRESHOLD, hits, STEPS - hits + 1)
    most_false = stats.beta.isf(P_THRESHOLD, false + 1, STEPS - false)
    allowed = rate * stats.norm.cdf(stats.norm.ppf(most_false) + 1 / noise) + (1 - rate) * most_false
    return bool(least_hits > allowed)


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("claimed", [pytest.param((1.0, 1.0), marks=pytest.mark.exhaustive), (0.5, 0.5)])
def test_steps_betray_no_more_than_claimed(claimed: tuple[float, float]) -> None:
    assert not _exceeds(claimed, *claimed)


@pytest.mark.parametrize("claimed", [pytest.param((1.0, 1.0), marks=pytest.mark.exhaustive), (0.5, 0.5)])
def test_the_same_attack_finds_noise_1_5_times_too_small(claimed: tuple[float, float]) -> None:
    assert _exceeds(claimed, claimed[0] / 1.5, claimed[1])


def test_the_same_attack_finds_users_who_always_take_part() -> None:
    assert _exceeds((0.5, 0.5), 0.5, 1.0)
