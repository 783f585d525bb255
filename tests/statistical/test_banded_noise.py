"""Banded noise on the real path: what a whole run betrays of one user, and how its noise is spread over steps."""

import numpy as np
import pytest
import torch
from adversaries import P_THRESHOLD, Array, variance_p_value
from scipy import stats
from torch import Tensor, nn

from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping
from rayprivacy.dpsgd.engines.engine import PlainEngine
from rayprivacy.dpsgd.engines.noisy_optimizer import StepNoise
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import OptimizerConfig
from rayprivacy.release.step_mechanism import NoisySteps

KEY, PAD = Key.for_tests(), 1
BANDS, STEPS, RATE, SIGMA, NORM, BATCH = 4, 24, 0.6, 0.7, 3.0, 5.0
MECHANISM = NoisySteps(RATE, SIGMA, NORM, STEPS, bands=BANDS)
INDEPENDENT = NoisySteps(RATE, SIGMA, NORM, STEPS)
MATRIX: Array = sum(value * np.eye(STEPS, k=-below) for below, value in enumerate(MECHANISM.strategy))  # C


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    torch.manual_seed(0)


def _losses(model: nn.Embedding, batch: Batch) -> Tensor:
    return -1000 * (model(batch.ids)[:, :, 0] * batch.weights).sum(1)  # linear, and far above the clipping norm


def _unit(user: int) -> Unit:
    return Unit(unit_tag(KEY, "user", user), (Document(np.array([user, user], dtype=np.int32), 1),))


def _updates(mechanism: NoisySteps, users: list[int], width: int = 1, first: int = 0) -> Array:
    """What each step released, as float64 [steps, coordinates]: sampler, clipping, noise and optimizer are the real."""
    sampler = PoissonSampler(KEY, "run", mechanism.sampling_rate, list(map(_unit, users)), 1, groups=mechanism.bands)
    noise = StepNoise(KeyedNoise(KEY, "run"), mechanism, BATCH)
    schedule = Schedule(OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant"), STEPS)
    model = nn.Embedding(40, width)
    engine = PlainEngine(model, BookKeeping(model, Clipping(NORM)), noise, schedule, _losses)
    found = []
    for step in range(first, STEPS):
        before = model.weight.detach().numpy().astype(float)
        engine.step(step, physical_batches(sampler.sample(step), 64, PAD))
        found.append((before - model.weight.detach().numpy()).ravel())
    return np.stack(found)


@pytest.mark.parametrize("victim", range(2, 12))
def test_one_user_moves_a_whole_run_by_one_clipping_norm_for_each_time_it_takes_part(victim: int) -> None:
    others = [user for user in range(2, 12) if user != victim]
    # The same key, so the same noise: it is gone from the difference. The losses are linear, so nothing feeds back.
    moved = BATCH * (_updates(MECHANISM, [*others, victim]) - _updates(MECHANISM, others))
    took_part = np.flatnonzero(np.abs(moved).max(1) > NORM / 10)
    assert (np.diff(took_part) % BANDS == 0).all()  # at least b apart
    assert 0 < len(took_part) <= STEPS // BANDS
    seen = MATRIX @ moved  # what the Gaussian noise of scale sigma C is added to
    assert np.linalg.norm(seen) <= NORM * np.sqrt(len(took_part)) * (1 + 1e-5)
    windows = [np.arange(step, min(step + BANDS, STEPS)) for step in took_part]
    for window in windows:
        assert np.linalg.norm(seen[window]) <= NORM * (1 + 1e-5)
    assert np.linalg.norm(seen[windows[0]]) > 0.99 * NORM  # the bound is met, not far away
    outside = np.delete(seen, np.concatenate(windows), axis=0)
    assert np.abs(outside).max(initial=0) < 1e-4 * NORM


def _noise(mechanism: NoisySteps = MECHANISM) -> Array:
    """Noise alone, [steps, coordinates]: nobody is there."""
    return _updates(mechanism, [], width=500)


def _is_declared(noise: Array) -> bool:
    """Whether noise over steps has covariance (C^T C)^-1 (sigma C / B)^2: times C, it is white and of that scale."""
    white = MATRIX @ noise
    std = SIGMA * NORM / BATCH
    scales = min(variance_p_value(each, std) for each in white)
    pairs = [stats.pearsonr(white[a], white[b]).pvalue for a in range(STEPS) for b in range(a)]
    return bool(scales > P_THRESHOLD / STEPS and min(pairs) > P_THRESHOLD / len(pairs))


def test_the_noise_of_all_steps_has_the_declared_covariance() -> None:
    noise = _noise()
    assert _is_declared(noise)
    inverse = np.linalg.inv(MATRIX)
    wanted = inverse @ inverse.T * (SIGMA * NORM / BATCH) ** 2
    assert np.abs(noise @ noise.T / noise.shape[1] - wanted).max() < 0.05 * wanted.max()


def test_the_same_test_rejects_other_scales_and_independent_noise() -> None:
    noise = _noise()
    for factor in (0.7, 0.95, 1.05, 1.3):
        assert not _is_declared(factor * noise)
    assert not _is_declared(_noise(INDEPENDENT))
    late = noise.copy()
    late[STEPS // 2 :] = _noise()[: STEPS // 2]  # a resumed run that begins anew
    assert not _is_declared(late)
