"""Figures from noisy sums: what a unit hands in is bounded, and intervals hold what there is without noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.evaluation.fidelity import total_variation
from rayprivacy.evaluation.shown import COUNT, WHOLE, Distance, Layout, Mean, Perplexity

SYNTHETIC = (0.5, 0.3, 0.2, 0.0)
LOSS, LENGTHS, COPIED = (
    Perplexity("perplexity", 1.0, 2.0, 6.0),
    Distance("lengths", 1.0, SYNTHETIC),
    Mean("copied", 0.25),
)
LAYOUT = Layout((LOSS, LENGTHS, COPIED))
DRAWS = 150
_value = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 8.0, -1.0, 1e300]))
_counts = st.lists(st.integers(0, 10**9), min_size=4, max_size=4)


@given(_value, st.integers(1, 10**6), _counts, _value)
def test_no_vector_is_longer_than_one(nats, tokens, counts, copied):
    vector = LAYOUT.vector([(nats, tokens), counts, copied])
    assert vector.shape == (LAYOUT.cells,) == (7,)
    assert np.linalg.norm(vector) <= 1 + 1e-12


def test_losses_are_clipped_and_what_is_no_number_counts_as_the_bound():
    losses = (-5.0, 2.0, 4.0, 6.0, 9.0, math.inf, math.nan, -math.inf)
    assert [LOSS.coordinates((each * 30, 30), 1.0)[0] for each in losses] == [-1, -1, 0, 1, 1, 1, 1, 1]


def test_a_unit_with_little_text_counts_in_part_and_is_bounded_after_that():
    """A quarter of a unit may lose four times as much more than the middle before it is held back."""
    vector = LAYOUT.vector([(10.0 * WHOLE / 4, WHOLE / 4), [1, 0, 0, 0], 1.0])
    norm = math.sqrt(COUNT**2 + 1 + 1 + 0.25**2)
    assert np.allclose(vector * norm, [COUNT / 4, 0.75, 0.25, 0, 0, 0, 0.25 / 4])
    assert LAYOUT.vector([(3.0 * 7 * WHOLE, 7 * WHOLE), [0] * 4, 0.0])[0] * norm == pytest.approx(COUNT)


def test_a_user_weighs_the_same_however_much_they_wrote():
    few, many = (LAYOUT.vector([(3.0 * n, n), [n, n, 0, 0], 0.0]) for n in (WHOLE, 1000 * WHOLE))
    assert np.array_equal(few, many)
    assert not LENGTHS.coordinates([0, 0, 0, 0], 1.0).any(), "without texts"


def _units(count, seed=0):
    dice = np.random.default_rng(seed)
    losses, counts = dice.uniform(2, 6, count), dice.multinomial(3, [0.25] * 4, count)
    copied, tokens = dice.uniform(0, 0.2, count), dice.integers(1, 3 * WHOLE, count)
    values = list(zip(zip(losses * tokens, tokens, strict=True), counts, copied, strict=True))
    return values, sum(LAYOUT.vector(each) for each in values)


def _without_noise(values):
    losses, counts, copied = zip(*values, strict=True)
    (nats, tokens), counts = np.array(losses).T, np.array(counts)
    counted = np.minimum(tokens / WHOLE, 1)
    shares = np.average(counts / counts.sum(axis=1, keepdims=True), axis=0, weights=counted)
    perplexity = math.exp(np.average(nats / tokens, weights=counted))
    return [round(counted.sum()), perplexity, total_variation(shares, SYNTHETIC), np.average(copied, weights=counted)]


def test_without_noise_figures_are_those_of_the_units():
    values, sums = _units(200)
    shown, left_out = replace(LAYOUT, who="ants").read(sums, 1e-9)
    names = ["ants, those with little text in part", "perplexity, ants", "lengths, ants", "copied, ants"]
    assert [each.name for each in shown] == names
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
    assert "users, those with little text in part" in [each.name for each in shown]
    assert len(shown) < 4
    assert any("is left out: noise alone" in sentence for sentence in left_out)
    counted = sums[0] * math.sqrt(COUNT**2 + 1 + 1 + 0.25**2) / COUNT
    noise = counted * COUNT / math.sqrt(COUNT**2 + 1 + 1 + 0.25**2) / 3
    assert LAYOUT.read(sums, 1.001 * noise) == (
        [], ["Figures of users are left out: noise hides how many there are."]
    )  # fmt: skip
    assert LAYOUT.read(sums, 0.999 * noise)[0], "three standard deviations above zero is clear"
