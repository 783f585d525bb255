"""Opacus computes the same clipped sums where weights are not tied, and is refused where they are."""

import pytest
import torch
from per_example_reference import lengths_of, row_losses, tiny_batch, tiny_model, unit_gradients
from torch import nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, ClippingKind, OpacusGradients
from rayprivacy.models.norms import Recorder

pytest.importorskip("opacus")


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic"])
@pytest.mark.parametrize("kind", ["gpt2_untied", "llama_untied", "gpt2_lora"])
def test_opacus_and_bookkeeping_agree(kind: str, clipping: ClippingKind) -> None:
    batch = tiny_batch(3)
    norm = lengths_of(unit_gradients(tiny_model(kind), batch)).median().item()
    ours, theirs = tiny_model(kind), tiny_model(kind)
    found = BookKeeping(ours, Clipping(norm, clipping))(lambda: row_losses(ours, batch), 3)
    other = OpacusGradients(theirs, Clipping(norm, clipping))(lambda: row_losses(theirs, batch), 3)
    for mine, his in zip(found.values(), other.values(), strict=True):
        torch.testing.assert_close(mine(), his(), rtol=1e-5, atol=1e-6 * norm, check_dtype=False)


def test_norms_by_parameter_agree_with_per_sample_gradients() -> None:
    from opacus.grad_sample import GradSampleModule

    model, batch = tiny_model("gpt2_untied"), tiny_batch()
    recorder = Recorder(model)
    with recorder.recording():
        losses = row_losses(model, batch)
    recorder.differentiate(losses)
    found = recorder.squared_norms(1).sqrt()
    samples = GradSampleModule(model, loss_reduction="sum")
    row_losses(samples, batch).sum().backward()
    expected = torch.stack([own.grad_sample.flatten(1).norm(dim=1) for own in recorder.parameters], 1)
    torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=1e-5 * expected.norm(dim=1).max().item())


def test_gradient_fields_stay_empty_and_units_of_nan_stay_out() -> None:
    model, batch = tiny_model("gpt2_untied"), tiny_batch()
    without = OpacusGradients(model, Clipping(0.5))
    sound = without(lambda: row_losses(model, batch.unit(0)), 1)
    factors = torch.tensor([1.0] + [float("nan")] * 5)
    found = without(lambda: row_losses(model, batch) * factors, 1)
    for mine, his in zip(found.values(), sound.values(), strict=True):
        torch.testing.assert_close(mine(), his())
    assert all(parameter.grad is None for parameter in model.parameters())
    dummy = without(lambda: row_losses(model, batch), 1, live=False)
    assert not any(value().any() for value in dummy.values())


def test_tied_weights_layers_with_buffers_and_what_opacus_cannot_see_are_refused() -> None:
    with pytest.raises(ConfigError, match="Embedding, Linear is tied"):
        OpacusGradients(tiny_model("gpt2"), Clipping(1.0))
    with pytest.raises(ConfigError, match="buffers"):
        OpacusGradients(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), Clipping(1.0))
    model, batch = tiny_model("gpt2_untied"), tiny_batch()
    gradients = OpacusGradients(model, Clipping(1.0))
    with pytest.raises(ConfigError, match="position_ids"):
        gradients(lambda: model(batch.ids).logits.sum((1, 2)), 1)
    with pytest.raises(ConfigError, match="one per row"):
        gradients(lambda: row_losses(model, batch).mean(), 1)


@pytest.mark.parametrize("training", [False, True])
def test_the_mode_of_the_model_makes_no_difference(training: bool) -> None:
    """Opacus records in training mode alone; models that train here are in the other one."""
    model, batch = tiny_model("gpt2_untied"), tiny_batch()
    gradients = OpacusGradients(model, Clipping(0.5))
    expected = [value() for value in gradients(lambda: row_losses(model, batch), 1).values()]
    model.train(training)
    found = [value() for value in gradients(lambda: row_losses(model, batch), 1).values()]
    assert all(torch.equal(mine, his) for mine, his in zip(found, expected, strict=True))
    assert torch.cat([each.flatten() for each in found]).any()


def test_a_pass_of_others_leaves_nothing_behind() -> None:
    model, batch = tiny_model("gpt2_untied"), tiny_batch()
    gradients = OpacusGradients(model, Clipping(0.5))
    expected = [value() for value in gradients(lambda: row_losses(model, batch), 1).values()]
    torch.autograd.grad(row_losses(model, batch).sum(), gradients.parameters)
    found = [value() for value in gradients(lambda: row_losses(model, batch), 1).values()]
    assert all(torch.equal(mine, his) for mine, his in zip(found, expected, strict=True))
