"""Texts are chosen in the wanted shares, none twice, and cut at ends of sentences alone, to the wanted lengths."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.blocks.match import LENGTHS, beginnings, chosen, cut, lengths, raked, shares_of

BLOCKS = (4, 3)
SENTENCE = st.integers(1, 12).map(lambda words: " ".join(["word"] * words) + ".")
TEXT = st.lists(SENTENCE, min_size=1, max_size=5).map(" ".join)


def _candidates(seed: int, count: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.column_stack([draw.integers(0, size, count) for size in BLOCKS])


def _shares(texts: list[str]) -> np.ndarray:
    return np.bincount(lengths(texts), minlength=LENGTHS) / len(texts)


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 80))
def test_as_many_as_are_wanted_and_none_twice(seed: int, count: int, kept: int) -> None:
    cells, draw = _candidates(seed, count), np.random.default_rng(seed)
    weights = raked(cells, [draw.dirichlet(np.full(size, 0.3)) for size in BLOCKS], kept)
    assert ((weights >= 0) & (weights <= 1 + 1e-9)).all()
    places = chosen(weights, cells, seed)
    assert len(places) == min(kept, count)
    assert (np.diff(places) > 0).all(), "candidates keep their order, and none is there twice"
    assert (places == chosen(weights, cells, seed)).all()


def test_both_margins_are_met_where_there_are_candidates_enough() -> None:
    cells = _candidates(0, 4000)
    wanted = [np.array([0.7, 0.2, 0.1, 0.0]), np.array([0.1, 0.3, 0.6])]
    weights = raked(cells, wanted, 500)
    places = chosen(weights, cells, 0)
    for share, found in zip(wanted, shares_of(cells[places], BLOCKS), strict=True):
        assert np.abs(share - found).max() < 0.02
    assert (places != chosen(weights, cells, 1)).any(), "another seed is another choice"


def test_a_cell_with_too_few_candidates_gives_all_and_one_without_leaves_its_share_to_the_others() -> None:
    cells = np.column_stack([np.array([0] * 10 + [1] * 990), np.zeros(1000, np.int64)])
    places = chosen(raked(cells, [np.array([0.5, 0.5]), np.ones(1)], 100), cells, 0)
    assert (len(places), (places < 10).sum()) == (100, 10)
    cells[:500, 0] = 0
    places = chosen(raked(cells, [np.array([0.3, 0.1, 0.6]), np.ones(1)], 100), cells, 0)
    assert len(places) == 100
    assert abs((places < 500).mean() - 0.75) < 0.15


@given(st.lists(TEXT, min_size=1, max_size=30), st.integers(0, 1000))
def test_each_text_is_cut_to_one_of_its_beginnings(texts: list[str], seed: int) -> None:
    wanted = np.random.default_rng(seed).dirichlet(np.full(LENGTHS, 0.2))
    found = cut(texts, wanted, seed)
    assert found == cut(texts, wanted, seed)
    for text, kept in zip(texts, found, strict=True):
        assert kept in beginnings(text)
        assert kept == text or kept.endswith(".")


def test_sentences_end_at_marks_before_a_space_and_at_lines() -> None:
    ends = ['He said "No!"', " and v1.2 left...", " Then", "\nhe slept"]
    assert beginnings("".join(ends)) == ["".join(ends[:end]) for end in (1, 2, 3, 4)]
    assert beginnings("no end") == ["no end"]
    assert beginnings("\n\nx") == ["\n\nx"]


def test_lengths_follow_the_wanted_shares_where_sentences_end_there() -> None:
    draw = np.random.default_rng(0)
    texts = [" ".join("word " * draw.integers(1, 9) + "end." for _ in range(6)) for _ in range(3000)]
    wanted = np.zeros(LENGTHS)
    wanted[2:9] = 1 / 7
    assert np.abs(_shares(texts) - wanted).sum() > 1
    assert np.abs(_shares(cut(texts, wanted, 0)) - wanted).sum() < 0.1
    assert cut(texts, wanted, 0) != cut(texts, wanted, 1)


def test_texts_stay_whole_where_lengths_are_right_or_none_has_an_end_or_nobody_wants_theirs() -> None:
    texts = [" ".join(["word."] * (2 + number % 30)) for number in range(3000)]
    assert np.abs(_shares(cut(texts, _shares(texts), 0)) - _shares(texts)).sum() < 0.1
    without_ends = [text.replace(".", "") for text in texts[:300]]
    assert cut(without_ends, _shares(texts), 0) == without_ends
    assert cut(["one two.", "three"], np.eye(LENGTHS)[-1], 0) == ["one two.", "three"]
