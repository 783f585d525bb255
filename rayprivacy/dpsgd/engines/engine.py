"""The interface of engines, which take the steps of DP-SGD, and the choice of one by the settings.

    clipped sums of all ranks -> noise -> division by the expected batch -> optimizer

Which engine, ZeRO stage and number of ranks is a matter of memory and time. The noise of a coordinate depends on the
key, the run, the step, and the parameter's name alone, so all of them give the same update, up to the order of
floating-point sums. A step without users is a step like any other: it adds noise, and is accounted for.

Losses and norms of gradients are private. They are computed inside, and leave no engine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch
from rayprivacy.dpsgd.clipping import (
    BookKeeping,
    ClippedGradients,
    Clipping,
    MicroBatch,
    MicroBatchGradients,
    UnitGradients,
    mean_losses,
)
from rayprivacy.dpsgd.engines.noisy_optimizer import StepNoise
from rayprivacy.dpsgd.engines.plain import PlainEngine
from rayprivacy.dpsgd.engines.state import Fragment, trainable_parameters
from rayprivacy.dpsgd.engines.zero import ZeroEngine
from rayprivacy.dpsgd.fresh_loss import FreshLoss
from rayprivacy.dpsgd.independence import check_independence, check_memory, check_micro_batches
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig

__all__ = ["Engine", "StepNoise", "make_engine"]


class Engine(Protocol):
    """A model in training; all functions but `fragments` are collective."""

    def step(self, step: int, batches: Sequence[Batch | MicroBatch]) -> None:
        """Take one logical step on all ranks.

        Args:
            step: its number, from 0; each is used once.
            batches: physical batches of the users that were sampled on this rank, or their micro-batches where these
                are clipped; may be empty.

        Raises:
            ReleaseError: the step was taken before, or a coordinate would have been released without noise; or the
                step takes none, and a batch is not of redacted copies alone.
        """

    def fragments(self) -> list[Fragment]:
        """Which coordinates this rank's optimizer owns, hence adds noise to."""

    def save(self, folder: Path) -> None:
        """Write float32 weights and optimizer state into an existing folder, by parameter name and range."""

    def load(self, folder: Path) -> None:
        """Go on from what any engine on any number of ranks has saved.

        Raises:
            ShardError: on every rank, when the folder is incomplete, damaged, or of another model or optimizer.
        """

    def state_dict(self) -> dict[str, Tensor]:
        """What is released: the trainable parameters by name, whole, float32, on the CPU of every rank."""


def make_engine(
    model: Any,
    training: DpSgdConfig,
    noise: StepNoise,
    engine: EngineConfig,
    losses: Callable[[Any, Batch], Tensor],
    low_precision: bool = False,
    told: Callable[[str], None] = lambda _: None,
) -> Engine:
    """The engine that the settings name, once it was tried on public tokens (`independence`); collective.

    Args:
        model: on its device, with `requires_grad` set; the engine takes it over.
        training: clipping and optimizer.
        noise: keyed noise, the mechanism that scales it at each step, and the expected batch.
        engine: ZeRO stage, and how gradients are clipped.
        losses: forward pass of a batch, one loss for each row.
        low_precision: `losses` computes in less than float32.
        told: is given the sentence on what was tried.

    Raises:
        ConfigError: the settings do not go together, the model or the loss has what cannot be clipped or mixes users,
            or a package is missing.
        ReleaseError: ranks would leave a coordinate without noise, or differ in the noise.
    """
    _check_together(training, engine)
    check_memory(model)
    scales = tuple(noise.scale_of(name) for name in trainable_parameters(model)) if noise.scales else ()
    clipping = Clipping(training.clipping_norm, training.clipping, low_precision, scales)
    tokens, at_once = training.max_tokens, engine.tokens_at_once
    fresh = FreshLoss(losses)
    gradients: ClippedGradients
    given: Callable[[Any, Any], Any] = fresh
    if training.microbatches is not None:
        gradients, given = MicroBatchGradients(model, clipping), partial(mean_losses, losses=fresh)
        told(check_micro_batches(model, losses, tokens, at_once, gradients))
    else:
        gradients = _of_units(model, clipping, engine)
        told(check_independence(model, losses, tokens, at_once, gradients, clipping, training.max_records))
    schedule = Schedule(training.optimizer, training.steps)
    if engine.zero is None:
        return PlainEngine(model, gradients, noise, schedule, given)
    return ZeroEngine(model, gradients, noise, schedule, given, engine.zero, engine.offload)


def _check_together(training: DpSgdConfig, engine: EngineConfig) -> None:
    if engine.gradients == "opacus" and engine.zero == 3:
        raise ConfigError(
            "resources.gradients is 'opacus' and resources.zero 3: Opacus needs whole parameters; use 'bookkeeping'."
        )
    if training.microbatches is not None and engine.zero == 3:
        raise ConfigError(
            "training.microbatches and resources.zero 3: the gradient of a micro-batch needs whole parameters; use zero"
            " 2, or null."
        )
    if training.microbatches is not None and engine.gradients == "opacus":
        raise ConfigError(
            "training.microbatches and resources.gradients 'opacus': a micro-batch has one gradient, so leave it out."
        )


def _of_units(model: nn.Module, clipping: Clipping, engine: EngineConfig) -> UnitGradients:
    if engine.gradients == "bookkeeping":
        return BookKeeping(model, clipping)
    from rayprivacy.dpsgd.clipping import OpacusGradients  # Opacus is optional

    return OpacusGradients(model, clipping)
