"""Content words: what real text is about, beside the share of synthetic texts that say it."""

import numpy as np
import pytest

from rayprivacy.cli import runs
from rayprivacy.evaluation.evaluate import draw
from rayprivacy.evaluation.figures import CONTENT, Figure, tables
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import Texts
from rayprivacy.evaluation.words import content_words, word_rows


def _drawn(real, synthetic):
    sides = (Texts(each, np.arange(len(each))) for each in (real, synthetic))
    return draw(*sides, None, EvaluationConfig())


def test_text_that_is_not_about_the_subject_shows():
    real = [f"the kernel driver of machine {n} does not load" for n in range(60)]
    found = {each["word"]: each for each in content_words(_drawn(real, ["nice to meet you, machine"] * 60))}
    assert found["kernel"]["reference"] == found["driver"]["reference"] == 1
    assert found["kernel"]["synthetic"] == 0
    assert found["machine"]["synthetic"] == 1
    assert "the" not in found, "grammar says nothing of a subject"
    title, cells = next(tables({"rows": [], "content_words": list(found.values())}))
    assert title == CONTENT
    assert ("kernel", "0.0%", "100.0%", "near the real one") in cells


def test_the_ten_words_most_missing_are_listed_beside_the_ten_commonest():
    alike = [f"alike{n}" for n in range(12)]
    real = [" ".join(alike) + " kernel" * (n % 6 > 0) + " driver" * (n % 3 == 0) for n in range(60)]
    drawn = _drawn(real, [" ".join(alike)] * 60)
    listed = [each["word"] for each in content_words(drawn)]
    assert listed[:10] == sorted(alike)[:10]
    assert listed[10:12] == ["kernel", "driver"]
    distance = {row.name: row for row in word_rows(drawn, None, EvaluationConfig())}["content_total_variation"]
    assert distance.reference
    assert distance.synthetic
    assert distance.reference.value < 0.05 < distance.synthetic.value
    nothing = word_rows(_drawn(real, ["nice to meet you"] * 60), None, EvaluationConfig())
    assert {row.name: row.synthetic for row in nothing}["content_total_variation"] == Figure(1.0)


def test_words_of_one_or_two_users_are_not_listed():
    real = [f"kernel of somebody {'wunderlich' if n == 0 else ''}" for n in range(60)]
    words = {each["word"] for each in content_words(_drawn(real, ["kernel"] * 60))}
    assert "kernel" in words
    assert "wunderlich" not in words


@pytest.mark.parametrize("terminal", [True, False])
def test_words_are_said_to_a_person_and_to_no_log(monkeypatch, capsys, terminal):
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    word = {"word": "zebra", "synthetic": 0.1, "reference": 0.2}
    runs._compared({"rows": [], "content_words": [word]})
    assert ("zebra" in capsys.readouterr().out) is terminal
