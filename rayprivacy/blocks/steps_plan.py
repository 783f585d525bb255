"""The plan of a training with DP-SGD: its recipe keys, the least noise that fits the budget, and its charged stage.

Imports neither torch nor Ray.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, Self, TypeAlias

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from pydantic import Field

from rayprivacy.accounting import accountant, calibrate
from rayprivacy.accounting.events import from_json, to_json
from rayprivacy.core import errors, units
from rayprivacy.corpus.settings import check_unit
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.ledger.least_noise import is_enough, least_noise
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.size import ModelSize
from rayprivacy.release.step_mechanism import NoisySteps, step_factors
from rayprivacy.runs.assumptions import Placed, Where, at, of_training
from rayprivacy.runs.calibration import kept
from rayprivacy.runs.plan import STEPS_DONE, UNKNOWN, Block, Effort, Plan, Stage, Work, composed
from rayprivacy.runs.recipe import Resources

PART_FILES = 16  # of the sharded corpus, the smallest piece that a worker takes; no shard means anything here
LEARNING_RATES = {"lora": 2e-3, "full": 3e-4}
MOST_APART = 1.5  # how many times what is drawn may be what is divided by, before it is remarked
MANY_LEVELS = 2  # of noise, above which each cost takes seconds
Line: TypeAlias = tuple[float, int, float]  # sampling rate, events, and what the noise is in proportion to


class SampledPrivacyConfig(PrivacyConfig):
    """The `privacy` block: only some rules of composition know sampled steps.

    Attributes:
        composition: `rdp` admits any later release too; `pld` is tighter, and admits this recipe's plan alone.
    """

    composition: Literal["rdp", "pld"] = "rdp"


class SampledResources(EngineConfig, Resources):
    """The `resources` block.

    Attributes:
        actors: processes that sample texts; 0 means one for every CPU of the cluster.
    """

    actors: int = Field(default=0, ge=0)


@dataclass(frozen=True)
class Steps(Block):
    """One training with DP-SGD.

    Attributes:
        name: of its stage.
        training: the steps.
        detail: what is trained, for the plan.
        size: of the model, for estimates of time.
        tokens: that are read of a row, for estimates; those that are trained on when left out.
        mechanism: the steps with their noise, once they are fitted.
    """

    calibrated: ClassVar[bool] = True
    name: str
    training: DpSgdConfig
    detail: str
    size: ModelSize
    tokens: int | None = None
    mechanism: Any = None

    def fitted(self, recipe: Any, beside: Sequence[DpEvent]) -> Self:
        """With the recipe's noise multiplier, or the least that fits the budget beside the other charges."""
        before = composed(beside) if beside else None
        return replace(self, mechanism=sampled_steps(self.training, recipe.privacy, before))

    def stages(self, recipe: Any) -> tuple[Stage, ...]:
        """The training, charged in chunks of steps."""
        training, engine = self.training, recipe.resources
        # What each user adds: how many there are is a guess, which the divisor and the rate make where nobody does.
        tokens = training.sampling_rate * training.max_records * (self.tokens or training.max_tokens)  # of a step
        effort = Effort("train", self.size.trained(training.steps * tokens), users=True, processes=engine.workers)
        efforts = (UNKNOWN if engine.gpu else effort,)  # how fast a GPU is, is not known
        return (training_stage(self.name, self.detail, self.mechanism, self.training.chunk, efforts),)

    def assumptions(self, recipe: Any) -> tuple[Placed, ...]:
        """Those of any training."""
        return at(Where.STEPS, *of_training(recipe.privacy.unit, self.training.bands, self.training.microbatches))

    def facts(self, recipe: Any) -> Mapping[str, Any]:
        """What a plan says of its only training."""
        return {
            "protection": self.mechanism.protection,
            "noise": noise_line(self.mechanism, self.training),
            "figures": noise_figures(steps=self.mechanism),
            "shards": PART_FILES,
            "users": guessed_users(self.training),
        }


def training_stage(
    name: str, detail: str, mechanism: NoisySteps, chunk: int, efforts: tuple[Effort, ...] = (UNKNOWN,)
) -> Stage:
    """A stage of DP-SGD, charged in chunks of `chunk` steps."""
    charges = tuple(mechanism.event_of(each) for each in mechanism.charged_chunks(chunk))
    work = (Work(STEPS_DONE, mechanism.steps),)
    return Stage(name, "private text", detail, charges, chunked=True, work=work, efforts=efforts, mechanism=mechanism)


