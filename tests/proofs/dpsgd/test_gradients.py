"""Clipped sums from one backward pass against the same sums unit by unit in float64: coefficients, gradients, steps."""

import math
from functools import partial

import engine_cases
import pytest
import torch
from engine_cases import KINDS, VOCABULARY, clipped_sum, lengths_of, losses, unit_gradients
from torch import nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, ClippingKind, OpacusGradients
from rayprivacy.dpsgd.optimizer import Schedule, make_optimizer
from rayprivacy.dpsgd.settings import OptimizerConfig

TOKENS, ROWS = 12, 6
CLIPPINGS: tuple[ClippingKind, ...] = ("flat", "per_layer", "automatic")
EACH = pytest.mark.parametrize("kind", CLIPPINGS)
UNTIED = ("gpt2_untied", "llama_untied", "gpt2_lora")


def tiny_model(kind):
    """One of the models of engines, with weights all of which matter: no zero biases, and no gains of 1."""
    with torch.random.fork_rng(devices=[]):
        model = engine_cases.tiny_model(kind, seed=11)
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def _batch(rows_per_unit=1):
    """Rows of several lengths with repeated tokens, whose units' weights sum to 1."""
    random = torch.Generator().manual_seed(5)
    ids = torch.randint(1, VOCABULARY - 1, (ROWS, TOKENS), generator=random)
    ids[:, ::3] = ids[:, :1]
    held = torch.arange(TOKENS) < torch.randint(4, TOKENS + 1, (ROWS, 1), generator=random)
    weights = torch.rand(ROWS, TOKENS, generator=random) * held
    weights[:, 0] = 0
    by_unit = weights.view(-1, rows_per_unit * TOKENS)
    weights = (by_unit / by_unit.sum(1, keepdim=True)).view(ROWS, TOKENS)
    return Batch(ids.where(held, engine_cases.PAD), weights, rows_per_unit)


def _units(batch):
    parts = (each.split(batch.rows_per_unit) for each in (batch.ids, batch.weights))
    return [Batch(ids, weights, batch.rows_per_unit) for ids, weights in zip(*parts, strict=True)]


def _sums(model, lazy):
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: value() for parameter, value in lazy.items()}


