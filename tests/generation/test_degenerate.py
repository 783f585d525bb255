"""Degenerate texts: each rule fires on its own kind and lets ordinary texts pass, fast."""

import time

import pytest

from rayprivacy.generation.text_writers import holds_structure, is_degenerate

FINE = [
    "no no no no, I mean it",
    "sooooooooooo good!!!!!!!!!!!!!!!!!!!!!!!!!!",
    "Hello............................ are you there?",
    "7 pm?",
    "你好吗",
    "très bien",
    "----------------------------- a table --------------------------------",
    "the cat sat on the mat and the dog sat on the mat and the bird sat on the mat as well",
    "https://example.org/a/very/long/address/with/many/parts/in/it/indeed.html",
    "yes " + "no " * 7 + "yes",
    "one two " * 9,  # 15 4-grams, 2 of them distinct
]
DEGENERATE = [
    ("", "empty"),
    (" \n\t\u00a0 ", "empty"),
    ("?! ... ___ 4 \U0001f600", "no letters"),
    ("so " * 8, "loop"),
    ("yes " + "no " * 8 + "yes", "loop"),
    ("I said No no NO no nO no no no to you", "loop"),
    ("well " + "a" * 21, "loop"),
    ("好的" * 20, "loop"),
    ("I am not sure. " * 8, "repeats"),
    ("a b " * 12, "repeats"),
    ("one two three four five six seven eight nine ten eleven twelve " * 3, "repeats"),
    ("one two " * 9 + "one", "repeats"),  # 16 4-grams
]


@pytest.mark.parametrize(("text", "reason"), [*((text, None) for text in FINE), *DEGENERATE])
def test_each_kind_is_named_and_ordinary_texts_pass(text: str, reason: str | None) -> None:
    assert is_degenerate(text) == reason


NAMES = {"Yield", "Event.start_?", "&", "slots"}


def test_a_name_behind_a_bracket_is_structure() -> None:
    for text in ("(Yield (Today))", "No (  Yield", "at six (& noon", "(Event.start_?(x", '{"slots": {}}', '[ "slots"'):
        assert holds_structure(f"(fine) and {text}", NAMES)
        assert not holds_structure(text, ())


@pytest.mark.parametrize("text", ["(yes) :(", "Yield", "(Yields", "so (I slots", "((", "() Yield", "(yield)", ""])
def test_words_and_brackets_of_sentences_are_none(text: str) -> None:
    assert not holds_structure(text, NAMES)


@pytest.mark.parametrize("text", ["ab" * 50_000 + "!", "abcdefgh1" * 20_000, "a " * 50_000, "x" * 19 + "y" * 19])
def test_no_text_makes_a_rule_slow(text: str) -> None:
    start = time.process_time()
    is_degenerate(text * 2)
    holds_structure(text * 2, NAMES)
    holds_structure("( " * 100_000, NAMES)
    assert time.process_time() - start < 1
