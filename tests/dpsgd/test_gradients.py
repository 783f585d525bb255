"""Clipped sums from one backward pass against the same sums unit by unit in float64."""

import pytest
import torch
from per_example_reference import (
    FULL,
    LORA,
    clipped_sum,
    lengths_of,
    row_losses,
    tiny_batch,
    tiny_model,
    unit_gradients,
)
from torch import Tensor, nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, ClippingKind, Lazy
from rayprivacy.models.norms import Recorder

TOLERANCE = 1e-5


def _by_name(model: nn.Module, lazy: Lazy) -> dict[str, Tensor]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: value() for parameter, value in lazy.items()}


def _assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    assert found.keys() == expected.keys()
    whole = torch.stack([part.norm() for part in expected.values()]).norm()
    for name, part in expected.items():
        assert found[name].dtype in (torch.float32, torch.float64)
        assert found[name].shape == part.shape
        error = (found[name].double() - part).norm()
        # A part that is tiny beside the whole (a key bias has no gradient at all) has only the whole's precision.
        assert error <= tolerance * max(part.norm(), 1e-2 * whole), name


CLIPPINGS = [
    *((kind, "flat", rows) for kind in FULL + LORA for rows in (1, 3)),
    *((kind, clipping, 2) for kind in ("gpt2", "llama_lora") for clipping in ("per_layer", "automatic")),
]


@pytest.mark.parametrize(("kind", "clipping", "rows_per_unit"), CLIPPINGS)
def test_clipping_is_its_definition(kind: str, clipping: ClippingKind, rows_per_unit: int) -> None:
    model, batch = tiny_model(kind), tiny_batch(rows_per_unit)
    units = unit_gradients(model, batch)
    rule = Clipping(lengths_of(units).median().item(), clipping)
    found = BookKeeping(model, rule)(lambda: row_losses(model, batch), rows_per_unit)
    _assert_close(_by_name(model, found), clipped_sum(units, rule))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "llama_lora"])
def test_norms_by_parameter_are_those_of_the_sum_of_all_uses(kind: str) -> None:
    model, batch = tiny_model(kind), tiny_batch(3)
    recorder = Recorder(model)
    with recorder.recording():
        losses = row_losses(model, batch)
    recorder.differentiate(losses)
    found = recorder.squared_norms(3).double().sqrt()
    units = unit_gradients(model, batch)
    expected = torch.stack([torch.stack([part.norm() for part in unit.values()]) for unit in units])
    floor = 1e-3 * expected.norm(dim=1, keepdim=True)
    assert (found - expected).abs().div(expected.maximum(floor)).max() < TOLERANCE


def test_a_tied_weight_is_more_than_its_uses() -> None:
    """The test above would pass for a batch whose uses of the tied weight have nothing in common; this one has much."""
    model, other, batch = tiny_model("llama"), tiny_model("llama_untied"), tiny_batch()
    other.load_state_dict(model.state_dict())
    tied, untied = unit_gradients(model, batch), unit_gradients(other, batch)
    name = "model.embed_tokens.weight"
    apart = [(unit[name].norm() ** 2 + unit["lm_head.weight"].norm() ** 2).sqrt() for unit in untied]
    ratios = [unit[name].norm() / own for unit, own in zip(tied, apart, strict=True)]
    assert max(abs(ratio - 1) for ratio in ratios) > 1e-3


@pytest.mark.parametrize("kind", ["gpt2", "llama_lora"])
def test_activation_checkpointing_changes_nothing(kind: str) -> None:
    model, batch = tiny_model(kind), tiny_batch()
    clipping = Clipping(0.5)
    plain = _by_name(model, BookKeeping(model, clipping)(lambda: row_losses(model, batch), 1))
    model.activation_checkpointing_enable({"use_reentrant": False})
    if kind.endswith("lora"):
        model.enable_input_require_grads()
    again = _by_name(model, BookKeeping(model, clipping)(lambda: row_losses(model, batch), 1))
    _assert_close(again, {name: value.double() for name, value in plain.items()}, 1e-6)


def test_bfloat16_autocast_sums_in_float32_and_stays_below_the_norm() -> None:
    model, batch = tiny_model("gpt2"), tiny_batch()
    units = unit_gradients(model, batch)
    clipping = Clipping(0.5 * lengths_of(units).min().item(), low_precision=True)

    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return row_losses(model, batch)

    keeping = BookKeeping(model, clipping)
    found = _by_name(model, keeping(losses, 1))
    _assert_close(found, clipped_sum(units, clipping), 0.05)
    for index in range(batch.units):
        own = batch.unit(index)
        with torch.autocast("cpu", torch.bfloat16):  # the sums must not be cast even where everything runs inside
            alone = keeping(lambda own=own: row_losses(model, own), 1)
            parts = [value().double() for value in alone.values()]
        assert torch.stack([part.norm() for part in parts]).norm() <= clipping.norm


def test_gradient_hooks_and_grad_fields_stay_untouched() -> None:
    model, batch = tiny_model("gpt2"), tiny_batch()
    fired: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    lazy = BookKeeping(model, Clipping(1.0))(lambda: row_losses(model, batch), 1)
    for value in lazy.values():
        value()
    assert not fired
    assert all(parameter.grad is None for parameter in model.parameters())


def test_every_sum_is_handed_out_once() -> None:
    model, batch = tiny_model("gpt2_lora"), tiny_batch()
    lazy = BookKeeping(model, Clipping(1.0))(lambda: row_losses(model, batch), 1)
    first = next(iter(lazy.values()))
    first()
    with pytest.raises(IndexError):
        first()


def test_a_dummy_batch_contributes_zeros_of_the_right_shape() -> None:
    model, batch = tiny_model("gpt2"), tiny_batch()
    keeping = BookKeeping(model, Clipping(1.0))
    lazy = keeping(lambda: row_losses(model, batch), 1, live=False)
    assert list(lazy) == keeping.parameters
    for parameter, value in lazy.items():
        assert torch.equal(value(), torch.zeros_like(parameter))


def test_a_row_of_nan_contributes_nothing() -> None:
    model, batch = tiny_model("gpt2"), tiny_batch()
    units = unit_gradients(model, batch)
    factors = torch.ones(len(batch.ids))
    factors[2] = float("nan")
    for kind in ("flat", "per_layer", "automatic"):
        clipping = Clipping(0.5, kind)
        found = BookKeeping(model, clipping)(lambda: row_losses(model, batch) * factors, 1)
        _assert_close(_by_name(model, found), clipped_sum(units[:2] + units[3:], clipping))


def test_position_ids_that_are_shared_by_the_rows_are_refused() -> None:
    model, batch = tiny_model("gpt2"), tiny_batch()
    with pytest.raises(ConfigError, match="position_ids"):
        BookKeeping(model, Clipping(1.0))(lambda: model(batch.ids, labels=None).logits.sum((1, 2)), 1)


def test_losses_must_be_one_per_row_of_complete_units() -> None:
    model, batch = tiny_model("gpt2"), tiny_batch()
    keeping = BookKeeping(model, Clipping(1.0))
    with pytest.raises(ConfigError, match="one loss per row"):
        keeping(lambda: row_losses(model, batch).mean(), 1)
    with pytest.raises(ConfigError, match="rows_per_unit is 4"):
        keeping(lambda: row_losses(model, batch), 4)
    with pytest.raises(ConfigError, match="no trainable module ran"):
        keeping(lambda: torch.zeros(6, requires_grad=True), 1)
