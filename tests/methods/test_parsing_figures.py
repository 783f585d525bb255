"""Figures of a parser in benchmarks, against their definitions, by hand and on random trees."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

TREES = st.lists(st.sampled_from("ABC"), min_size=1, max_size=4).map(
    lambda names: f"({' ('.join(names)}{')' * len(names)}"
)
Figures = Callable[..., dict[str, float]]


@pytest.fixture(scope="module")
def parsing_figures() -> Figures:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        import parsing_figures

        found: Any = parsing_figures.parsing_figures
    return found


def test_by_hand(parsing_figures: Figures) -> None:
    gold = ['(A (B "lunch") (B 1))', "(A)", '{"intent": "Play", "slots": {"track": "x"}}', "(A (x3 (B)))"]
    read = ['(A (B "dinner"))', "no tree", '{"slots": {"track": "y"}, "intent": "Play"}', "(A (x7 (B)))"]
    found = parsing_figures(gold, read, frozenset({"Play"}))
    assert found["match"] == 2 / 4
    assert found["precision"] == (1 + 0 + 1 + 1) / 4
    assert found["recall"] == pytest.approx((2 / 3 + 0 + 1 + 1) / 4)
    assert parsing_figures([], []) == {"match": 0, "precision": 0, "recall": 0}
    other = ['{"intent": "Stop", "slots": {"track": "y"}}']
    assert parsing_figures(gold[2:3], other, frozenset({"Play", "Stop"}))["match"] == 0


@given(gold=st.lists(TREES, min_size=1, max_size=5), read=st.lists(TREES, min_size=1, max_size=5))
def test_precision_of_one_side_is_the_recall_of_the_other(
    parsing_figures: Figures, gold: list[str], read: list[str]
) -> None:
    size = min(len(gold), len(read))
    one, other = parsing_figures(gold[:size], read[:size]), parsing_figures(read[:size], gold[:size])
    assert one["precision"] == pytest.approx(other["recall"])
    assert one["match"] == other["match"] <= one["precision"]
    assert parsing_figures(gold, gold) == {"match": 1, "precision": 1, "recall": 1}
