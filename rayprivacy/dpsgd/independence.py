"""A check before the first step: the gradient of one unit does not depend on the other units of its batch.

`batches` gives every unit a batch whose shape is a function of that unit alone. What is left is up to the machine and
the model: the kernels that run on this processor must treat all rows of a matrix alike, and no module may mix rows (a
mixture of experts, say, whose experts take as many tokens as all rows send them). So one unit of public tokens is
computed twice, in two batches of one shape: as the first among some units, then as the last among others. All bits of
its gradient's norms must agree. That is a check of one shape, not a proof for all; the tests go through many.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.models.norms import Tape

_SEED, _PAD = 0, 0  # public, like the tokens


def check_independence(model: Any, losses: Callable[[Any, Batch], Tensor], tokens: int, batch_tokens: int) -> None:
    """Compute one unit in two companies.

    Args:
        model: with `requires_grad` set.
        losses: forward pass of a batch, one loss for each row.
        tokens: length of the unit's only document.
        batch_tokens: of a physical batch.

    Raises:
        ConfigError: the gradient differs, or a module cannot be clipped.
    """
    random = np.random.default_rng(_SEED)
    vocabulary = model.get_input_embeddings().num_embeddings

    def unit() -> list[Document]:
        return [Document(random.integers(0, vocabulary, max(2, tokens)).astype(np.int32), 1)]

    def batch(units: list[list[Document]]) -> Batch:
        return physical_batches(units, batch_tokens, _PAD)[0]

    own = unit()
    others = len(batch([own]).ids) - 1  # of one shape with `own`; sorting keeps their order
    first, last = batch([own, *(unit() for _ in range(others))]), batch([*(unit() for _ in range(others)), own])
    if not torch.equal(_norms(model, losses, first)[0], _norms(model, losses, last)[-1]):
        raise ConfigError(
            "on this machine the gradient of one user depends on who else is in the batch, which the noise does not"
            " hide: set resources.batch_tokens to 8, so that each is computed alone, or choose another model.base."
        )


def _norms(model: Any, losses: Callable[[Any, Batch], Tensor], batch: Batch) -> Tensor:
    """Norms of every row's gradient by each parameter, [rows, parameters]."""
    tape = Tape(model)
    with tape.recording():
        values = losses(model, batch)
    tape.differentiate(values)
    return tape.squared_norms(1)
