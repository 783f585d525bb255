"""Lengths against values worked out by hand; the bins are public, so nothing about the data moves them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.evaluation.language import WORD_EDGES, length_summary


def text(words: int) -> str:
    return "w " * words


def test_quantiles_by_hand() -> None:
    found = length_summary([text(n) for n in range(101)])
    assert (found["mean"], found["p5"], found["p50"], found["p95"]) == (50.0, 5.0, 50.0, 95.0)


@pytest.mark.parametrize(("words", "bin_index"), [(0, 0), (1, 1), (4, 1), (5, 2), (99, 7), (100, 8), (5000, 8)])
def test_bins_start_at_their_edge(words: int, bin_index: int) -> None:
    assert length_summary([text(words)])["histogram"]["counts"].index(1) == bin_index


def test_nothing_is_all_zero() -> None:
    found = length_summary([])
    assert (found["mean"], found["p5"], found["p50"], found["p95"]) == (0, 0, 0, 0)


@given(st.lists(st.text(max_size=40), max_size=20))
def test_every_text_falls_into_one_public_bin(texts: list[str]) -> None:
    found = length_summary(texts)
    assert found["histogram"]["edges"] == list(WORD_EDGES)
    assert sum(found["histogram"]["counts"]) == len(texts)
    json.dumps(found, allow_nan=False)
