"""Copied passages against a search that tries everything."""

import random

import numpy as np
import pytest

from rayprivacy.evaluation.language import normal_words, shared_words
from rayprivacy.evaluation.memorisation import GRAM, shared_runs


def brute(text: str, real: list[str], most: int = 100) -> int:
    words, others = normal_words(text), [f" {' '.join(normal_words(other))} " for other in real]
    for length in range(min(len(words), most), 0, -1):
        pieces = (f" {' '.join(words[at : at + length])} " for at in range(len(words) - length + 1))
        if any(piece in other for piece in pieces for other in others):
            return length
    return 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alphabet", ["ab", "abcdefgh"])
def test_the_longest_run_is_that_of_a_search_that_tries_all(seed: int, alphabet: str) -> None:
    draw = random.Random(seed)
    texts, real = ([" ".join(draw.choices(alphabet, k=draw.randint(0, 30))) for _ in range(25)] for _ in range(2))
    found = shared_runs(texts, [real])
    assert found.longest.tolist() == [brute(text, real) for text in texts]
    assert found.words.tolist() == [len(text.split()) for text in texts]


def test_grams_by_hand() -> None:
    real = ["one two three four five six seven eight nine ten"]
    found = shared_runs(["x one two three four five six seven eight nine y", "nine ten one two", "", real[0]], [real])
    assert found.longest.tolist() == [9, 2, 0, 10]
    assert found.grams.tolist() == [2, 0, 0, 3]
    assert found.long_enough.tolist() == [True, False, False, True]
    assert found.gram_share.tolist() == [2 / 4, 0, 0, 1]
    assert found.copied.tolist() == [False, False, False, True]


def test_a_run_does_not_cross_texts_and_no_words_are_no_run() -> None:
    assert shared_runs(["a b", "c d", "a b c d"], [["a b", "c d"]]).longest.tolist() == [2, 2, 2]
    assert shared_runs([], [["a b"]]).longest.tolist() == []
    assert shared_runs(["!?", "a"], [["..."]]).longest.tolist() == [0, 0]


def test_capitals_punctuation_and_unicode_forms_do_not_hide_a_copy() -> None:
    real = "We'll meet at the café, near the OLD station, at nine o'clock"
    copy = "we ll MEET at the cafe\u0301 near... the old station - at nine o clock!"
    found = shared_runs([copy], [[real]])
    assert found.copied.tolist() == [True]
    assert found.longest[0] >= GRAM


@pytest.mark.parametrize(
    ("real", "other"),
    [
        ("我昨天在北京大学医院看了心脏病专家。他给我开了药。", "今天天气很好。我们一起去公园散步吧。"),
        ("ฉันไปพบแพทย์โรคหัวใจที่โรงพยาบาลเมื่อวานนี้", "วันนี้อากาศดีมากเราไปเดินเล่นกัน"),
    ],
)
def test_a_passage_is_found_where_words_have_no_spaces(real: str, other: str) -> None:
    found = shared_runs([f"{other}{real[2:]}", other], [[real]])
    assert found.longest[0] > GRAM
    assert found.grams[0] > found.grams[1] == 0


def test_every_real_text_is_searched() -> None:
    real = [f"w{row} x{row} y{row} z{row}" for row in range(20_000)]
    found = shared_runs([real[19_999], "w1 x2"], [real])
    assert found.longest.tolist() == [4, 1]
    assert found.longest.dtype == np.int64


@pytest.mark.parametrize("size", [1, 7, 40])
def test_blocks_of_real_texts_are_as_good_as_all_at_once(size: int) -> None:
    draw = random.Random(size)
    texts, real = ([" ".join(draw.choices("abc", k=draw.randint(0, 30))) for _ in range(40)] for _ in range(2))
    whole = shared_runs(texts, [real])
    found = shared_runs(texts, (real[at : at + size] for at in range(0, 40, size)))
    for ours, theirs in zip(vars(found).values(), vars(whole).values(), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert whole.grams.max() > 1, "the same places of different blocks are counted once"


def test_shared_words_by_hand() -> None:
    found = shared_words(["the cat sat", "A dog"], ["The cat ran", "the end"])
    assert found["word_type_overlap"] == 2 / 7  # the, cat of the, cat, sat, a, dog, ran, end
    assert found["new_word_share"] == 2 / 5
    assert shared_words([], []) == {"word_type_overlap": 0, "new_word_share": 0}
