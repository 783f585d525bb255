"""Figures of trees against slow readings of their definitions, and on the ends of their scales."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import draw, plain
from rayprivacy.evaluation.trees import chi_square, tree_figures, tree_rows, word_recall

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1).map(Counter)


@given(COUNTS, COUNTS)
def test_the_distance_is_symmetric_and_at_most_two(first: Counter[str], second: Counter[str]) -> None:
    found = chi_square(first, second)
    assert found == pytest.approx(chi_square(second, first))
    assert 0 <= found <= 2 + 1e-12
    assert chi_square(first, Counter({name: 3 * count for name, count in first.items()})) == pytest.approx(0)
    assert (found > 1e-9) == any(
        first[name] * second.total() != second[name] * first.total() for name in first | second
    )


def test_without_a_column_of_trees_there_is_no_figure_of_them() -> None:
    texts = plain([f"text {number}" for number in range(60)])
    assert tree_rows(draw(texts, texts, None, EvaluationConfig(tree="lispress"))) == []


def test_by_hand() -> None:
    real = ["(A (B) (B) (C))", '(A (D "x"))']  # A 2, B 2, C 1, D 1
    synthetic = ["(A (B))", "no tree", "(E)"]  # A, B, E once each
    found = tree_figures(real, synthetic)
    assert found["function_recall"] == 2 / 4
    terms = [(1 / 3 - 1 / 3) ** 2 / (2 / 3)] * 2 + [1 / 6] * 2 + [1 / 3]
    assert found["function_distance_unhalved"] == pytest.approx(sum(terms))
    assert found["function_distance"] == pytest.approx(sum(terms) / 2)
    assert found["top_10"] == 2 / 4
    frequent = [f"(F{n} " + "(A)" * (100 - n) + ")" for n in range(30)]
    assert tree_figures(frequent, frequent[:5])["top_25"] < 1
    assert word_recall(["Cancel the meeting"], ["cancel the Cancel"]) == 2 / 3
    assert tree_figures([], ["(A)"])["function_recall"] == word_recall([], ["a"]) == 0