def _assert_close(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    whole = torch.stack([part.norm() for part in expected.values()]).norm()
    for name, part in expected.items():
        assert found[name].dtype in (torch.float32, torch.float64)
        assert found[name].shape == part.shape
        error = (found[name].double() - part).norm()
        # A part that is tiny beside the whole (a key bias has no gradient at all) has only the whole's precision.
        assert error <= tolerance * max(part.norm(), 1e-2 * whole), name


@pytest.mark.parametrize(
    ("kind", "clipping", "rows_per_unit", "make"),
    [
        *((kind, "flat", rows, BookKeeping) for kind in (*KINDS, *UNTIED[:2]) for rows in (1, 3)),
        *(
            (kind, "per_layer", 3, BookKeeping) for kind in ("gpt2", "llama", "bert", "llama_lora")
        ),  # norms by parameter
        *((kind, "automatic", 2, BookKeeping) for kind in ("gpt2", "llama_lora")),
        *((kind, clipping, 3, OpacusGradients) for kind in UNTIED for clipping in CLIPPINGS),
    ],
)
def test_clipping_is_its_definition(kind, clipping, rows_per_unit, make):
    model, batch = tiny_model(kind), _batch(rows_per_unit)
    units = unit_gradients(model, _units(batch))
    rule = Clipping(lengths_of(units).median().item(), clipping)
    found = make(model, rule)(lambda: losses(model, batch), rows_per_unit)
    _assert_close(_sums(model, found), clipped_sum(units, rule))


def test_a_tied_weight_is_more_than_its_uses():
    """The test above would pass for a batch whose uses of the tied weight have nothing in common; this one has much."""
    model, other, batches = tiny_model("llama"), tiny_model("llama_untied"), _units(_batch())
    other.load_state_dict(model.state_dict())
    tied, untied = unit_gradients(model, batches), unit_gradients(other, batches)
    name = "model.embed_tokens.weight"
    apart = [(unit[name].norm() ** 2 + unit["lm_head.weight"].norm() ** 2).sqrt() for unit in untied]
    assert max(abs(unit[name].norm() / own - 1) for unit, own in zip(tied, apart, strict=True)) > 1e-3


@pytest.mark.parametrize("kind", ["gpt2", "llama_lora"])
def test_activation_checkpointing_changes_nothing(kind):
    model, batch = tiny_model(kind), _batch()
    keeping = BookKeeping(model, Clipping(0.5))
    plain = _sums(model, keeping(lambda: losses(model, batch), 1))
    model.activation_checkpointing_enable({"use_reentrant": False})
    if kind.endswith("lora"):
        model.enable_input_require_grads()
    again = _sums(model, keeping(lambda: losses(model, batch), 1))
    _assert_close(again, {name: value.double() for name, value in plain.items()}, 1e-6)


def test_bfloat16_autocast_sums_in_float32_and_stays_below_the_norm():
    model, batch = tiny_model("gpt2"), _batch()
    units = unit_gradients(model, _units(batch))
    clipping = Clipping(0.5 * lengths_of(units).min().item(), low_precision=True)
    keeping = BookKeeping(model, clipping)
    _assert_close(_sums(model, keeping(lambda: losses(model, batch, half=True), 1)), clipped_sum(units, clipping), 0.05)
    for own in _units(batch):
        with torch.autocast("cpu", torch.bfloat16):  # the sums must not be cast even where everything runs inside
            alone = keeping(lambda own=own: losses(model, own, half=True), 1)
            parts = [value().double() for value in alone.values()]
        assert torch.stack([part.norm() for part in parts]).norm() <= clipping.norm


def test_gradient_hooks_and_grad_fields_stay_untouched_and_every_sum_is_handed_out_once():
    model, batch = tiny_model("gpt2"), _batch()
    fired: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    lazy = BookKeeping(model, Clipping(1.0))(lambda: losses(model, batch), 1)
    for value in lazy.values():
        value()
    assert not fired
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(IndexError):
        next(iter(lazy.values()))()


MAKERS = [("gpt2", BookKeeping), ("gpt2_untied", OpacusGradients)]


@pytest.mark.parametrize(("kind", "make"), MAKERS)
def test_a_dummy_batch_contributes_zeros_of_the_right_shape(kind, make):
    model, batch = tiny_model(kind), _batch()
    gradients = make(model, Clipping(1.0))
    lazy = gradients(lambda: losses(model, batch), 1, live=False)
    assert list(lazy) == gradients.parameters
    assert all(torch.equal(value(), torch.zeros_like(parameter)) for parameter, value in lazy.items())


@pytest.mark.parametrize(("kind", "make"), MAKERS)
def test_a_row_of_nan_contributes_nothing(kind, make):
    model, batch = tiny_model(kind), _batch()
    units = unit_gradients(model, _units(batch))
    factors = torch.ones(ROWS)
    factors[2] = float("nan")
    for clipping in CLIPPINGS if make is BookKeeping else CLIPPINGS[:1]:
        rule = Clipping(0.5, clipping)
        found = make(model, rule)(lambda: losses(model, batch) * factors, 1)
        _assert_close(_sums(model, found), clipped_sum(units[:2] + units[3:], rule))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("kind", "make"), MAKERS)
def test_losses_must_be_one_per_row_of_complete_units_that_share_nothing(kind, make):
    model, batch = tiny_model(kind), _batch()
    gradients = make(model, Clipping(1.0))
    shared = lambda: model(batch.ids).logits.sum((1, 2))  # noqa: E731 - position_ids of all rows alike
    for own, rows, said in (
        (shared, 1, "position_ids"),
        (lambda: losses(model, batch).mean(), 1, "one (loss )?per row"),
        (partial(losses, model, batch), 4, "rows_per_unit is 4"),
        (lambda: torch.zeros(ROWS, requires_grad=True), 1, "no trainable module ran"),
    )[: 4 if make is BookKeeping else 2]:
        with pytest.raises(ConfigError, match=said):
            gradients(own, rows)


def test_tied_weights_and_layers_with_buffers_are_refused_by_opacus():
    with pytest.raises(ConfigError, match="Embedding, Linear is tied"):
        OpacusGradients(tiny_model("gpt2"), Clipping(1.0))
    with pytest.raises(ConfigError, match="buffers"):
        OpacusGradients(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), Clipping(1.0))