def check_sampled(recipe: Any) -> None:
    """Refuse what no recipe with steps of DP-SGD can have: the unit `phrase`, or scales of layers that say nothing."""
    if recipe.privacy.unit is units.PrivacyUnit.PHRASE:
        raise ValueError("privacy.unit is 'phrase', which DP-SGD does not protect: choose user or record")
    check_unit(recipe.corpus, recipe.privacy.unit, PART_FILES)
    config = recipe.training.layer_scale
    if config is not None and config.source is None and recipe.adapter.kind == "lora":
        raise errors.ConfigError(
            "training.layer_scale.from is 'weights' with adapter.kind 'lora', whose second matrices begin at 0: take"
            " scales from 'public' text, or train 'full'."
        )


def with_learning_rate(training: DpSgdConfig, adapter: AdapterConfig) -> DpSgdConfig:
    """The training block with a learning rate: by default one that suits what is trained."""
    optimizer = training.optimizer
    rate = optimizer.learning_rate or LEARNING_RATES[adapter.kind]
    return training.model_copy(update={"optimizer": optimizer.model_copy(update={"learning_rate": rate})})


def sampled_steps(
    training: DpSgdConfig, privacy: PrivacyConfig, before: DpEvent | None = None, charged: Sequence[int] | None = None
) -> NoisySteps:
    """The steps, with the noise multiplier of the training block, or the least that fits the budget beside `before`.

    `charged` are the numbers of the steps that are noisy; all when left out.

    Raises:
        ConfigError: no noise is enough.
    """
    lines = tuple(_lines(training, 1.0, charged))
    noise = training.noise_multiplier or fitting_noise(lines, before, privacy.budget, privacy.composition)
    return _mechanism(training, noise, privacy)


def sampled_trainings(
    trainings: Sequence[DpSgdConfig], ratios: Sequence[float], privacy: PrivacyConfig, before: DpEvent | None = None
) -> list[NoisySteps]:
    """The steps of several trainings on the same users, calibrated together: the budget is for all, and for `before`.

    Their noise multipliers are in proportion to `ratios`.

    Raises:
        ConfigError: no noise is enough.
    """
    lines = tuple(line for training, ratio in zip(trainings, ratios, strict=True) for line in _lines(training, ratio))
    common = trainings[0].noise_multiplier or fitting_noise(lines, before, privacy.budget, privacy.composition)
    return [_mechanism(each, common * ratio, privacy) for each, ratio in zip(trainings, ratios, strict=True)]


def fitting_noise(lines: tuple[Line, ...], before: DpEvent | None, budget: units.Budget, composition: str) -> float:
    """The least noise multiplier with which some steps fit a budget, together with what is charged before them.

    Raises:
        ConfigError: no noise is enough.
    """
    beside = json.dumps(to_json(before)) if before else None  # an event of several parts has no hash
    inputs = [lines, before and to_json(before), budget.epsilon, budget.delta, composition]
    try:
        return kept(
            lambda: _least_noise(lines, beside, budget, composition),
            lambda sigma: is_enough(_event_of(lines, beside, sigma), budget, composition),
            "sampled steps",
            *inputs,
        )
    except errors.ConfigError:
        alone = accountant.epsilon([before], budget.delta, "pld") if before else 0.0
        if alone < budget.epsilon:
            raise
    raise errors.ConfigError(
        f"privacy.epsilon is {budget.epsilon:g}, and what is released besides the steps (shares of codes, votes of"
        f" match) costs {alone:.2g} by itself: give these blocks a larger noise_multiplier, or leave match out."
    )


def _lines(training: DpSgdConfig, ratio: float, charged: Sequence[int] | None = None) -> list[Line]:
    """The steps of a training that are charged: a line for each level of their noise."""
    bands, found, begin = training.bands, [], 0
    for factor, times in training.noise_schedule.rule.levels(training.steps, training.chunk):
        level = range(begin, begin + times)
        count = times // bands if charged is None else sum(step in level for step in charged)
        if count:
            found.append((bands * training.sampling_rate, count, ratio * factor))
        begin = level.stop
    return found


