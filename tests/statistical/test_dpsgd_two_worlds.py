"""Two worlds, with a canary and without, through sampler, clipping, noise and optimizer: no attack beats the claim.

The attacker knows all other users, who with micro-batches pull the clipped mean to the other end of the ball.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from adversaries import betrays_more
from effort import EFFORT
from torch import Tensor, nn

from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, MicroBatchGradients, mean_losses, micro_batches
from rayprivacy.dpsgd.engines.engine import PlainEngine
from rayprivacy.dpsgd.engines.noisy_optimizer import StepNoise
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import OptimizerConfig
from rayprivacy.release.step_mechanism import NoisySteps

NORM, KEY = 0.5, Key.for_tests()
CANARY, PAD = 3, 1
STEPS = 1200 if EFFORT == 1 else 4000
UP, DOWN = 1, 2  # tokens
PULL = torch.tensor([0.0, 10.0, -10_000.0])
SGD = OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant")


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    torch.manual_seed(0)


class _Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


def _losses(model: nn.Embedding, batch: Batch) -> Tensor:
    return -1000 * (model(batch.ids)[:, :, 0] * batch.weights).sum(1)  # far above the clipping norm


def _pulling(model: _Weight, batch: Batch) -> Tensor:
    return -(PULL[batch.ids] * batch.weights).sum(1) * model.weight


def _sampler(run: str, q: float, present: bool, others: tuple[int, int], canary: tuple[int, int]) -> PoissonSampler:
    """Three users and perhaps the canary, each with a document of two tokens."""
    named = {**{f"user {number}": others for number in range(3)}, **({"canary": canary} if present else {})}
    units = [
        Unit(unit_tag(KEY, "user", name), (Document(np.array(tokens, dtype=np.int32), 1),))
        for name, tokens in named.items()
    ]
    return PoissonSampler(KEY, run, q, units, 1)


def _seen(present: bool, sigma: float, q: float) -> int:
    """In how many steps the threshold test says that the canary took part in the corpus."""
    run = f"{present} {sigma} {q}"
    sampler = _sampler(run, q, present, (0, 0), (CANARY, CANARY))
    noise = StepNoise(KeyedNoise(KEY, run), NoisySteps(q, sigma, NORM, STEPS), expected_batch=1.0)
    model = nn.Embedding(4, 1)
    engine = PlainEngine(model, BookKeeping(model, Clipping(NORM)), noise, Schedule(SGD, STEPS), _losses)
    hits = 0
    for step in range(STEPS):
        before = model.weight[CANARY, 0].item()
        engine.step(step, physical_batches(sampler.sample(step), 64, PAD))
        hits += model.weight[CANARY, 0].item() - before > 0.8 * NORM  # where too little noise shows early
    return hits


def _seen_in_a_mean(present: bool, sigma: float, steps: int) -> int:
    """The same of steps with one micro-batch, in which all users are."""
    run = f"{present} {sigma} 1.0"
    sampler = _sampler(run, 1.0, present, (0, UP), (0, DOWN))
    noise = StepNoise(KeyedNoise(KEY, run), NoisySteps(1.0, sigma, NORM, steps, chunk=steps, microbatches=1), 1.0)
    model = _Weight()
    losses = partial(mean_losses, losses=_pulling)
    engine = PlainEngine(model, MicroBatchGradients(model, Clipping(NORM)), noise, Schedule(SGD, steps), losses)
    hits = 0
    for step in range(steps):
        before = model.weight.item()
        engine.step(step, micro_batches(sampler.micro_batches(step, 1), 64, 0))
        hits += model.weight.item() < before
    return hits


def _exceeds(claimed: tuple[float, float], sigma: float, q: float) -> bool:
    """Whether steps of noise multiplier sigma and rate q betray more than the claimed (sigma, q) allow."""
    return betrays_more(_seen(True, sigma, q), _seen(False, sigma, q), STEPS, *claimed)


def _mean_exceeds(sigma: float, steps: int) -> bool:
    """Whether a clipped mean with noise multiplier sigma betrays more than 1 allows."""
    return betrays_more(*(_seen_in_a_mean(present, sigma, steps) for present in (True, False)), steps, sigma=1.0)


CLAIMS = pytest.mark.parametrize("claimed", [pytest.param((1.0, 1.0), marks=pytest.mark.exhaustive), (0.5, 0.5)])


@CLAIMS
def test_steps_betray_no_more_than_claimed(claimed: tuple[float, float]) -> None:
    assert not _exceeds(claimed, *claimed)


@CLAIMS
def test_the_same_attack_finds_noise_1_5_times_too_small(claimed: tuple[float, float]) -> None:
    assert _exceeds(claimed, claimed[0] / 1.5, claimed[1])


def test_the_same_attack_finds_users_who_always_take_part() -> None:
    assert _exceeds((0.5, 0.5), 0.5, 1.0)


def test_a_turned_mean_betrays_no_more_than_claimed() -> None:
    assert not _mean_exceeds(1.0, 1200)


@pytest.mark.parametrize(
    "factor", [pytest.param(math.sqrt(8), id="noise / N on 8 workers"), pytest.param(2, id="C in place of 2C")]
)
def test_the_same_attack_finds_the_noise_of_the_paper(factor: float) -> None:
    assert _mean_exceeds(1.0 / factor, 300)
