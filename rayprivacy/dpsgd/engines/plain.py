"""Steps in plain PyTorch: on one rank, or on several that all hold the whole model.

Every rank adds up the clipped gradients of its own users, and all ranks add up their sums in float64. Each then adds
the same keyed noise and takes the same step, so weights stay equal without being sent. Parameters in less than float32
have float32 masters, which the optimizer updates, so that small steps are not rounded away.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.batches import Batch
from rayprivacy.dpsgd.clipping import ClippedGradients, MicroBatch
from rayprivacy.dpsgd.engines.noisy_optimizer import Engine, NoisyOptimizer, StepNoise
from rayprivacy.dpsgd.engines.state import trainable_parameters, whole
from rayprivacy.dpsgd.engines.zero import add_up
from rayprivacy.dpsgd.optimizer import Schedule, make_optimizer


class PlainEngine(Engine):
    """An engine without DeepSpeed; every rank starts from the weights of rank 0."""

    def __init__(
        self,
        model: Any,
        gradients: ClippedGradients,
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

    def step(self, step: int, batches: Sequence[Batch | MicroBatch]) -> None:
        """Take one logical step on all ranks."""
        super().step(step, batches)
        self._spread()

    def _take(self, batches: Sequence[Batch | MicroBatch]) -> None:
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