def _mechanism(training: DpSgdConfig, noise: float, privacy: PrivacyConfig) -> NoisySteps:
    micro = training.microbatches
    if micro is not None and micro % PART_FILES:
        raise errors.ConfigError(
            f"training.microbatches is {micro}: give a multiple of {PART_FILES}, the number of part files."
        )
    return NoisySteps(
        training.bands * training.sampling_rate,
        noise,
        training.clipping_norm,
        training.steps,
        privacy.unit,
        schedule=training.noise_schedule.rule,
        chunk=training.chunk,
        microbatches=micro,
        bands=training.bands,
    )


def noise_line(mechanism: NoisySteps, training: DpSgdConfig) -> str:
    """The noise in one line, for people."""
    last = step_factors(mechanism.strategy, mechanism.steps)[-1]
    mean = mechanism.levels[0][0] * mechanism.sensitivity * last / training.divisor
    rate = f"sampling rate {mechanism.sampling_rate:g} per {mechanism.unit} (Poisson)"
    if mechanism.bands > 1:
        rate += f" in every {mechanism.bands}th step, noise correlated over {mechanism.bands} steps"
    falling = clipped = ""
    if mechanism.microbatches is not None:
        clipped = f" of the mean of each of {mechanism.microbatches} micro-batches, sensitivity 2C"
    if mechanism.schedule.falls:
        schedule, levels = mechanism.schedule, mechanism.levels
        falling = f" falling to {levels[-1][0]:.4g} in {len(levels)} levels ({schedule.kind}, tau {schedule.tau:g})"
    return (
        f"noise multiplier {mechanism.noise_multiplier:.4g}{falling} on clipping norm {mechanism.clipping_norm:g}"
        f"{clipped}, {rate}, noise on a mean gradient {mean:.3g} per coordinate"
    )


def noise_figures(**mechanisms: NoisySteps) -> dict[str, str]:
    """For the certificate, by the name of a training: its noise multipliers by level, unless its noise is constant."""
    return {
        f"noise multipliers of {name}": ", ".join(f"{sigma:.4g} ({times} steps)" for sigma, times in each.levels)
        for name, each in mechanisms.items()
        if each.schedule.falls
    }


def guessed_users(training: DpSgdConfig) -> float:
    """How many users a batch of the expected size says there are: a public guess."""
    return training.expected_batch / training.sampling_rate


def remark(plan: Plan, users: int | None) -> str | None:
    """What to know where a sampling rate, the divisor of its sums and a guess at the users say different things."""
    for block in plan.blocks:
        training = getattr(block, "training", None)
        guess = users or getattr(training, "users", None)
        if not isinstance(training, DpSgdConfig) or guess is None:
            continue
        drawn = training.sampling_rate * guess
        if not 1 / MOST_APART <= drawn / training.expected_batch <= MOST_APART:
            return (
                f"training.sampling_rate {training.sampling_rate:g} of {guess:,} users draws about {drawn:,.4g} a step,"
                f" and sums are divided by training.expected_batch {training.expected_batch:g}: for so many users give"
                f" sampling_rate {training.expected_batch / guess:.3g}, or expected_batch {drawn:.4g}, which sets how"
                " large a step is and moves no epsilon"
            )
    return None


@lru_cache(maxsize=64)
def _least_noise(lines: tuple[Line, ...], beside: str | None, budget: units.Budget, composition: str) -> float:
    def guess(sigma: float) -> float:
        return calibrate.guessed_epsilon([(rate, sigma * ratio, count) for rate, count, ratio in lines], budget.delta)

    costly = len({ratio for _, _, ratio in lines}) > MANY_LEVELS
    return least_noise(partial(_event_of, lines, beside), budget, composition, guess=guess, costly=costly)


def _event_of(lines: tuple[Line, ...], beside: str | None, sigma: float) -> DpEvent:
    """All steps at one noise multiplier, with what is charged beside them."""
    of_steps = [
        SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma * ratio)), count)
        for rate, count, ratio in lines
    ]
    events = [from_json(json.loads(beside)), *of_steps] if beside else of_steps
    return ComposedDpEvent(events) if len(events) > 1 else events[0]
