"""Two worlds with micro-batches, sampler to optimizer: who turns a clipped mean round is seen no better than claimed.

One micro-batch has users who pull the weight up, and a canary who pulls it down much harder: with the canary its mean
is at one end of the ball of radius C, and without at the other. Clopper-Pearson bounds of the threshold attack are
compared with the trade-off curve of one Poisson-sampled Gaussian step.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from adversaries import P_THRESHOLD
from scipy import stats
from torch import Tensor, nn

from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Batch, Document
from rayprivacy.dpsgd.clipping import Clipping
from rayprivacy.dpsgd.engines.noisy_optimizer import StepNoise
from rayprivacy.dpsgd.engines.plain import PlainEngine
from rayprivacy.dpsgd.microbatches import MicroBatchGradients, mean_losses, micro_batches
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import OptimizerConfig
from rayprivacy.release.step_mechanism import NoisySteps

NORM, STEPS, SIGMA, KEY = 0.5, 1200, 1.0, Key.for_tests()
UP, DOWN = 1, 2  # tokens
PULL = torch.tensor([0.0, 10.0, -10_000.0])


class _Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


def _losses(model: _Weight, batch: Batch) -> Tensor:
    return -(PULL[batch.ids] * batch.weights).sum(1) * model.weight


def _unit(name: str, token: int) -> Unit:
    return Unit(unit_tag(KEY, "user", name), (Document(np.array([0, token], dtype=np.int32), 1),))


def _seen(present: bool, sigma: float, q: float) -> int:
    """In how many steps the threshold test says that the canary took part in the corpus."""
    run = f"{present} {sigma} {q}"
    units = [_unit(f"user {number}", UP) for number in range(3)] + [_unit("canary", DOWN)] * present
    sampler = PoissonSampler(KEY, run, q, units, 1)
    shape = {"schedule": NoiseSchedule(), "chunk": STEPS, "microbatches": 1}
    noise = StepNoise(KeyedNoise(KEY, run), NoisySteps(q, sigma, NORM, STEPS, **shape), 1.0)
    schedule = Schedule(OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant"), STEPS)
    model = _Weight()
    clipped = MicroBatchGradients(model, Clipping(NORM))
    engine, hits = PlainEngine(model, clipped, noise, schedule, partial(mean_losses, losses=_losses)), 0
    for step in range(STEPS):
        before = model.weight.item()
        engine.step(step, micro_batches(sampler.micro_batches(step, 1), 64, 0))
        hits += model.weight.item() < before
    return hits


def _exceeds(sigma: float, q: float) -> bool:
    """Whether steps of noise multiplier sigma betray more than SIGMA allows."""
    hits, false = _seen(True, sigma, q), _seen(False, sigma, q)
    least_hits = stats.beta.ppf(P_THRESHOLD, hits, STEPS - hits + 1)
    most_false = stats.beta.isf(P_THRESHOLD, false + 1, STEPS - false)
    allowed = q * stats.norm.cdf(stats.norm.ppf(most_false) + 1 / SIGMA) + (1 - q) * most_false
    return bool(least_hits > allowed)


pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_turned_mean_betrays_no_more_than_claimed() -> None:
    assert not _exceeds(SIGMA, 1.0)


@pytest.mark.parametrize(
    "factor", [pytest.param(math.sqrt(8), id="noise / N on 8 workers"), pytest.param(2, id="C in place of 2C")]
)
def test_the_same_attack_finds_the_noise_of_the_paper(factor: float) -> None:
    assert _exceeds(SIGMA / factor, 1.0)
