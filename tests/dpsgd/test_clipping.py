"""Coefficients: the definition of each kind, and what they bound."""

import math

import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.clipping import Clipping, ClippingKind

KINDS = ("flat", "per_layer", "automatic")


def _lengths(squared: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """Norms of clipped gradients whose parts have these squared norms."""
    columns = coefficients if coefficients.dim() == 2 else coefficients[:, None]
    return (squared.double() * columns.double().square()).sum(1).sqrt()


def test_flat_scales_down_what_is_longer_and_leaves_the_rest() -> None:
    found = Clipping(2.0).coefficients(torch.tensor([[9.0, 16.0], [1.0, 0.0], [0.0, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([0.4, 1.0, 1.0]))


def test_per_layer_shares_the_norm_among_the_parameters() -> None:
    found = Clipping(2.0, "per_layer").coefficients(torch.tensor([[16.0, 1.0, 0.0, 4.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.25, 1.0, 1.0, 0.5]]))


def test_automatic_scales_everything_to_about_the_norm() -> None:
    found = Clipping(2.0, "automatic").coefficients(torch.tensor([[9.0, 16.0], [1e-8, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([2 / 5.01, 2 / (1e-4 + 0.01)]))


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_is_left_longer_than_the_norm(kind: ClippingKind) -> None:
    random = torch.Generator().manual_seed(0)
    exponents = torch.rand(2000, 7, generator=random) * 40 - 20
    squared = 10.0**exponents
    lengths = _lengths(squared, Clipping(0.7, kind).coefficients(squared))
    assert lengths.max() <= 0.7
    assert lengths.max() > 0.69  # a norm that is never reached would waste noise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_unit_that_is_not_finite_in_one_parameter_is_out_of_all(kind: ClippingKind, bad: float) -> None:
    squared = torch.tensor([[1.0, 4.0], [bad, 4.0], [1.0, bad]])
    found = Clipping(1.0, kind).coefficients(squared)
    assert found[0].all()
    assert not found[1:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_low_precision_aims_one_percent_lower(kind: ClippingKind) -> None:
    squared = torch.tensor([[100.0, 400.0], [1e6, 1.0]])
    usual, lower = (_lengths(squared, Clipping(1.0, kind, low).coefficients(squared)) for low in (False, True))
    torch.testing.assert_close(lower / usual, torch.full((2,), 0.99, dtype=torch.float64), rtol=1e-2, atol=0)
    assert (lower <= 0.99).all()


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_a_norm_that_bounds_nothing_is_refused(norm: float) -> None:
    with pytest.raises(ConfigError, match="clipping_norm is"):
        Clipping(norm)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="use 'flat', 'per_layer' or 'automatic'"):
        Clipping(1.0, "median")  # type: ignore[arg-type]
