"""A loss that carries nothing from one batch to the next: a copy of it for every batch, under public seeds.

One unit may change the sum of a step by its own clipped gradient and by nothing else. A loss of the user's own is any
function, and may keep what it has seen (a running mean, say), which would scale the gradients of all who come later.
`independence` refuses a loss that is seen to do so; here the means are taken away: each batch is computed by a copy,
fresh from the pickle with which the loss came, and torch draws under one public seed for all batches. What a loss keeps
in a module that it imports is out of reach of both.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from ray import cloudpickle
from torch import Tensor

from rayprivacy.dpsgd.batches import Batch

_SEED = 0  # public, and the same for every batch: where a batch stands among the others depends on others


class FreshLoss:
    """Losses of batches, each by a copy of its own of the function, which is anything that Ray can pickle."""

    def __init__(self, losses: Callable[[Any, Batch], Tensor]) -> None:
        self._pickle = cloudpickle.dumps(losses)

    def copy(self) -> Callable[[Any, Batch], Tensor]:
        """A loss that has seen nothing yet."""
        return cast(Callable[[Any, Batch], Tensor], cloudpickle.loads(self._pickle))

    def __call__(self, model: Any, batch: Batch) -> Tensor:
        """The losses of a batch, [rows]."""
        with seeded(_SEED, next(model.parameters()).device):
            return self.copy()(model, batch)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let torch draw under a public seed, on the CPU and the device, and go on where it was afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
