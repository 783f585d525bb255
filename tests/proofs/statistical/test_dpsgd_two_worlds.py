"""What steps betray of one user, through sampler, clipping, noise and optimizer: no attack beats the claim.

An attacker who knows all other users looks at two worlds, with a canary and without. Of banded noise, whose steps
belong together, a whole run is compared.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from adversaries import P_THRESHOLD, Array, betrays_more, variance_p_value
from effort import EFFORT
from scipy import stats
from torch import nn

from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, MicroBatchGradients, mean_losses, micro_batches
from rayprivacy.dpsgd.engines.engine import PlainEngine
from rayprivacy.dpsgd.engines.noisy_optimizer import StepNoise
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import OptimizerConfig
from rayprivacy.release.step_mechanism import NoisySteps

NORM, KEY, PAD = 0.5, Key.for_tests(), 1
CANARY = 3
STEPS = 1200 if EFFORT == 1 else 4000
UP, DOWN = 1, 2  # tokens
PULL = torch.tensor([0.0, 10.0, -10_000.0])
SGD = OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant")
CLAIMS = pytest.mark.parametrize("claimed", [pytest.param((1.0, 1.0), marks=pytest.mark.exhaustive), (0.5, 0.5)])


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    torch.manual_seed(0)


class _Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


def _losses(model, batch):
    return -1000 * (model(batch.ids)[:, :, 0] * batch.weights).sum(1)  # linear, and far above the clipping norm


def _pulling(model, batch):
    return -(PULL[batch.ids] * batch.weights).sum(1) * model.weight


def _sampler(run, mechanism, users):
    """Users by name, each with a document of two tokens."""
    documents = {user: Document(np.array(tokens, dtype=np.int32), 1) for user, tokens in users.items()}
    units = [Unit(unit_tag(KEY, "user", user), (document,)) for user, document in documents.items()]
    return PoissonSampler(KEY, run, mechanism.sampling_rate, units, 1, groups=mechanism.bands)


def _engine(model, run, mechanism, batch=1.0):
    clipping, noise = Clipping(mechanism.clipping_norm), StepNoise(KeyedNoise(KEY, run), mechanism, batch)
    schedule = Schedule(SGD, mechanism.steps)
    if mechanism.microbatches:
        losses = partial(mean_losses, losses=_pulling)
        return PlainEngine(model, MicroBatchGradients(model, clipping), noise, schedule, losses)
    return PlainEngine(model, BookKeeping(model, clipping), noise, schedule, _losses)


def _seen(mechanism, present):
    """In how many steps a threshold test says that the canary took part in the corpus.

    With micro-batches, three users pull the mean to one end of the ball of radius C, and the canary to the other.
    """
    run, means = f"{present} {mechanism.noise_multiplier} {mechanism.sampling_rate}", bool(mechanism.microbatches)
    canary, other = ((0, DOWN), (0, UP)) if means else ((CANARY, CANARY), (0, 0))
    sampler = _sampler(run, mechanism, dict.fromkeys(range(3), other) | ({"canary": canary} if present else {}))
    model = _Weight() if means else nn.Embedding(4, 1)
    engine, hits = _engine(model, run, mechanism), 0
    for step in range(mechanism.steps):
        before = model.weight.flatten()[-1].item()
        taken = micro_batches(sampler.micro_batches(step, 1), 64, 0) if means else ()
        engine.step(step, taken or physical_batches(sampler.sample(step), 64, PAD))
        moved = model.weight.flatten()[-1].item() - before
        hits += moved < 0 if means else moved > 0.8 * NORM  # where too little noise shows early
    return hits


def _exceeds(claimed, sigma, q):
    """Whether steps of noise multiplier sigma and rate q betray more than the claimed (sigma, q) allow."""
    seen = (_seen(NoisySteps(q, sigma, NORM, STEPS), present) for present in (True, False))
    return betrays_more(*seen, STEPS, *claimed)


def _mean_exceeds(sigma, steps):
    """Whether a clipped mean with noise multiplier sigma betrays more than 1 allows."""
    mechanism = NoisySteps(1.0, sigma, NORM, steps, chunk=steps, microbatches=1)
    return betrays_more(*(_seen(mechanism, present) for present in (True, False)), steps, sigma=1.0)


@CLAIMS
def test_steps_betray_no_more_than_claimed(claimed):
    assert not _exceeds(claimed, *claimed)


@CLAIMS
def test_the_same_attack_finds_noise_1_5_times_too_small(claimed):
    assert _exceeds(claimed, claimed[0] / 1.5, claimed[1])


def test_the_same_attack_finds_users_who_always_take_part():
    assert _exceeds((0.5, 0.5), 0.5, 1.0)


def test_a_turned_mean_betrays_no_more_than_claimed():
    assert not _mean_exceeds(1.0, 1200)


@pytest.mark.parametrize("factor", [math.sqrt(8), 2], ids=["noise / N on 8 workers", "C in place of 2C"])
def test_the_same_attack_finds_the_noise_of_the_paper(factor):
    assert _mean_exceeds(1.0 / factor, 300)


BANDS, LENGTH, SIGMA, RADIUS, BATCH = 4, 24, 0.7, 3.0, 5.0
BANDED = NoisySteps(0.6, SIGMA, RADIUS, LENGTH, bands=BANDS)
INDEPENDENT = NoisySteps(0.6, SIGMA, RADIUS, LENGTH)
MATRIX: Array = sum(value * np.eye(LENGTH, k=-below) for below, value in enumerate(BANDED.strategy))  # C


def _updates(users, width=1, mechanism=BANDED):
    """What each step released, as float64 [steps, coordinates]."""
    sampler = _sampler("run", mechanism, {user: (user, user) for user in users})
    model = nn.Embedding(40, width)
    engine, found = _engine(model, "run", mechanism, BATCH), []
    for step in range(LENGTH):
        before = model.weight.detach().numpy().astype(float)
        engine.step(step, physical_batches(sampler.sample(step), 64, PAD))
        found.append((before - model.weight.detach().numpy()).ravel())
    return np.stack(found)


@pytest.mark.parametrize("victim", range(2, 12))
def test_one_user_moves_a_whole_run_by_one_clipping_norm_for_each_time_it_takes_part(victim):
    others = [user for user in range(2, 12) if user != victim]
    # The same key, so the same noise: it is gone from the difference. The losses are linear, so nothing feeds back.
    moved = BATCH * (_updates([*others, victim]) - _updates(others))
    took_part = np.flatnonzero(np.abs(moved).max(1) > RADIUS / 10)
    assert (np.diff(took_part) % BANDS == 0).all()  # at least b apart
    assert 0 < len(took_part) <= LENGTH // BANDS
    seen = MATRIX @ moved  # what the Gaussian noise of scale sigma C is added to
    assert np.linalg.norm(seen) <= RADIUS * np.sqrt(len(took_part)) * (1 + 1e-5)
    windows = [np.arange(step, min(step + BANDS, LENGTH)) for step in took_part]
    assert all(np.linalg.norm(seen[window]) <= RADIUS * (1 + 1e-5) for window in windows)
    assert np.linalg.norm(seen[windows[0]]) > 0.99 * RADIUS  # the bound is met, not far away
    outside = np.delete(seen, np.concatenate(windows), axis=0)
    assert np.abs(outside).max(initial=0) < 1e-4 * RADIUS


def _is_declared(noise):
    """Whether noise over steps has covariance (C^T C)^-1 (sigma C / B)^2: times C, it is white and of that scale."""
    white = MATRIX @ noise
    scales = min(variance_p_value(each, SIGMA * RADIUS / BATCH) for each in white)
    pairs = [stats.pearsonr(white[a], white[b]).pvalue for a in range(LENGTH) for b in range(a)]
    return bool(scales > P_THRESHOLD / LENGTH and min(pairs) > P_THRESHOLD / len(pairs))


def test_the_noise_of_all_steps_has_the_declared_covariance():
    noise = _updates([], 500)  # nobody is there
    assert _is_declared(noise)
    inverse = np.linalg.inv(MATRIX)
    wanted = inverse @ inverse.T * (SIGMA * RADIUS / BATCH) ** 2
    assert np.abs(noise @ noise.T / noise.shape[1] - wanted).max() < 0.05 * wanted.max()


def test_the_same_test_rejects_other_scales_and_independent_noise():
    noise = _updates([], 500)
    assert not any(_is_declared(factor * noise) for factor in (0.7, 0.95, 1.05, 1.3))
    assert not _is_declared(_updates([], 500, INDEPENDENT))
    late = np.vstack([noise[: LENGTH // 2], noise[: LENGTH // 2]])  # a resumed run that begins anew
    assert not _is_declared(late)
