"""What all methods with steps of DP-SGD share: part files, the rules of composition, the learning rate, and the noise.

Imports neither torch nor Ray: a plan needs it.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from pydantic import Field

from rayprivacy.accounting.events import from_json, to_json
from rayprivacy.core.units import Budget
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.ledger.least_noise import least_noise
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.size import size_of
from rayprivacy.release.banded import BandedGaussian
from rayprivacy.release.step_mechanism import SampledGaussian
from rayprivacy.release.strategy import step_factors
from rayprivacy.runs.calibration import kept
from rayprivacy.runs.effort import Effort
from rayprivacy.runs.recipe import Resources

PART_FILES = 16  # of the sharded corpus, the smallest piece that a worker takes; no shard means anything here
LEARNING_RATES = {"lora": 2e-3, "full": 3e-4}
Line: TypeAlias = tuple[float, int, float]  # sampling rate, events, and what the noise is in proportion to


class SampledPrivacyConfig(PrivacyConfig):
    """The `privacy` block: only some rules of composition know sampled steps.

    Attributes:
        composition: `rdp` admits any later release too; `pld` is tighter, and admits this recipe's plan alone.
    """

    composition: Literal["rdp", "weighted", "pld"] = "rdp"


class SampledResources(EngineConfig, Resources):
    """The `resources` block.

    Attributes:
        actors: processes that sample texts; 0 means one for every CPU of the cluster.
    """

    actors: int = Field(default=0, ge=0)


def with_learning_rate(training: DpSgdConfig, adapter: AdapterConfig) -> DpSgdConfig:
    """The training block with a learning rate: by default one that suits what is trained."""
    optimizer = training.optimizer
    rate = optimizer.learning_rate or LEARNING_RATES[adapter.kind]
    return training.model_copy(update={"optimizer": optimizer.model_copy(update={"learning_rate": rate})})


def sampled_steps(training: DpSgdConfig, privacy: PrivacyConfig, before: DpEvent | None = None) -> SampledGaussian:
    """The steps: with the noise multiplier of the training block, or the least that fits the budget.

    Args:
        training: the steps.
        privacy: the budget, and the rule of composition.
        before: what the run charges besides.

    Raises:
        ConfigError: no noise is enough.
    """
    return sampled_trainings((training,), (1.0,), privacy, before)[0]


def sampled_trainings(
    trainings: Sequence[DpSgdConfig], ratios: Sequence[float], privacy: PrivacyConfig, before: DpEvent | None = None
) -> list[SampledGaussian]:
    """The steps of several trainings on the same users, calibrated together: the budget is for all of them.

    Args:
        trainings: the steps of each.
        ratios: what the noise multipliers are in proportion to.
        privacy: the budget, and the rule of composition.
        before: what the run charges besides.

    Raises:
        ConfigError: no noise is enough.
    """
    lines = tuple(_line(training, ratio) for training, ratio in zip(trainings, ratios, strict=True))
    beside = json.dumps(to_json(before)) if before else None  # an event of several parts has no hash
    common = trainings[0].noise_multiplier or _least_noise(lines, beside, privacy.budget, privacy.composition)
    return [_mechanism(each, common * ratio, privacy) for each, ratio in zip(trainings, ratios, strict=True)]


def _line(training: DpSgdConfig, ratio: float) -> Line:
    bands = training.bands
    return bands * training.sampling_rate, training.steps // bands, ratio


def _mechanism(training: DpSgdConfig, noise: float, privacy: PrivacyConfig) -> SampledGaussian:
    bands, norm, steps = training.bands, training.clipping_norm, training.steps
    rate = bands * training.sampling_rate
    if bands == 1:
        return SampledGaussian(rate, noise, norm, steps, privacy.unit)
    return BandedGaussian(rate, noise, norm, steps, privacy.unit, bands=bands)


def noise_line(mechanism: SampledGaussian, training: DpSgdConfig) -> str:
    """The noise in one line, for people."""
    last = step_factors(mechanism.strategy, mechanism.steps)[-1]
    mean = mechanism.noise_std(step=0) * last / training.expected_batch
    rate = f"sampling rate {mechanism.sampling_rate:g} per {mechanism.unit} (Poisson)"
    if mechanism.groups > 1:
        rate += f" in every {mechanism.groups}th step, noise correlated over {mechanism.groups} steps"
    return (
        f"noise multiplier {mechanism.noise_multiplier:.4g} on clipping norm {mechanism.clipping_norm:g},"
        f" {rate}, noise on a mean gradient {mean:.3g} per coordinate"
    )


def guessed_users(training: DpSgdConfig) -> float:
    """How many users a batch of the expected size says there are: a public guess."""
    return training.expected_batch / training.sampling_rate


def steps_efforts(base: str, training: DpSgdConfig, engine: EngineConfig) -> tuple[Effort, ...] | None:
    """How much all steps compute, padding included; None where the model's size is not known, or a GPU does it.

    Args:
        base: of the model block.
        training: the steps.
        engine: its workers.
    """
    size = size_of(base)
    if size is None or engine.gpu:
        return None
    tokens = training.expected_batch * training.max_records * training.max_tokens
    return (Effort("train", size.trained(training.steps * tokens), processes=engine.workers),)


@lru_cache(maxsize=64)
def _least_noise(lines: tuple[Line, ...], beside: str | None, budget: Budget, composition: str) -> float:
    before = json.loads(beside) if beside else None

    def event(sigma: float) -> DpEvent:
        of_steps = [
            SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma * ratio)), count)
            for rate, count, ratio in lines
        ]
        events = [from_json(before), *of_steps] if before else of_steps
        return ComposedDpEvent(events) if len(events) > 1 else events[0]

    inputs = [lines, before, budget.epsilon, budget.delta, composition]
    return kept(lambda: least_noise(event, budget, composition), "sampled steps", *inputs)