def test_neither_the_mode_of_the_model_nor_a_pass_of_others_makes_a_difference_to_opacus():
    """It records in training mode alone; models that train here are in the other one."""
    model, batch = tiny_model("gpt2_untied"), _batch()
    gradients = OpacusGradients(model, Clipping(0.5))

    def found():
        return torch.cat([value().flatten() for value in gradients(lambda: losses(model, batch), 1).values()])

    expected = found()
    assert expected.any()
    for training in (False, True):
        model.train(training)
        assert torch.equal(found(), expected)
    torch.autograd.grad(losses(model, batch).sum(), gradients.parameters)
    assert torch.equal(found(), expected)


def _lengths(squared, coefficients):
    """Norms of clipped gradients whose parts have these squared norms."""
    columns = coefficients if coefficients.dim() == 2 else coefficients[:, None]
    return (squared.double() * columns.double().square()).sum(1).sqrt()


@pytest.mark.parametrize(
    ("kind", "squared", "expected"),
    [
        ("flat", [[9.0, 16.0], [1.0, 0.0], [0.0, 0.0]], [0.4, 1.0, 1.0]),
        ("per_layer", [[16.0, 1.0, 0.0, 4.0]], [[0.25, 1.0, 1.0, 0.5]]),
        ("automatic", [[9.0, 16.0], [1e-8, 0.0]], [2 / 5.01, 2 / (1e-4 + 0.01)]),
    ],
)
def test_coefficients_are_the_definition_of_each_kind(kind, squared, expected):
    torch.testing.assert_close(Clipping(2.0, kind).coefficients(torch.tensor(squared)), torch.tensor(expected))


@EACH
def test_no_gradient_is_left_longer_than_the_norm(kind):
    squared = 10.0 ** (torch.rand(2000, 7, generator=torch.Generator().manual_seed(0)) * 40 - 20)
    lengths = _lengths(squared, Clipping(0.7, kind).coefficients(squared))
    assert 0.69 < lengths.max() <= 0.7  # a norm that is never reached would waste noise


@EACH
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_unit_that_is_not_finite_in_one_parameter_is_out_of_all(kind, bad):
    found = Clipping(1.0, kind).coefficients(torch.tensor([[1.0, 4.0], [bad, 4.0], [1.0, bad]]))
    assert found[0].all()
    assert not found[1:].any()


@EACH
def test_low_precision_aims_one_percent_lower(kind):
    squared = torch.tensor([[100.0, 400.0], [1e6, 1.0]])
    usual, lower = (_lengths(squared, Clipping(1.0, kind, low).coefficients(squared)) for low in (False, True))
    torch.testing.assert_close(lower / usual, torch.full((2,), 0.99, dtype=torch.float64), rtol=1e-2, atol=0)
    assert (lower <= 0.99).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(((norm,), "clipping_norm is") for norm in (0.0, -1.0, math.nan, math.inf)),
        ((1.0, "median"), "use 'flat', 'per_layer' or 'automatic'"),
    ],
)
def test_what_bounds_nothing_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        Clipping(*given)


def _rates(steps, kind):
    schedule = Schedule(OptimizerConfig(learning_rate=2.0, schedule=kind), steps)
    return [schedule.rate(step) for step in range(steps)]


def test_rates_stay_or_fall_to_zero_one_step_after_the_last():
    assert _rates(4, "constant") == [2.0] * 4
    assert _rates(4, "linear") == [2.0, 1.5, 1.0, 0.5]
    rates = _rates(10, "cosine")
    assert (rates[0], rates) == (2.0, sorted(rates, reverse=True))
    assert math.isclose(rates[5], 1.0)
    assert 0 < rates[-1] < 0.1
    with pytest.raises(ConfigError, match="learning_rate is not set"):
        Schedule(OptimizerConfig(), 10)


def test_optimizers_are_those_of_torch():
    shape = {"learning_rate": 0.1, "momentum": 0.5, "weight_decay": 1.0}
    sgd = make_optimizer(OptimizerConfig(kind="sgd", **shape), [torch.zeros(1)])
    assert (type(sgd), sgd.defaults["momentum"], sgd.defaults["weight_decay"]) == (torch.optim.SGD, 0.5, 1.0)
    adamw = make_optimizer(OptimizerConfig(learning_rate=0.1, weight_decay=1.0), [torch.zeros(1)])
    assert (type(adamw), adamw.defaults["weight_decay"]) == (torch.optim.AdamW, 1.0)
