"""Ends of sentences, as people would see them in plain text."""

import pytest

from rayprivacy.corpus.public import first_sentences


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("It is late. We go home.", "It is late."),
        ("Is it late? We go home.", "Is it late?"),
        ("Stop!! Now we go.", "Stop!!"),
        ("It is late.", "It is late."),
        ("It is late. \n", "It is late."),
        ('He said "no." Then he left.', 'He said "no."'),
        ('It is late. "Go," he said.', "It is late."),
        ("It costs 3.5 euros. Fine.", "It costs 3.5 euros."),
        ("We read e.g. books. Fine.", "We read e.g. books."),
        ("Dr. No met Mr. Bond. Fine.", "Dr. No met Mr. Bond."),
        ("We saw U.S. Steel fall. Fine.", "We saw U.S. Steel fall."),
        ("He waits... and waits. Fine.", "He waits... and waits."),
        ("C'est l'\u00e9t\u00e9. \u00c9ric rit.", "C'est l'\u00e9t\u00e9."),
        ("\u4f60\u597d\u3002\u518d\u89c1", "\u4f60\u597d\u3002"),
    ],
)
def test_the_first_sentence(text: str, first: str) -> None:
    assert first_sentences(text, 1) == first


@pytest.mark.parametrize("text", ["", " ", "we go on", "we go on, and", "at www.example.org we"])
def test_a_text_that_goes_on_has_none(text: str) -> None:
    assert first_sentences(text, 1) is None


def test_two_sentences() -> None:
    assert first_sentences("We came. We saw it. We left.", 2) == "We came. We saw it."
    assert first_sentences("We came. We saw it", 2) is None
