"""The choice of an engine, which takes the steps of DP-SGD, by the settings.

    clipped sums of all ranks -> noise -> division by the expected batch -> optimizer

Which engine, ZeRO stage and number of ranks is a matter of memory and time. The noise of a coordinate depends on the
key, the run, the step, and the parameter's name alone, so all of them give the same update, up to the order of
floating-point sums. A step without users is a step like any other: it adds noise, and is accounted for.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd import clipping, independence
from rayprivacy.dpsgd.batches import Batch
from rayprivacy.dpsgd.engines.noisy_optimizer import Engine, StepNoise
from rayprivacy.dpsgd.engines.plain import PlainEngine
from rayprivacy.dpsgd.engines.state import trainable_parameters
from rayprivacy.dpsgd.engines.zero import ZeroEngine
from rayprivacy.dpsgd.fresh_loss import FreshLoss
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig

__all__ = ["Engine", "StepNoise", "make_engine"]
_GRADIENTS: dict[str, Callable[[Any, clipping.Clipping], clipping.UnitGradients]] = {
    "bookkeeping": clipping.BookKeeping,
    "opacus": clipping.OpacusGradients,
}


def make_engine(
    model: Any,
    training: DpSgdConfig,
    noise: StepNoise,
    engine: EngineConfig,
    losses: Callable[[Any, Batch], Tensor],
    low_precision: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Engine:
    """The engine that the settings name, once it was tried on public tokens (`independence`); collective.

    Args:
        model: on its device, with `requires_grad` set; the engine takes it over.
        training: clipping and optimizer.
        noise: keyed noise, the mechanism that scales it at each step, and the expected batch.
        engine: ZeRO stage, and how gradients are clipped.
        losses: forward pass of a batch, one loss for each row.
        low_precision: `losses` computes in less than float32.
        report: is given the sentence on what was tried.

    Raises:
        ConfigError: the settings do not go together, the model or the loss has what cannot be clipped or mixes users,
            or a package is missing.
        ReleaseError: ranks would leave a coordinate without noise, or differ in the noise.
    """
    _check_together(training, engine)
    independence.check_memory(model)
    scales = tuple(noise.scale_of(name) for name in trainable_parameters(model)) if noise.scales else ()
    clip = clipping.Clipping(training.clipping_norm, training.clipping, low_precision, scales)
    tokens, at_once = training.max_tokens, engine.tokens_at_once
    gradients: clipping.ClippedGradients
    given: Callable[[Any, Any], Any] = FreshLoss(losses)
    if training.microbatches is not None:
        gradients, given = clipping.MicroBatchGradients(model, clip), partial(clipping.mean_losses, losses=given)
        report(independence.check_micro_batches(model, losses, tokens, at_once, gradients))
    else:
        gradients = _GRADIENTS[engine.gradients](model, clip)
        report(independence.check_independence(model, losses, tokens, at_once, gradients, clip, training.max_records))
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
