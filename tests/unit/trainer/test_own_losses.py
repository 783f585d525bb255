"""Losses of the user's own: what may be one, and which are refused because they mix the rows of a batch."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch, dummy_batch
from rayprivacy.dpsgd.independence import check_independence
from rayprivacy.dpsgd.losses import own_losses, row_losses
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable

Loss = Callable[[Any, Batch], Any]


@pytest.fixture(scope="module")
def model(tiny_backbone):
    found = trainable(tiny_backbone, AdapterConfig())
    for name, parameter in found.named_parameters():
        if "lora_B" in name:  # zero at the start, and the gradients of A with them
            parameter.data.normal_(0, 0.05)
    return found


def _check(model, loss, tokens=12, batch_tokens=64):
    check_independence(model, lambda model, batch: own_losses(model, batch, loss), tokens, batch_tokens)


ALONE: dict[str, Loss] = {
    "own": row_losses,
    "squared": lambda model, batch: row_losses(model, batch) ** 2,
    # Its rows of padding would add gradients, whose number is that of the units that were not sampled.
    "all tokens": lambda model, batch: model(input_ids=batch.ids, use_cache=False).logits.logsumexp(-1).mean(1),
}


@pytest.mark.parametrize("loss", ALONE.values(), ids=ALONE)
def test_a_loss_of_each_row_alone_is_taken(model, loss):
    _check(model, loss)
    assert own_losses(model, dummy_batch(0), loss).tolist() == [0.0], "padding has no loss"


class _Running:
    """A loss that is scaled by what it saw before."""

    def __init__(self):
        self.seen = 1.0

    def __call__(self, model, batch):
        own = row_losses(model, batch)
        self.seen = 0.9 * self.seen + 0.1 * own.sum().item()
        return own / self.seen


MIXED: dict[str, Loss] = {
    "mean over the batch": lambda model, batch: row_losses(model, batch) / (batch.weights > 0).sum(),
    "mean over rows with text": lambda model, batch: row_losses(model, batch) / batch.weights.any(1).sum(),
    "contrast": lambda model, batch: (own := row_losses(model, batch)) - own.mean(),
    "running": _Running(),
    "chance": lambda model, batch: row_losses(model, batch) * torch.rand(len(batch.ids)),
    # Units of other lengths may share a batch with a unit, if they are padded to the same width.
    "lengths": lambda model, batch: row_losses(model, batch) * (batch.weights > 0).sum(1).float().var(),
}
NO_ROWS = (lambda model, batch: row_losses(model, batch).mean(), lambda model, batch: 1.0)


@pytest.mark.parametrize("loss", [*MIXED.values(), *NO_ROWS], ids=[*MIXED, "mean", "constant"])
def test_a_loss_that_is_no_number_of_each_row_alone_is_refused(model, loss):
    said = "one number per row" if loss in NO_ROWS else r"depends on the others in the batch.*a loss of your own must"
    with pytest.raises(ConfigError, match=said):
        _check(model, loss)


def test_units_that_are_computed_alone_cannot_be_mixed(model):
    _check(model, MIXED["mean over the batch"], batch_tokens=8)


@pytest.mark.parametrize("low", [False, True])
def test_the_models_own_loss_is_the_same_as_the_users(tiny_backbone, low):
    half = replace(tiny_backbone, model=deepcopy(tiny_backbone.model).to(torch.bfloat16)) if low else tiny_backbone
    adapted = trainable(half, AdapterConfig())
    ids = torch.arange(24).reshape(2, 12)
    batch = Batch(ids, torch.full((2, 12), 0.1).index_fill(1, torch.tensor([0]), 0.0), 1)
    ours = row_losses(adapted, batch, low_precision=low)
    assert torch.equal(own_losses(adapted, batch, row_losses, low), ours)
    assert ours.dtype == torch.float32
