"""Figures from noisy sums: what a unit hands in is bounded, and intervals hold what there is without noise."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.evaluation.fidelity import total_variation
from rayprivacy.evaluation.shown import COUNT, Distance, Layout, Mean, Perplexity

SYNTHETIC = (0.5, 0.3, 0.2, 0.0)
LAYOUT = Layout((Perplexity("perplexity", 1.0, 8.0), Distance("lengths", 1.0, SYNTHETIC), Mean("copied", 0.25)))
DRAWS = 150
_value = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 8.0, -1.0, 1e300]))
_counts = st.lists(st.integers(0, 10**9), min_size=4, max_size=4)


@given(_value, _counts, _value)
def test_no_vector_is_longer_than_one(loss, counts, copied):
    vector = LAYOUT.vector([loss, counts, copied])
    assert vector.shape == (LAYOUT.cells,) == (7,)
    assert np.linalg.norm(vector) <= 1 + 1e-12


def test_losses_are_clipped_and_what_is_no_number_counts_as_the_bound():
    loss = LAYOUT.parts[0]
    assert [loss.coordinates(x)[0] for x in (-5.0, 0.0, 4.0, 8.0, 9.0, math.inf, math.nan, -math.inf)] == [
        -1, -1, 0, 1, 1, 1, 1, 1,
    ]  # fmt: skip


def test_a_user_weighs_the_same_however_much_they_wrote():
    few, many = (LAYOUT.vector([3.0, counts, 0.0]) for counts in ([1, 1, 0, 0], [1000, 1000, 0, 0]))
    assert np.array_equal(few, many)
    assert not LAYOUT.parts[1].coordinates([0, 0, 0, 0]).any(), "without texts"


def _units(count, seed=0):
    dice = np.random.default_rng(seed)
    losses, counts = dice.uniform(2, 6, count), dice.multinomial(3, [0.25] * 4, count)
    copied = dice.uniform(0, 0.2, count)
    values = list(zip(losses, counts, copied, strict=True))
    return values, sum(LAYOUT.vector(each) for each in values)


def _without_noise(values):
    losses, counts, copied = (np.array(column) for column in zip(*values, strict=True))
    shares = (counts / counts.sum(axis=1, keepdims=True)).mean(axis=0)
    return [len(values), math.exp(losses.mean()), total_variation(shares, SYNTHETIC), copied.mean()]


def test_without_noise_figures_are_those_of_the_units():
    values, sums = _units(200)
    shown, left_out = LAYOUT.read(sums, 1e-9)
    assert [each.name for each in shown] == ["held-out users", "perplexity", "lengths", "copied"]
    assert [each.value for each in shown] == pytest.approx(_without_noise(values), rel=1e-6)
    assert left_out == []


@pytest.mark.parametrize("units", [150])
def test_intervals_hold_what_there_is_without_noise_nineteen_times_of_twenty(units):
    """The last cell of the synthetic shares is empty, and the noise is a tenth of the units."""
    values, sums = _units(units)
    exact, dice, held = _without_noise(values), np.random.default_rng(1), np.zeros(4)
    wide = Layout(tuple(type(part)(**_without_bound(part)) for part in LAYOUT.parts))
    for _ in range(DRAWS):
        shown, _ = wide.read(sums + dice.normal(0, units / 60, len(sums)), units / 60)
        held += [each.low <= value <= each.high for each, value in zip(shown, exact, strict=True)]
    least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / DRAWS)
    assert (held / DRAWS >= least).all(), held / DRAWS


def _without_bound(part):
    given = {name: getattr(part, name) for name in part.__dataclass_fields__ if part.__dataclass_fields__[name].init}
    return given | {"widest": math.inf}


def test_a_figure_that_is_mostly_noise_is_left_out_and_a_count_that_is_leaves_out_all():
    _, sums = _units(300)
    shown, left_out = LAYOUT.read(sums, 15.0)
    assert "held-out users" in [each.name for each in shown]
    assert len(shown) < 4
    assert any("is left out: noise alone" in sentence for sentence in left_out)
    assert "corpus.holdout" in left_out[-1]
    shown, left_out = LAYOUT.read(sums, 300.0)
    assert shown == []
    assert left_out[0].startswith("All figures are left out")
    norm = math.sqrt(COUNT**2 + 1 + 1 + 0.25**2)
    assert LAYOUT.read(sums, 300 * COUNT / norm / 3.001)[0], "three standard deviations above zero is clear"
