"""Sentences, blocks and windows by their places, and texts that are shared in spite of tokenisers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.corpus.public import first_sentences, sentence_ends
from rayprivacy.questions.passages import blocks, plain, sentences, shared, windows

TEXT = "It rains.  Mr. Smith goes home! Does he? “Yes.” And so on"
words = st.text(alphabet="ab.!? \n\t“”X", max_size=60)


def test_sentences_are_where_they_say():
    assert [TEXT[start:end] for start, end in sentences(TEXT)] == [
        "It rains.",
        "Mr. Smith goes home!",
        "Does he?",
        "“Yes.”",
        "And so on",
    ]


@given(words)
def test_sentences_have_all_that_is_no_space_once_and_in_order(text):
    found = sentences(text)
    assert "".join("".join(text[start:end].split()) for start, end in found) == "".join(text.split())
    assert all(text[start:end].strip() == text[start:end] != "" for start, end in found)
    assert [end for _, end in found] == sorted(end for _, end in found)


@given(words, st.integers(1, 4))
def test_first_sentences_end_where_sentences_end(text, count):
    ends = [*sentence_ends(text)]
    assert first_sentences(text, count) == (text[: ends[count - 1]] if len(ends) >= count else None)


@given(words, st.integers(1, 9), st.integers(1, 9))
def test_blocks_leave_no_word_out_and_are_no_longer_than_asked(text, size, stride):
    stride = min(stride, size)
    found = [text[start:end].split() for start, end in blocks(text, size, stride)]
    every = text.split()
    assert all(0 < len(block) <= size for block in found)
    assert all(block == every[at * stride :][:size] for at, block in enumerate(found))
    assert sum(len(block[:stride]) for block in found[:-1]) + len(found[-1] if found else []) == len(every)


def test_a_text_of_as_many_words_is_one_block_and_one_more_makes_two():
    assert blocks("a b c", 3, 2) == [(0, 5)]
    assert [("a b c d"[a:b]) for a, b in blocks("a b c d", 3, 2)] == ["a b c", "c d"]
    assert blocks("  ", 3, 2) == []


def test_windows_keep_the_order_and_the_rest():
    assert windows("abcde", 2) == ["ab", "cd", "e"]


@pytest.mark.parametrize(
    ("text", "is_shared"),
    [
        ("the american football conference -lrb- afc -rrb- champion", True),
        ("The American Football Conference (AFC) champion", True),
        ("the american football conference afl champion", False),
        ("-lrb- -rrb-", False),
    ],
)
def test_shared_texts_are_known_without_their_brackets_case_and_spaces(text, is_shared):
    context = "In 2016 the American Football Conference (AFC) champion Denver Broncos won."
    assert shared([text], ["Something else.", context]) == [is_shared]


def test_texts_are_not_shared_with_two_others_together():
    assert shared(["one two"], ["zero one", "two three"]) == [False]
    assert plain("one\ntwo") == "onetwo"
