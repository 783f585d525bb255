"""Scales of layers: where they come from, what clipping and noise make of them, on every engine."""

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import PAD, Case, engines, equal, losses, made, moved, refused, scales, some, taken, tiny_model, units
from scipy import stats

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import packed
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, ClippingKind, MicroBatchGradients
from rayprivacy.dpsgd.engines.engine import StepNoise
from rayprivacy.dpsgd.layer_scale import LEAST, scales_of_gradients, scales_of_weights
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.release.step_mechanism import NoisySteps

NORM, SIGMA = 2.0, 0.7
KINDS: tuple[ClippingKind, ...] = ("flat", "per_layer", "automatic")


def _alone(**more):
    """Without users, noise is all."""
    return replace(Case("gpt2", splits=((0, 0),), norm=NORM, sigma=SIGMA, scales=scales()), **more)


def _fits(noise, std):
    square = float((noise**2).sum()) / std**2
    return bool(2 * min(stats.chi2.cdf(square, noise.size), stats.chi2.sf(square, noise.size)) > 1e-6)


@engines("plain", "zero2", "zero3")
def test_the_noise_of_each_layer_has_its_own_scale(pair, zero, offload):
    """By layer, on two ranks, and rejected where it is 30% off."""
    first, second = (moved("gpt2", after) for after in pair.run(taken, _alone(zero=zero)))
    assert equal(first, second)
    flat = []
    for name, scale in scales():
        noise, std = first[name].ravel(), SIGMA * NORM * scale
        assert _fits(noise, std)
        assert noise.size < 500 or not any(_fits(noise, wrong * std) for wrong in (0.7, 1.3))
        flat.append(noise / std)
    for one, other in combinations(sorted(flat, key=len)[-3:], 2):
        size = min(len(one), len(other))
        assert abs(np.corrcoef(one[:size], other[:size])[0, 1]) < 4 / math.sqrt(size)


@pytest.mark.parametrize(("zero", "step"), some([(None, 0), (None, 1), (2, 0), (2, 1)], (None, 0), (2, 1)))
def test_with_micro_batches_it_is_of_2c_and_of_the_level_of_its_step(pair, zero, step):
    """All three parts of eDP-SGD at once: noise of z_t 2C alpha_k / N on the mean over micro-batches."""
    found = moved("gpt2", pair.run(taken, _alone(zero=zero, micro=True, first=step))[0])  # times N
    noise = np.concatenate([found[name].ravel() / scale for name, scale in scales()])
    std = SIGMA / (1 + step) * 2 * NORM
    assert _fits(noise, std)
    assert not any(_fits(noise, wrong * std) for wrong in (0.5, 0.7, 1.3, 2.0))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("micro", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_unit_is_longer_than_the_norm_after_the_division(kind, micro):
    model, alphas = tiny_model("gpt2"), [scale for _, scale in scales()]
    make = MicroBatchGradients if micro else BookKeeping
    gradients: Any = make(model, Clipping(NORM, kind, scales=tuple(alphas)))
    lengths, largest = [], 0.0
    for unit in units()[:5]:
        for factor in (1e-9, 1.0, -30.0, 1e9):
            (batch,) = packed([unit], 10_000, PAD)

            def scaled(batch=batch, factor=factor):
                values = losses(model, batch) * factor
                return iter([values.sum()]) if micro else values

            lazy = gradients(scaled, len(batch.ids))
            parts = [lazy[each]().double().norm().item() for each in gradients.parameters]
            lengths.append(math.hypot(*(part / scale for part, scale in zip(parts, alphas, strict=True))))
            largest = max(largest, math.hypot(*parts))
    assert NORM * 0.5 < max(lengths) <= NORM
    assert largest < NORM  # un-scaled it is shorter, since no scale is above 1


def test_scales_of_public_gradients_reach_every_matrix_of_lora():
    model = tiny_model("llama_lora")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.zero_()  # as a training begins
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    found = scales_of_gradients(model, packed(units(), 200, PAD), losses)
    assert set(found) == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert max(found.values()) == 1.0
    assert max(scale for name, scale in found.items() if "lora_A" in name) > 2 * LEAST  # not as after one step
    assert all(torch.equal(parameter, start[name]) for name, parameter in model.named_parameters())
    assert found == scales_of_gradients(model, packed(units(), 200, PAD), losses)


def test_scales_of_weights_are_their_norms():
    found, named = scales_of_weights(tiny_model("gpt2")), dict(tiny_model("gpt2").named_parameters())
    most = max(float(parameter.norm()) for parameter in named.values())
    for name, scale in found.items():
        assert scale == pytest.approx(max(LEAST, float(named[name].norm()) / most), rel=1e-2)
    with pytest.raises(ConfigError, match="no scale that is positive"):
        scales_of_weights(torch.nn.Linear(2, 2).requires_grad_(False))


def test_what_has_no_scale_or_a_bad_one_is_refused():
    mechanism, noise = NoisySteps(0.5, 1.0, 1.0, 10), KeyedNoise(Key.for_tests(), "run")
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ReleaseError, match="is not positive and finite"):
            StepNoise(noise, mechanism, 4.0, {"weight": bad})
        with pytest.raises(ConfigError, match="is not positive and finite"):
            Clipping(1.0, scales=(1.0, bad))
    assert "has no layer scale" in refused(_alone(scales=scales()[:-1]))
    assert made(_alone())


def test_ranks_that_differ_in_their_scales_are_refused(pair):
    assert all("ranks differ in the noise" in each for each in pair.run(refused, _alone(differ=True)))
