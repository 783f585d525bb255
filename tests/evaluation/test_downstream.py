"""A classifier learns from synthetic text what is in it, and fails where it teaches the wrong thing."""

import random
from typing import Any

import pytest

from rayprivacy.core.errors import CorpusError
from rayprivacy.evaluation.texts import Texts, plain
from rayprivacy.evaluation.words import downstream, labelled

WORDS = {
    "tea": ["green", "black", "hot", "cup", "milk", "honey"],
    "rain": ["storm", "wind", "cloud", "wet", "grey", "umbrella"],
}


def corpus(seed: int, count: int, swap: bool = False, tea: float = 0.5) -> Texts:
    draw = random.Random(seed)
    topics = ["tea" if draw.random() < tea else "rain" for _ in range(count)]
    texts = [" ".join(draw.choices(WORDS[topic], k=4)) for topic in topics]
    labels = [{"tea": "rain", "rain": "tea"}[topic] if swap else topic for topic in topics]
    return plain(texts, [f"{seed}-{row // 4}" for row in range(count)], labels)


def test_good_synthetic_text_teaches_as_well_as_real_text() -> None:
    ours, theirs, sizes = downstream(corpus(1, 200), corpus(2, 120), corpus(3, 80))
    assert ours["accuracy"].value == theirs["accuracy"].value == 1.0
    assert ours["macro_f1"].value == 1.0
    assert sizes == {"trained_on_texts": 120, "tested_on_texts": 80}


def test_wrong_labels_teach_the_wrong_thing() -> None:
    ours, theirs, _ = downstream(corpus(1, 100), corpus(2, 100, swap=True), corpus(3, 80))
    assert ours["accuracy"].value == 0.0
    assert theirs["accuracy"].value == 1.0


def test_the_most_frequent_label_is_that_of_the_training_text() -> None:
    test = corpus(3, 200)
    _, theirs, _ = downstream(corpus(1, 200, tea=0.9), corpus(2, 200), test)
    assert test.labels is not None
    assert theirs["most_frequent_label_accuracy"].value == test.labels.count("tea") / 200


def test_macro_f1_counts_each_label_of_the_test_alike() -> None:
    test = plain(["green milk"] * 9 + ["storm wind"], labels=["tea"] * 9 + ["rain"])
    taught = plain(["green", "storm wind", "honey"] * 9, labels=["tea", "tea", "x"] * 9)
    ours, _, _ = downstream(corpus(1, 60), taught, test)  # says tea to everything here: F1 18/19 of tea, 0 of rain
    assert ours["macro_f1"].value == pytest.approx((18 / 19 + 0) / 2)
    assert ours["accuracy"].value == 0.9


def test_texts_without_a_label_are_left_out() -> None:
    assert labelled(plain(["a", "b", "c"], labels=["x", None, "y"])).texts == ["a", "c"]
    assert labelled(plain(["a"])).texts == []


def test_accuracy_has_an_interval_over_users() -> None:
    test = corpus(3, 100)
    labels = ["tea" if row % 5 == 0 else label for row, label in enumerate(test.labels or [])]
    noisy = Texts(test.texts, test.users, labels)
    found: Any = downstream(corpus(1, 100), corpus(2, 100), noisy)[0]["accuracy"]
    assert found.low < found.value < found.high


def test_one_label_is_nothing_to_learn_and_is_not_quoted() -> None:
    secret = plain(["a b", "c d"] * 20, labels=["secret-label"] * 40)
    for arguments, side in (((corpus(1, 50), secret), "--synthetic"), ((secret, corpus(1, 50)), "--real")):
        with pytest.raises(CorpusError, match=f"fewer than two labels in {side}") as caught:
            downstream(*arguments, corpus(3, 50))
        assert "secret-label" not in str(caught.value)
    with pytest.raises(CorpusError, match="without labels"):
        downstream(corpus(1, 50), corpus(2, 50), plain(["a"], labels=[None]))
    # Nor is a label that is in none of the drawn texts.
    rare = plain(["a b", "c d"] * 500, labels=["tea"] * 999 + ["rain"])
    with pytest.raises(CorpusError, match="fewer than two labels in --real"):
        downstream(rare, corpus(2, 20), corpus(3, 50))
