"""The engine in plain PyTorch, and the choice of an engine, which takes the steps of DP-SGD, by the settings.

    clipped sums of all ranks -> noise -> division by the expected batch -> optimizer

Which engine, ZeRO stage and number of ranks is a matter of memory and time. The noise of a coordinate depends on the
key, the run, the step, and the parameter's name alone, so all of them give the same update, up to the order of
floating-point sums. A step without users is a step like any other: it adds noise, and is accounted for.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd import clipping, collectives, independence
from rayprivacy.dpsgd.batches import Batch
from rayprivacy.dpsgd.engines.noisy_optimizer import Engine, NoisyOptimizer, StepNoise
from rayprivacy.dpsgd.engines.state import trainable_parameters, whole
from rayprivacy.dpsgd.engines.zero import ZeroEngine, add_up
from rayprivacy.dpsgd.losses import FreshLoss
from rayprivacy.dpsgd.optimizer import Schedule, make_optimizer
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.models import packing

__all__ = ["Engine", "StepNoise", "make_engine"]
_LEAST_ROW = 64  # tokens; shorter rows hold no more than a unit or two
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
    in_rows: bool = False,
) -> Engine:
    """The engine that the settings name, once it was tried on public tokens (`independence`); collective.

    It takes the model over, which is on its device with `requires_grad` set. `losses` gives one loss for each row, with
    `low_precision` in less than float32; with `in_rows` it also takes `Row`s, in which the engine gets its units where
    the model can read them (`Engine.in_rows`). `report` is given the sentence on what was tried. Refused are a model or
    a loss that cannot be clipped or mixes users, and ranks that leave a coordinate without noise, or differ in it.
    """
    _check_together(training, engine)
    independence.check_memory(model)
    scales = tuple(noise.scale_of(name) for name in trainable_parameters(model)) if noise.scales else ()
    clip = clipping.Clipping(training.clipping_norm, training.clipping, low_precision, scales)
    tokens, at_once = training.max_tokens, engine.tokens_at_once
    gradients: clipping.ClippedGradients
    given: Callable[[Any, Any], Any] = FreshLoss(losses)
    rows = ""
    if training.microbatches is not None:
        gradients, given = clipping.MicroBatchGradients(model, clip), partial(clipping.mean_losses, losses=given)
        tried = independence.check_micro_batches(model, losses, tokens, at_once, gradients)
    else:
        gradients = _GRADIENTS[engine.gradients](model, clip)
        rest = (gradients, clip, training.max_records)
        if in_rows and engine.gradients == "bookkeeping":
            rows = _tried_in_rows(model, losses, tokens, engine.row_tokens(training), *rest)
        tried = rows or independence.check_independence(model, losses, tokens, at_once, *rest)
    report(tried)
    schedule = Schedule(training.optimizer, training.steps)
    made: Engine
    if engine.zero is None:
        made = PlainEngine(model, gradients, noise, schedule, given)
    else:
        made = ZeroEngine(model, gradients, noise, schedule, given, engine.zero, engine.offload)
    made.in_rows = bool(rows)
    return made


def _tried_in_rows(model: Any, losses: Any, tokens: int, at_once: int, *rest: Any) -> str:
    """The sentence on what was tried, for units behind each other in rows; empty for a model that cannot be read so."""
    # Pieces are small operations, of which a GPU would wait for thousands; rows were never seen on one.
    on_cpu = next(model.parameters()).device.type == "cpu"
    if at_once < _LEAST_ROW or not on_cpu or not packing.can_be_packed(model, tokens):
        return ""
    try:
        return independence.check_rows(model, losses, tokens, at_once, *rest)
    except ConfigError:  # the check of batches says what is wrong, if anything is wrong with these too
        packing.unpacked(model)
        return ""


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


class PlainEngine(Engine):
    """Steps in plain PyTorch: on one rank, or on several that all hold the whole model, from the weights of rank 0.

    Every rank adds up the clipped gradients of its own users, and all ranks add up their sums in float64. Each then
    adds the same keyed noise and takes the same step, so weights stay equal without being sent. Parameters in less than
    float32 have float32 masters, which the optimizer updates, so that small steps are not rounded away.
    """

    def __init__(
        self,
        model: Any,
        gradients: clipping.ClippedGradients,
        noise: StepNoise,
        schedule: Schedule,
        losses: Callable[[Any, Any], Any],
    ) -> None:
        self._model, self._losses = model, losses
        for parameter in model.parameters():
            collectives.copy_from_first(parameter.data)
        self._gradients = gradients
        self._parameters = trainable_parameters(model)
        self._masters = {
            name: each if each.dtype == torch.float32 else nn.Parameter(each.detach().float())
            for name, each in self._parameters.items()
        }
        self._optimizer = make_optimizer(schedule.config, self._masters.values())
        sizes = {name: master.numel() for name, master in self._masters.items()}
        self._noisy = NoisyOptimizer(self._optimizer, whole(self._masters), sizes, True, noise, schedule)

    def step(self, step: int, batches: Sequence[clipping.AnyBatch]) -> None:
        """Take one logical step on all ranks."""
        super().step(step, batches)
        self._spread()

    def _take(self, batches: Sequence[clipping.AnyBatch]) -> None:
        sums = add_up(self._clipped(batch) for batch in batches)
        for name, parameter in self._parameters.items():
            total = sums.pop(parameter, None)
            total = torch.zeros_like(self._masters[name]) if total is None else total
            total = total.to(torch.float64).contiguous()
            collectives.add_up(total)
            self._noisy.hand_over(self._masters[name], total)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _spread(self) -> None:
        for name, parameter in self._parameters.items():
            if parameter is not self._masters[name]:
                parameter.copy_(self._masters[name])

    def state_dict(self) -> dict[str, Tensor]:
        """The trainable parameters by name, as the optimizer holds them."""
        return {name: master.detach().cpu().clone() for name, master in self._masters.items()}
