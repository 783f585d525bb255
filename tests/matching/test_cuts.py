"""Texts are cut at ends of sentences alone, and their lengths follow what is wanted."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.blocks.match import LENGTHS, beginnings, cut, lengths

SENTENCE = st.integers(1, 12).map(lambda words: " ".join(["word"] * words) + ".")
TEXT = st.lists(SENTENCE, min_size=1, max_size=5).map(" ".join)


def _shares(texts: list[str]) -> np.ndarray:
    return np.bincount(lengths(texts), minlength=LENGTHS) / len(texts)


@given(st.lists(TEXT, min_size=1, max_size=30), st.integers(0, 1000))
def test_each_text_is_cut_to_one_of_its_beginnings(texts: list[str], seed: int) -> None:
    wanted = np.random.default_rng(seed).dirichlet(np.full(LENGTHS, 0.2))
    found = cut(texts, wanted, seed)
    assert len(found) == len(texts)
    for text, kept in zip(texts, found, strict=True):
        assert kept in beginnings(text)
        assert kept == text or kept.endswith(".")


def test_sentences_end_at_marks_before_a_space_and_at_lines() -> None:
    assert beginnings('He said "No!" and v1.2 left... Then\nhe slept') == [
        'He said "No!"',
        'He said "No!" and v1.2 left...',
        'He said "No!" and v1.2 left... Then',
        'He said "No!" and v1.2 left... Then\nhe slept',
    ]
    assert beginnings("no end") == ["no end"]
    assert beginnings("\n\nx") == ["\n\nx"]


def test_lengths_follow_the_wanted_shares_where_sentences_end_there() -> None:
    draw = np.random.default_rng(0)
    texts = [" ".join("word " * draw.integers(1, 9) + "end." for _ in range(6)) for _ in range(3000)]
    wanted = np.zeros(LENGTHS)
    wanted[2:9] = 1 / 7
    assert np.abs(_shares(texts) - wanted).sum() > 1
    assert np.abs(_shares(cut(texts, wanted, 0)) - wanted).sum() < 0.1


def test_texts_whose_lengths_are_right_stay_whole() -> None:
    texts = [" ".join(["word."] * (2 + number % 30)) for number in range(3000)]
    found = cut(texts, _shares(texts), 0)
    assert np.abs(_shares(found) - _shares(texts)).sum() < 0.1
    without_ends = [" ".join(["word"] * (2 + number % 30)) for number in range(300)]
    assert cut(without_ends, _shares(texts), 0) == without_ends


def test_nobody_wants_the_lengths_there_are() -> None:
    wanted = np.zeros(LENGTHS)
    wanted[-1] = 1.0
    assert cut(["one two.", "three"], wanted, 0) == ["one two.", "three"]


def test_the_cut_repeats_with_its_seed() -> None:
    texts = ["a. b c. d e f. g h i j k."] * 50
    wanted = np.full(LENGTHS, 1 / LENGTHS)
    assert cut(texts, wanted, 0) == cut(texts, wanted, 0) != cut(texts, wanted, 1)
