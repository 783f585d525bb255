"""A check before the first step: the gradient of one unit does not depend on the other units of its batch.

`batches` gives every unit a batch whose shape is a function of that unit alone. What is left is up to the machine and
the model: the kernels that run on this processor must treat all rows of a matrix alike, and no module may mix rows (a
mixture of experts, say, whose experts take as many tokens as all rows send them). A loss of the user's own may mix them
too, by a mean over the batch, say. So units of public tokens are computed three times, in batches of one shape: as the
first among some units, as the last among others of other lengths, and alone among rows of padding. All bits of the
gradient's norms must agree, and the gradient of padding must be zero. Two shapes are tried, the one with the most rows
and the longest that has more than one row: a longer unit fills a batch alone, where nothing can be mixed with it. That
is no proof for all shapes, nor for all losses; the tests go through many.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.models.norms import Recorder
from rayprivacy.models.repeatable import has_no_repeatable_kernel

_SEED, _PAD = 0, 0  # public, like the tokens
_SHORT = 8  # the least width of a batch, hence the most rows


def check_independence(model: Any, losses: Callable[[Any, Batch], Tensor], tokens: int, batch_tokens: int) -> None:
    """Compute the gradient of a unit among others, among different ones and alone, and compare all bits.

    Args:
        model: with `requires_grad` set.
        losses: forward pass of a batch, one loss for each row.
        tokens: length of the longest documents.
        batch_tokens: of a physical batch.

    Raises:
        ConfigError: the gradient differs, or would differ from time to time, or a module cannot be clipped.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    draw = partial(np.random.default_rng(_SEED).integers, 0, vocabulary)
    for length in {min(max(2, tokens), most) for most in (_SHORT, max(_SHORT, batch_tokens // 2))}:
        first, last, alone = (_norms(model, losses, batch) for batch in _companies(draw, length, batch_tokens))
        agree = torch.equal(first[0], last[-1]) and torch.equal(first[0], alone[0])
        if not agree or alone[1:].any():
            raise ConfigError(
                "on this machine the gradient of one user depends on the others in the batch, which the noise does not"
                " hide: set resources.batch_tokens to 8, so that each is computed alone, or choose another model.base;"
                " a loss of your own must compute each row's loss from that row alone."
            )


def check_memory(model: Any) -> None:
    """Refuse a model that remembers what it has read from one batch to the next.

    Raises:
        ConfigError: its positions are turned by frequencies that follow the longest text so far (dynamic RoPE).
    """
    if any("dynamic" in str(getattr(module, "rope_type", "")) for module in model.modules()):
        raise ConfigError(
            "model.base has rope_type 'dynamic': it remembers the longest text that it has read, so that one user's"
            " text would change the gradients of all others: choose another model.base, or another rope_scaling."
        )


def _companies(draw: Callable[[int], Any], length: int, batch_tokens: int) -> tuple[Batch, Batch, Batch]:
    """A unit of drawn tokens as the first of one full batch, as the last of another, and alone among padding."""

    def unit(tokens: int = length) -> list[Document]:
        return [Document(draw(tokens).astype(np.int32), 1)]

    def batch(units: list[list[Document]]) -> Batch:
        return physical_batches(units, batch_tokens, _PAD)[0]

    own = unit()
    alone = batch([own])
    others = len(alone.ids) - 1  # of one shape with `own`; sorting keeps their order
    shorter = range(max(2, alone.ids.shape[1] - _SHORT + 1), length + 1)
    different = [unit(shorter[at % len(shorter)]) for at in range(others)]
    return batch([own, *(unit() for _ in range(others))]), batch([*different, own]), alone


def _norms(model: Any, losses: Callable[[Any, Batch], Tensor], batch: Batch) -> Tensor:
    """Norms of every row's gradient by each parameter, [rows, parameters]."""
    tape = Recorder(model)
    try:
        with tape.recording():
            values = losses(model, batch)
        tape.differentiate(values)
        return tape.squared_norms(1)
    except RuntimeError as error:
        if not has_no_repeatable_kernel(error):
            raise
    raise ConfigError(
        "the model or its loss uses an operation that gives other bits each time on this GPU, which the noise does not"
        " hide: choose another model.base or loss, or set resources.gpu to false."
    )
