"""Degenerate texts: each rule fires on its own kind and lets ordinary texts pass, fast."""

import random
import time

import pytest

from rayprivacy.generation.degenerate import is_degenerate, without_degenerate

FINE = [
    "hi",
    "I",
    "no no no no, I mean it",
    "ha ha ha ha ha ha ha",
    "sooooooooooo good!!!!!!!!!!!!!!!!!!!!!!!!!!",
    "Hello............................ are you there?",
    "7 pm?",
    "你好吗",
    "très bien",
    "----------------------------- a table --------------------------------",
    "the cat sat on the mat and the dog sat on the mat and the bird sat on the mat as well",
    "https://example.org/a/very/long/address/with/many/parts/in/it/indeed.html",
]


@pytest.mark.parametrize("text", FINE)
def test_ordinary_texts_pass(text: str) -> None:
    assert is_degenerate(text) is None


def test_public_sentences_pass(public_sentences: list[str]) -> None:
    assert without_degenerate(public_sentences) == (public_sentences, {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t\u00a0 ", "empty"),
        ("123 456", "no letters"),
        ("?! ... ___ 4 \U0001f600", "no letters"),
        ("so " * 8, "loop"),
        ("I said No no NO no nO no no no to you", "loop"),
        ("well " + "a" * 21, "loop"),
        ("abc" * 20, "loop"),
        ("好的" * 20, "loop"),
        ("I am not sure. " * 8, "repeats"),
        ("fine words first, and then it goes " + "round and round we go " * 12, "repeats"),
        ("a b " * 12, "repeats"),
    ],
)
def test_each_kind_is_named(text: str, reason: str) -> None:
    assert is_degenerate(text) == reason


@pytest.mark.parametrize(("words", "reason"), [(7, None), (8, "loop")])
def test_the_run_of_a_word_is_counted_exactly(words: int, reason: str | None) -> None:
    assert is_degenerate("yes " + "no " * words + "yes") == reason


@pytest.mark.parametrize(("repeats", "reason"), [(1, None), (2, None), (3, "repeats")])
def test_a_sentence_may_come_twice(repeats: int, reason: str | None) -> None:
    assert is_degenerate("one two three four five six seven eight nine ten eleven twelve " * repeats) == reason


def test_short_texts_are_not_judged_by_their_4_grams() -> None:
    assert is_degenerate("one two " * 9) is None  # 15 4-grams, 2 of them distinct
    assert is_degenerate("one two " * 9 + "one") == "repeats"  # 16


def test_the_filter_keeps_the_order_and_counts_the_reasons() -> None:
    texts = ["b", "", "a", "...", " ", "no " * 9, "a"]
    assert without_degenerate(texts) == (["b", "a", "a"], {"empty": 2, "no letters": 1, "loop": 1})
    assert without_degenerate([]) == ([], {})


def test_a_hundred_thousand_texts_take_seconds() -> None:
    chance = random.Random(0)
    words = [f"word{n}" for n in range(2000)]
    texts = [" ".join(chance.choices(words, k=20)) for _ in range(20_000)]
    start = time.process_time()
    without_degenerate(texts)
    assert time.process_time() - start < 3  # about 0.2 s on the machine this was written on


@pytest.mark.parametrize("text", ["ab" * 50_000 + "!", "abcdefgh1" * 20_000, "a " * 50_000, "x" * 19 + "y" * 19])
def test_no_text_makes_a_rule_slow(text: str) -> None:
    start = time.process_time()
    is_degenerate(text * 2)
    assert time.process_time() - start < 1
