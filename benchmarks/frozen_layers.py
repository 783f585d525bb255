"""What the frozen layers of a model make of a batch, kept between trainings that read the same batches.

With LoRA in the last layers, the first ones compute the same of the same batch, to the bit. Rows of a table that share
users and coins meet the same batches again, and are spared that part: its inputs never depend on what is trained.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class FrozenLayers:
    """The outputs of a model's first layers by batch, [rows, width, hidden] each, in memory."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._kept: dict[bytes, torch.Tensor] = {}
        self._batch = b""

    @contextmanager
    def of(self, model: Any) -> Iterator[None]:
        """Keep what the first layers of a causal model make, or take it from what is kept, while this is open."""
        layers = model.get_base_model().base_model.layers[: self._layers]
        try:
            for at, layer in enumerate(layers):
                layer.forward = self._instead_of(layer.forward, last=at == len(layers) - 1)
            yield
        finally:
            for layer in layers:
                del layer.forward  # the method of its class is there again

    def watching(self, losses: Callable[[Any, Any], torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
        """Losses that say which batch the layers are about to read."""

        def watched(model: Any, batch: Any) -> torch.Tensor:
            self._batch = str(batch.ids.shape).encode() + batch.ids.numpy().tobytes()
            return losses(model, batch)

        return watched

    def _instead_of(self, forward: Callable[..., torch.Tensor], last: bool) -> Callable[..., torch.Tensor]:
        def layer(states: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
            if self._batch not in self._kept:
                made = forward(states, *given, **named)
                if last:
                    self._kept[self._batch] = made.detach()
                return made
            return self._kept[self._batch] if last else states

        return layer
