"""The loss of a row is that of its own tokens, whichever way its logits are computed."""

from typing import Any

import numpy as np
import pytest
import torch

from rayprivacy.dpsgd import losses
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable


@pytest.fixture
def batch(tiny_backbone: Backbone) -> Batch:
    """Three units of two documents, of different lengths, with some context in front."""
    draw = np.random.default_rng(0)
    units = [[Document(draw.integers(0, 400, size=length).astype(np.int32), 4) for length in (9, 14)] for _ in range(3)]
    return physical_batches(units, 128, tiny_backbone.end)[0]


def _by_hand(model: Any, batch: Batch) -> torch.Tensor:
    logits = model(input_ids=batch.ids, use_cache=False).logits.double().log_softmax(-1)
    found = torch.zeros(len(batch.ids), dtype=torch.float64)
    for row, ids in enumerate(batch.ids.tolist()):
        for place in range(1, len(ids)):
            found[row] -= float(batch.weights[row, place]) * logits[row, place - 1, ids[place]]
    return found


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_losses_are_weighted_likelihoods_of_the_row_alone_and_both_ways_have_the_same_gradients(
    kind: Any, batch: Batch, tiny_backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trainable(tiny_backbone, AdapterConfig(kind=kind))
    trained, gradients = [each for each in model.parameters() if each.requires_grad], []
    for family in ("llama", "unheard-of"):
        monkeypatch.setattr(losses, "PLAIN_HEADS", (family,))
        found = losses.row_losses(model, batch)
        torch.testing.assert_close(found.double(), _by_hand(model, batch), rtol=1e-4, atol=1e-5)
        alone = Batch(batch.ids[2:4], batch.weights[2:4], batch.rows_per_unit)
        torch.testing.assert_close(losses.row_losses(model, alone), found[2:4], rtol=1e-4, atol=1e-5)
        gradients.append(torch.autograd.grad(found.sum(), trained))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
    low = losses.row_losses(model, batch, low_precision=True)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, found, rtol=0.05, atol=0.05)


def test_a_frozen_head_meets_one_shape_whoever_is_in_the_batch(
    batch: Batch, tiny_backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many tokens carry loss depends on everybody, and the shape of a product decides how it is rounded."""
    monkeypatch.setattr(losses, "HEAD_ROWS", 8)
    model = trainable(tiny_backbone, AdapterConfig())
    shapes = set()
    model.get_base_model().get_output_embeddings().register_forward_pre_hook(lambda _, args: shapes.add(args[0].shape))
    for rows in (slice(None), slice(2, 4), slice(1)):
        losses.row_losses(model, Batch(batch.ids[rows], batch.weights[rows], batch.rows_per_unit))
    assert len(shapes) == 1
